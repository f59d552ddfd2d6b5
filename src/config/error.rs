//! What can be wrong with options. Every message is one line: what was given, where, what is allowed.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use super::device::DeviceError;
use super::foreign;
use super::kind::Kind;
use super::options::{Command, OptionSpec, find, options_of};
use super::settings::keys;
use super::suggest::nearest;

/// Where a value was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    CommandLine,
    /// Line and column count from 1.
    File {
        path: String,
        line: u64,
        column: u64,
    },
}

impl Place {
    /// An option as it is written there.
    pub(super) fn spelling(&self, spec: &OptionSpec) -> String {
        match self {
            Place::CommandLine => format!("--{}", spec.name),
            Place::File { .. } => spec.key.to_owned(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::CommandLine => f.write_str("on the command line"),
            Place::File { path, line, column } => write!(f, "at {path}:{line}:{column}"),
        }
    }
}

/// What is wrong with the options of a run. All of these are errors of usage (exit code 2).
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("unknown option {name}{}{}", shown_place(.place), shown_suggestion(.suggestion))]
    UnknownOption {
        name: String,
        place: Place,
        suggestion: Option<String>,
    },
    /// An option of other trainers; the reason says what is done instead.
    #[error("option {name}{} is known from other trainers but {reason}", shown_place(.place))]
    Foreign {
        name: String,
        place: Place,
        reason: String,
    },
    #[error("option {option} belongs to `yolo-train {owner}`, not to `yolo-train {command}`")]
    OtherCommand {
        option: String,
        owner: &'static str,
        command: &'static str,
    },
    #[error("bad value for {} {place}: given {}, allowed is {allowed}{}",
        .place.spelling(.option), shown(.given), shown_hint(.hint))]
    BadValue {
        option: &'static OptionSpec,
        place: Place,
        given: String,
        allowed: String,
        hint: Option<String>,
    },
    #[error("{option} on the command line needs a value: {allowed}")]
    NeedsValue { option: String, allowed: String },
    #[error("unexpected word {} on the command line; {advice}", shown(.word))]
    UnexpectedWord { word: String, advice: String },
    #[error("`yolo-train {command}` needs --{option}")]
    Missing {
        command: &'static str,
        option: &'static str,
    },
    #[error("{option} {place} is there twice (first in line {first_line}); leave one out")]
    Twice {
        option: String,
        place: Place,
        first_line: u64,
    },
    /// A `--cfg` file that is not what it should be: broken YAML, another shape.
    #[error("cannot use the options {place}: {message}")]
    Malformed { place: Place, message: String },
    #[error("cannot read the options in {}", .path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Anything else that is wrong with the command line.
    #[error("{0} (see --help)")]
    Usage(String),
}

impl ConfigError {
    /// For a name (without dashes) that is no option of a command, or, with `None`, no option at all.
    pub fn unknown(name: &str, command: Option<Command>, place: Place) -> Self {
        let dashes = match (&place, name.chars().count()) {
            (Place::File { .. }, _) => "",
            (Place::CommandLine, 1) => "-",
            (Place::CommandLine, _) => "--",
        };
        let spelt = shown(&format!("{dashes}{name}"));
        if let Some(reason) = foreign::reason(name) {
            return Self::Foreign {
                name: spelt,
                place,
                reason,
            };
        }
        let negated = name.strip_prefix("no-").or(name.strip_prefix("no_"));
        let flag = negated
            .and_then(find)
            .filter(|spec| spec.kind == Kind::Flag && command.is_some_and(|c| spec.is_taken_by(c)))
            .map(|spec| format!("--{} false", spec.name));
        let suggestion = match command {
            Some(command) => nearest(name, options_of(command).map(|spec| spec.name)),
            None => nearest(name, keys()),
        };
        Self::UnknownOption {
            name: spelt,
            place,
            suggestion: flag.or(suggestion.map(|name| format!("{dashes}{name}"))),
        }
    }
}

fn shown_place(place: &Place) -> String {
    match place {
        Place::CommandLine => String::new(),
        Place::File { .. } => format!(" {place}"),
    }
}

fn shown_suggestion(suggestion: &Option<String>) -> String {
    match suggestion {
        Some(name) => format!("; did you mean {name}? (see --help)"),
        None => " (see --help)".to_owned(),
    }
}

fn shown_hint(hint: &Option<String>) -> String {
    match hint {
        Some(hint) => format!("; {hint}"),
        None => String::new(),
    }
}

/// A user's text within a message: on one line, and not longer than it helps.
fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut shown: String = text.chars().take(LONGEST).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    let is_plain =
        !shown.is_empty() && shown.chars().all(|c| !c.is_control() && !c.is_whitespace());
    if is_plain {
        shown
    } else {
        format!("{shown:?}")
    }
}
