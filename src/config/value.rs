//! A checked value of an option, between the text that a user wrote and the typed field of `Settings`.

use std::fmt;

use super::settings::ScaleRange;

/// A value that its option's [`Kind`](super::Kind) has accepted.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Flag(bool),
    Integer(i128),
    Number(f64),
    Text(String),
    List(Vec<usize>),
    Range(ScaleRange),
}

/// How the value is written in a YAML file, so that reading it gives the same value (every bit of a number).
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::Integer(number) => write!(f, "{number}"),
            Value::Number(number) => f.write_str(&number_text(*number)),
            Value::Text(text) => f.write_str(&yaml_string(text)),
            Value::List(items) => {
                f.write_str("[")?;
                for (position, item) in items.iter().enumerate() {
                    let comma = if position == 0 { "" } else { ", " };
                    write!(f, "{comma}{item}")?;
                }
                f.write_str("]")
            }
            Value::Range(range) => {
                let (min, max) = (number_text(range.min), number_text(range.max));
                write!(f, "[{min}, {max}]")
            }
        }
    }
}

/// The shortest digits that read back as the same number, with a point and without an exponent (YAML 1.1 readers take
/// `1e-7` for a string).
pub(super) fn number_text(number: f64) -> String {
    let text = format!("{number}");
    if text.contains('.') {
        text
    } else {
        format!("{text}.0")
    }
}

/// A string as a YAML scalar: plain where no reader can take it for something else, otherwise in double quotes.
pub(super) fn yaml_string(text: &str) -> String {
    const WORDS: [&str; 12] = [
        "null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf", "infinity",
    ];
    let starts_plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '_');
    let stays_plain = text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "/_.-".contains(c));
    if starts_plain && stays_plain && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return text.to_owned();
    }
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            // Not printable in YAML, or taken for a line break by some readers.
            c if c.is_control()
                || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
                || ('\u{fff0}'..='\u{ffff}').contains(&c) =>
            {
                quoted.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A typed field of `Settings`. `None` stands for "not set".
pub(super) trait Field: Sized {
    /// `None` where the value is of another type; the table's test makes sure that it never is.
    fn from_value(value: Option<Value>) -> Option<Self>;
    fn to_value(&self) -> Option<Value>;
}

impl Field for bool {
    fn from_value(value: Option<Value>) -> Option<Self> {
        match value? {
            Value::Flag(flag) => Some(flag),
            _ => None,
        }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::Flag(*self))
    }
}

impl Field for f64 {
    fn from_value(value: Option<Value>) -> Option<Self> {
        match value? {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::Number(*self))
    }
}

macro_rules! integer_field {
    ($($integer:ty)*) => {$(
        impl Field for $integer {
            fn from_value(value: Option<Value>) -> Option<Self> {
                match value? {
                    Value::Integer(number) => Self::try_from(number).ok(),
                    _ => None,
                }
            }
            fn to_value(&self) -> Option<Value> {
                // usize has at most 64 bits, so that nothing is lost in 128.
                Some(Value::Integer(*self as i128))
            }
        }
    )*};
}
integer_field!(usize u64 i64);

/// An empty string stands for "not set": only `--weights` has no default.
impl Field for String {
    fn from_value(value: Option<Value>) -> Option<Self> {
        match value {
            None => Some(String::new()),
            Some(Value::Text(text)) => Some(text),
            Some(_) => None,
        }
    }
    fn to_value(&self) -> Option<Value> {
        (!self.is_empty()).then(|| Value::Text(self.clone()))
    }
}

impl Field for Vec<usize> {
    fn from_value(value: Option<Value>) -> Option<Self> {
        match value? {
            Value::List(items) => Some(items),
            _ => None,
        }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::List(self.clone()))
    }
}

impl Field for ScaleRange {
    fn from_value(value: Option<Value>) -> Option<Self> {
        match value? {
            Value::Range(range) => Some(range),
            _ => None,
        }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::Range(*self))
    }
}

impl<T: Field> Field for Option<T> {
    fn from_value(value: Option<Value>) -> Option<Self> {
        match value {
            None => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
    fn to_value(&self) -> Option<Value> {
        self.as_ref().and_then(T::to_value)
    }
}
