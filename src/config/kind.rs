//! What an option accepts: the check of a value's text, and the words that say what is allowed.

use super::device::DeviceRequest;
use super::settings::ScaleRange;
use super::suggest::nearest;
use super::value::Value;

/// Numbers from `min` to `max`; an open end is itself not allowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub min: f64,
    pub max: f64,
    pub open_min: bool,
    pub open_max: bool,
}

impl Interval {
    pub const fn closed(min: f64, max: f64) -> Self {
        Self {
            min,
            max,
            open_min: false,
            open_max: false,
        }
    }

    /// Above `min`, up to and with `max`.
    pub const fn above(min: f64, max: f64) -> Self {
        Self {
            open_min: true,
            ..Self::closed(min, max)
        }
    }

    /// From `min`, below `max`.
    pub const fn below(min: f64, max: f64) -> Self {
        Self {
            open_max: true,
            ..Self::closed(min, max)
        }
    }

    /// False for NaN and the infinities.
    pub fn contains(&self, number: f64) -> bool {
        let above = number > self.min || (number == self.min && !self.open_min);
        let below = number < self.max || (number == self.max && !self.open_max);
        above && below && number.is_finite()
    }

    fn allowed(&self) -> String {
        let Self { min, max, .. } = self;
        match (self.open_min, self.open_max) {
            (false, false) => format!("a number from {min} to {max}"),
            (true, false) => format!("a number above {min}, at most {max}"),
            (false, true) => format!("a number from {min} to below {max}"),
            (true, true) => format!("a number above {min} and below {max}"),
        }
    }
}

/// What an option accepts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// `true` or `false`; on the command line the option alone means `true`.
    Flag,
    /// A whole number, both ends allowed.
    Integer {
        min: i128,
        max: i128,
    },
    Number(Interval),
    /// Pixels: a multiple of 32 from 32 to 4096 (32 is the largest stride of the networks).
    ImageSize,
    /// Any text that is not empty; the word says what it names (as in `--data FILE`).
    Text(&'static str),
    /// As `Text`; the option alone means `true`.
    OptionalText(&'static str),
    Choice(&'static [&'static str]),
    /// Class indices with commas between them.
    Classes,
    /// `s` for the multipliers 1 - s to 1 + s, or `min,max`.
    Scale,
    /// A number of layers, or layers and names of parameters with commas between them.
    Layers,
    Device,
}

/// Upper end of whole numbers that have none in practice: beyond it is a slip of the finger.
pub(super) const PRACTICALLY_UNLIMITED: i128 = 1_000_000;

const STRIDE: i128 = 32;
const IMAGE_SIZE_MAX: i128 = 4096;
const CLASS_MAX: usize = 65_535;
const SCALE_HALF_WIDTH: Interval = Interval::below(0.0, 1.0);
const SCALE_MULTIPLIER: Interval = Interval::above(0.0, 10.0);

/// Why a text was refused: what is allowed, and a hint that fits what was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub allowed: String,
    pub hint: Option<String>,
}

impl Kind {
    /// What is allowed, in words that end a sentence.
    pub fn allowed(&self) -> String {
        match self {
            Kind::Flag => "true or false".into(),
            Kind::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Kind::Number(interval) => interval.allowed(),
            Kind::ImageSize => {
                format!("a multiple of {STRIDE} from {STRIDE} to {IMAGE_SIZE_MAX}")
            }
            Kind::Text(_) | Kind::OptionalText(_) => "a text that is not empty".into(),
            Kind::Choice(choices) => format!("one of {}", choices.join(", ")),
            Kind::Classes => {
                format!("different class numbers from 0 to {CLASS_MAX} with commas between them")
            }
            Kind::Scale => format!(
                "{} (0.5 means multipliers from 0.5 to 1.5), or MIN,MAX with {} each",
                SCALE_HALF_WIDTH.allowed(),
                SCALE_MULTIPLIER.allowed()
            ),
            Kind::Layers => "N for the first N layers, or numbers of layers and names as 23.cv2 with commas between them ([5] for one layer)".into(),
            Kind::Device => DeviceRequest::ALLOWED.into(),
        }
    }

    /// What is allowed, as short as `--help` needs it; `None` where the placeholder says it.
    pub fn brief(&self) -> Option<String> {
        match self {
            // The help of --scale and --device says it, too.
            Kind::Flag | Kind::Text(_) | Kind::OptionalText(_) | Kind::Scale | Kind::Device => None,
            Kind::Integer { min, max } if *max >= PRACTICALLY_UNLIMITED => {
                Some(format!("at least {min}"))
            }
            Kind::Integer { min, max } => Some(format!("{min} to {max}")),
            Kind::Number(interval) => Some(
                interval
                    .allowed()
                    .replace("a number ", "")
                    .replace("from ", ""),
            ),
            Kind::ImageSize => Some("a multiple of 32".into()),
            Kind::Choice(choices) => Some(choices.join(", ")),
            Kind::Classes => Some("such as 0,2,5".into()),
            Kind::Layers => Some("such as 10 or 0,1,5 or 23.cv2".into()),
        }
    }

