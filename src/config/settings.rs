//! The settings of a run: every option of the table as a typed field, what the user gave, and the way to and from YAML.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

pub use super::options::Settings;

use super::device::DeviceRequest;
use super::error::{ConfigError, Place};
use super::file;
use super::options::{Command, OPTIONS, OptionSpec, find, options_of};
use super::value::{Field, Value};

/// Multipliers of the size of an image: uniform from `min` to `max`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleRange {
    pub min: f64,
    pub max: f64,
}

/// An enumeration with its names in options, and its way to and from checked values.
macro_rules! choices {
    ($(#[$meta:meta])* $type:ident { $($(#[$variant_meta:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type { $($(#[$variant_meta])* $variant,)* }

        impl $type {
            /// The names in options, in the order of the variants.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }

        impl Field for $type {
            fn from_value(value: Option<Value>) -> Option<Self> {
                let Value::Text(text) = value? else { return None };
                match text.as_str() {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
            fn to_value(&self) -> Option<Value> {
                Some(Value::Text(self.name().to_owned()))
            }
        }
    };
}

choices! {
    /// `--optimizer`.
    Optimizer { Auto = "auto", Sgd = "SGD", AdamW = "AdamW", MuSgd = "MuSGD", }
}
choices! {
    /// `--lr-scaling`: the exponent of (images a step / nbs) in the learning rate.
    LrScaling {
        /// 1 for SGD, 1/2 for AdamW and Muon's part of MuSGD.
        Auto = "auto",
        Linear = "linear",
        Sqrt = "sqrt",
        None = "none",
    }
}
choices! {
    /// `--amp`: the type of activations and of the weights that convolutions read.
    Amp {
        /// bfloat16 where the device has it, otherwise float32.
        Auto = "auto",
        Bf16 = "bf16",
        Fp16 = "fp16",
        Off = "off",
    }
}
choices! {
    /// `--split`: a part of the data set.
    SplitName { Train = "train", Val = "val", Test = "test", }
}

/// Which options the user gave, on the command line or in a `--cfg` file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given(BTreeSet<&'static str>);

/// A value on the command line: its option and the text.
pub type Word = (&'static OptionSpec, String);

impl Settings {
    /// The settings of a command from the words of its command line and, where they name one, the `--cfg` file.
    ///
    /// # Errors
    /// [`ConfigError`], for the first value that is not allowed (command line first), an option of another command, a `--cfg`
    /// file that cannot be used, an option that must be given and is not, or a device that this build cannot train on.
    pub fn resolve(command: Command, words: &[Word]) -> Result<Self, ConfigError> {
        let mut on_command_line = Self::default();
        for (spec, text) in words {
            on_command_line.set_text(spec, text, &Place::CommandLine)?;
        }
        let mut settings = match &on_command_line.cfg {
            Some(path) => Self::from_file(Path::new(path))?,
            None => Self::default(),
        };
        for (spec, _) in words {
            settings.store(spec, on_command_line.value_of(spec));
            settings.mark_given(spec.name);
        }
        settings.check_for(command)?;
        Ok(settings)
    }

    /// The settings that a `--cfg` file describes.
    ///
    /// # Errors
    /// [`ConfigError`] with line and column of what cannot be used.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::from_yaml(&text, &path.display().to_string())
    }

    /// The settings in a YAML text; `path` names it in messages. Every key counts as given, except where the file has a list
    /// `given` (see [`Settings::to_yaml`]): there, the keys in the list and those whose values differ from the defaults.
    ///
    /// # Errors
    /// [`ConfigError`] with line and column of what cannot be used.
    pub fn from_yaml(text: &str, path: &str) -> Result<Self, ConfigError> {
        let defaults = Self::default();
        let mut settings = Self::default();
        let file = file::read(text, path)?;
        for entry in &file.entries {
            let Some(text) = &entry.value else { continue };
            settings.set_text(entry.spec, text, &entry.place)?;
            if let Some(given) = &file.given {
                let changed = settings.value_of(entry.spec) != defaults.value_of(entry.spec);
                if !changed && !given.contains(&entry.spec.name) {
                    settings.given.0.remove(entry.spec.name);
                }
            }
        }
        Ok(settings)
    }

    /// Every option of training with its value, one a line, in the table's order, keys in snake case. Options without a value are
    /// `null`. The list `given` at the end names those that the user gave, so that `auto` may still choose the others where the
    /// file is used as `--cfg`. `cfg` itself is always `null`: the values of that file are in this one.
    ///
    /// `Settings::from_yaml` of the text gives equal settings, apart from `cfg` and options that training does not take.
    pub fn to_yaml(&self) -> String {
        let mut text = format!(
            "# All options of this run (yolo-train {}). Use it again with --cfg and the name of this file.\n",
            env!("CARGO_PKG_VERSION")
        );
        text.push_str(&self.yaml_of(Command::Train));
        let given: Vec<&str> = options_of(Command::Train)
            .filter(|spec| spec.name != "cfg" && self.is_given(spec.name))
            .map(|spec| spec.key)
            .collect();
        text.push_str("# Given by the user; a value that is changed above counts as given too.\n");
        let _ = writeln!(text, "given: [{}]", given.join(", "));
        text
    }

    /// `key: value` for every option that a command takes.
    pub fn yaml_of(&self, command: Command) -> String {
        let mut text = String::new();
        for spec in options_of(command) {
            let value = match self.value_of(spec) {
                Some(value) if spec.name != "cfg" => value.to_string(),
                _ => "null".to_owned(),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}: {value}", spec.key);
        }
        text
    }

    /// The value of an option as it would be written in a file; `None` where it is not set.
    #[must_use]
    pub fn text_of(&self, spec: &OptionSpec) -> Option<String> {
        self.value_of(spec).map(|value| value.to_string())
    }

    /// Takes the value of an option from other settings, as given there.
    pub fn take_from(&mut self, spec: &'static OptionSpec, other: &Settings) {
        self.store(spec, other.value_of(spec));
        if other.is_given(spec.name) {
            self.mark_given(spec.name);
        }
    }

    /// Whether the user gave a value for an option (either spelling), on the command line or in a `--cfg` file.
    pub fn is_given(&self, name: &str) -> bool {
        let spec = find(name);
        debug_assert!(spec.is_some(), "no option is called {name}");
        spec.is_some_and(|spec| self.given.0.contains(spec.name))
    }

    /// Records that the user gave an option (either spelling).
    pub fn mark_given(&mut self, name: &str) {
        if let Some(spec) = find(name) {
            self.given.0.insert(spec.name);
        }
    }

    /// Sets an option (either spelling) as if the user had written `text` on the command line.
    ///
    /// # Errors
    /// [`ConfigError`] for a name that is not in the table and a value that is not allowed.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
        let spec =
            find(name).ok_or_else(|| ConfigError::unknown(name, None, Place::CommandLine))?;
        self.set_text(spec, text, &Place::CommandLine)
    }

    fn set_text(
        &mut self,
        spec: &'static OptionSpec,
        text: &str,
        place: &Place,
    ) -> Result<(), ConfigError> {
        let value = spec
            .kind
            .read(text)
            .map_err(|refusal| ConfigError::BadValue {
                option: spec,
                place: place.clone(),
                given: text.to_owned(),
                allowed: refusal.allowed,
                hint: refusal.hint,
            })?;
        self.store(spec, Some(value));
        self.given.0.insert(spec.name);
        Ok(())
    }

    fn check_for(&self, command: Command) -> Result<(), ConfigError> {
        let missing = |option| {
            Err(ConfigError::Missing {
                command: command.name(),
                option,
            })
        };
        if matches!(command, Command::Val | Command::Predict) && self.weights.is_empty() {
            return missing("weights");
        }
        if command == Command::Predict && self.source.is_empty() {
            return missing("source");
        }
        if command == Command::Status && self.run.is_empty() {
            return missing("run");
        }
        if !matches!(command, Command::Info | Command::Doctor | Command::Status) {
            self.device_request()?.check_supported(&self.device)?;
        }
        Ok(())
    }

    /// `--device` as a typed request.
    ///
    /// # Errors
    /// [`ConfigError::Device`] where the text names none (only possible where the field was set without [`Settings::set`]).
    pub fn device_request(&self) -> Result<DeviceRequest, ConfigError> {
        Ok(DeviceRequest::parse(&self.device)?)
    }

    /// Ranks that `--device` stands for.
    ///
    /// # Errors
    /// As [`Settings::device_request`].
    pub fn ranks(&self) -> Result<usize, ConfigError> {
        Ok(self.device_request()?.ranks())
    }

    /// Threads that prepare batches: what was given, at least 1, otherwise the smaller of 8 and the processor cores of a rank.
    pub fn workers_or_default(&self, cores: usize) -> usize {
        self.workers.unwrap_or(cores.min(8)).max(1)
    }

    /// Threads that compute: what was given, otherwise one per processor core.
    pub fn threads_or_default(&self, cores: usize) -> usize {
        self.threads.unwrap_or(cores).max(1)
    }
}

/// The names of all options, for "did you mean".
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().map(|spec| spec.key)
}

/// Settings of a test: as if these options had been given.
#[cfg(test)]
pub(crate) fn settings(options: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    for (name, value) in options {
        settings.set(name, value).unwrap();
    }
    settings
}