    /// The placeholder of the value in `--help`.
    pub fn value_name(&self) -> &'static str {
        match self {
            Kind::Flag => "BOOL",
            Kind::Integer { .. } => "N",
            Kind::Number(_) => "X",
            Kind::ImageSize => "PIXELS",
            Kind::Text(what) | Kind::OptionalText(what) => what,
            Kind::Choice(_) => "CHOICE",
            Kind::Classes => "N,N,…",
            Kind::Scale => "X|MIN,MAX",
            Kind::Layers => "N|N,…|NAME,…",
            Kind::Device => "DEVICE",
        }
    }

    /// The value that a user's text means, or why it means none.
    pub(super) fn read(&self, text: &str) -> Result<Value, Refusal> {
        let trimmed = text.trim();
        let value = match self {
            Kind::Flag => read_flag(trimmed).map(Value::Flag),
            Kind::Integer { min, max } => trimmed
                .parse::<i128>()
                .ok()
                .filter(|number| (min..=max).contains(&number))
                .map(Value::Integer),
            Kind::Number(interval) => read_number(trimmed, interval).map(Value::Number),
            Kind::ImageSize => trimmed
                .parse::<i128>()
                .ok()
                .filter(|&size| size % STRIDE == 0 && (STRIDE..=IMAGE_SIZE_MAX).contains(&size))
                .map(Value::Integer),
            Kind::Text(_) | Kind::OptionalText(_) => {
                (!trimmed.is_empty()).then(|| Value::Text(text.to_owned()))
            }
            Kind::Choice(choices) => choices
                .iter()
                .find(|choice| choice.eq_ignore_ascii_case(trimmed))
                .or_else(|| switched(choices, trimmed))
                .map(|&choice| Value::Text(choice.to_owned())),
            Kind::Classes => read_classes(trimmed).map(Value::List),
            Kind::Scale => read_scale(trimmed).map(Value::Range),
            Kind::Layers => is_layers(trimmed).then(|| Value::Text(trimmed.to_owned())),
            Kind::Device => DeviceRequest::parse(trimmed)
                .is_ok()
                .then(|| Value::Text(trimmed.to_owned())),
        };
        value.ok_or_else(|| Refusal {
            allowed: self.allowed(),
            hint: self.hint(trimmed),
        })
    }

    fn hint(&self, text: &str) -> Option<String> {
        match self {
            Kind::ImageSize => nearest_sizes(text),
            Kind::Choice(choices) => nearest(text, choices.iter().copied())
                .map(|choice| format!("did you mean {choice}?")),
            Kind::Device => DeviceRequest::parse(text)
                .err()
                .and_then(|error| error.detail().map(str::to_owned)),
            _ => None,
        }
    }
}

fn nearest_sizes(text: &str) -> Option<String> {
    let size: i128 = text.parse().ok()?;
    let below = size.div_euclid(STRIDE).checked_mul(STRIDE)?;
    let above = below.checked_add(STRIDE)?;
    if below < STRIDE {
        Some(format!("the nearest is {STRIDE}"))
    } else if above > IMAGE_SIZE_MAX {
        Some(format!("the nearest is {IMAGE_SIZE_MAX}"))
    } else {
        Some(format!("the nearest are {below} and {above}"))
    }
}

fn read_flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// Of choices with auto and off, those that a flag's words mean: others have such options as switches.
fn switched<'a>(choices: &'a [&'static str], text: &str) -> Option<&'a &'static str> {
    let find = |name: &str| choices.iter().find(|c| **c == name);
    let (auto, off) = (find("auto")?, find("off")?);
    read_flag(text).map(|on| if on { auto } else { off })
}

fn read_number(text: &str, interval: &Interval) -> Option<f64> {
    let number: f64 = text.trim().parse().ok()?;
    // Adding zero turns -0 into 0, so that what is written back reads as equal.
    interval.contains(number).then_some(number + 0.0)
}

/// The text between brackets, where there are any: `[0, 2]` as in YAML means the same as `0,2`.
fn without_brackets(text: &str) -> &str {
    text.strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text)
}

fn read_classes(text: &str) -> Option<Vec<usize>> {
    let mut classes = Vec::new();
    for item in without_brackets(text).split(',') {
        let class: usize = item.trim().parse().ok()?;
        if class > CLASS_MAX || classes.contains(&class) {
            return None;
        }
        classes.push(class);
    }
    Some(classes)
}

/// Words of letters, digits, dots and underscores. What they name is known once the network is.
fn is_layers(text: &str) -> bool {
    let inner = without_brackets(text);
    let list = inner.strip_suffix(',').unwrap_or(inner);
    list.split(',').map(str::trim).all(|word| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
        !word.is_empty() && word.chars().all(plain)
    })
}

fn read_scale(text: &str) -> Option<ScaleRange> {
    let text = without_brackets(text);
    match text.split_once(',') {
        None => read_number(text, &SCALE_HALF_WIDTH).map(|half_width| ScaleRange {
            min: 1.0 - half_width,
            max: 1.0 + half_width,
        }),
        Some((min, max)) => {
            let min = read_number(min, &SCALE_MULTIPLIER)?;
            let max = read_number(max, &SCALE_MULTIPLIER)?;
            (min <= max).then_some(ScaleRange { min, max })
        }
    }
}
