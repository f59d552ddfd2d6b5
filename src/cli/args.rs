//! From the words of the command line to settings. The clap commands are built from the table of options; what clap finds
//! wrong is said in our own one-liners.

use std::ffi::OsString;

use clap::builder::Styles;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches};

use crate::config::{
    Command, ConfigError, DefaultText, Kind, OptionSpec, Place, Settings, find, foreign_option,
    nearest, options_of,
};

/// What the command line asks for.
#[derive(Debug)]
pub enum Parsed {
    /// To show the help or the version; `print` shows it, with colours where the terminal and `NO_COLOR` allow.
    Show(clap::Error),
    Run(Command, Box<Settings>),
}

/// Reads the command line; the first word is the program's name.
///
/// # Errors
/// [`ConfigError`], each a single line.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Parsed, ConfigError> {
    let words = with_negative_values(words);
    let matches = match program().try_get_matches_from(&words) {
        Ok(matches) => matches,
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            ) =>
        {
            return Ok(Parsed::Show(error));
        }
        Err(error) => return Err(explain(&error, asked_for(&words))),
    };
    let (command, matches) = match matches.subcommand() {
        Some((name, matches)) => (
            named(name).expect("clap knows the subcommands of `program` only"),
            matches,
        ),
        None => (Command::Train, &matches),
    };
    let settings = Settings::resolve(command, &given(command, matches))?;
    Ok(Parsed::Run(command, Box::new(settings)))
}

/// The words, with `--device -1,-1` as `--device=-1,-1`: to clap only plain negative numbers can be values that begin with a
/// dash. (`-nan` and `-inf` are joined, too, so that they are refused as what they are.)
fn with_negative_values(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    for word in words {
        let is_negative = word.to_str().is_some_and(|word| {
            let first = word
                .strip_prefix('-')
                .and_then(|rest| rest.split(',').next());
            first.is_some_and(|first| first.parse::<f64>().is_ok())
        });
        let takes_value = |previous: &OsString| {
            let name = previous
                .to_str()
                .and_then(|previous| previous.strip_prefix("--"));
            name.and_then(find)
                .is_some_and(|spec| spec.kind != Kind::Flag)
        };
        match joined.last_mut() {
            Some(previous) if is_negative && takes_value(previous) => {
                previous.push("=");
                previous.push(word);
            }
            _ => joined.push(word),
        }
    }
    joined
}

fn named(word: &str) -> Option<Command> {
    Command::ALL
        .into_iter()
        .find(|command| command.name() == word)
}

/// The command that a command line with an error in it was meant for: a subcommand is the first word, if any.
fn asked_for(words: &[OsString]) -> Command {
    words
        .get(1)
        .and_then(|word| word.to_str())
        .and_then(named)
        .unwrap_or(Command::Train)
}

/// Training is the default command, so that the program itself takes the options of training, too.
fn program() -> clap::Command {
    let root = clap::Command::new("yolo-train")
        .version(env!("CARGO_PKG_VERSION"))
        .about(
            "Trains YOLO-style object detectors on COCO-format data. Without a command it trains.\n\
             All options, with what each allows: docs/options.md",
        )
        .args_conflicts_with_subcommands(true);
    Command::ALL
        .into_iter()
        .fold(with_options(root, Command::Train), |program, command| {
            let about = match command {
                Command::Train => "Train a network (the default command)",
                Command::Val => "Validate weights on a split of a data set",
                Command::Info => "Show a network's layers, parameters and operations",
            };
            let subcommand = clap::Command::new(command.name()).about(about);
            program.subcommand(with_options(subcommand, command))
        })
}

fn with_options(program: clap::Command, command: Command) -> clap::Command {
    options_of(command).fold(
        program
            .styles(Styles::styled())
            .args_override_self(true)
            .disable_help_subcommand(false),
        |program, spec| program.arg(argument(spec)),
    )
}

fn argument(spec: &'static OptionSpec) -> Arg {
    let default = match spec.default {
        DefaultText::Is(text) | DefaultText::Unset(text) => text,
    };
    let allowed = spec
        .kind
        .brief()
        .map(|allowed| format!("; {allowed}"))
        .unwrap_or_default();
    let argument = Arg::new(spec.name)
        .long(spec.name)
        .value_name(spec.kind.value_name())
        .action(ArgAction::Set)
        .help(format!("{} [default: {default}{allowed}]", spec.help))
        .help_heading(spec.group);
    let argument = if spec.key == spec.name {
        argument
    } else {
        argument.alias(spec.key)
    };
    match spec.kind {
        Kind::Flag => argument.num_args(0..=1).default_missing_value("true"),
        _ => argument.num_args(1),
    }
}

fn given(command: Command, matches: &ArgMatches) -> Vec<(&'static OptionSpec, String)> {
    options_of(command)
        .filter_map(|spec| Some((spec, matches.get_one::<String>(spec.name)?.clone())))
        .collect()
}

fn needs_value(spec: &OptionSpec) -> ConfigError {
    ConfigError::NeedsValue {
        option: format!("--{}", spec.name),
        allowed: spec.kind.allowed(),
    }
}

fn explain(error: &clap::Error, command: Command) -> ConfigError {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let argument = context(ContextKind::InvalidArg);
    match (error.kind(), argument) {
        (ErrorKind::UnknownArgument, Some(argument)) if argument.starts_with('-') => {
            unknown(&argument, command)
        }
        (ErrorKind::UnknownArgument, Some(word)) => unexpected(word, command),
        // The second: a word after options, where clap expects a command only before them.
        (ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict, _) => {
            let word = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            if word.starts_with("--") {
                unknown(&word, command)
            } else {
                unexpected(word, command)
            }
        }
        // The context reads "--epochs <N>".
        (ErrorKind::InvalidValue, Some(argument)) => match find(argument_name(&argument)) {
            Some(spec) => needs_value(spec),
            None => usage(error),
        },
        (ErrorKind::InvalidUtf8, _) => {
            ConfigError::Usage("the command line holds text that is not UTF-8".to_owned())
        }
        _ => usage(error),
    }
}

/// `epochs` of `--epochs`, `--epochs=3` and `--epochs <N>`.
fn argument_name(argument: &str) -> &str {
    let name = argument.trim_start_matches('-');
    name.split(['=', ' ']).next().unwrap_or(name)
}

fn unknown(argument: &str, command: Command) -> ConfigError {
    let name = argument_name(argument);
    match find(name).filter(|_| argument.starts_with("--")) {
        Some(spec) => ConfigError::OtherCommand {
            option: format!("--{}", spec.name),
            owner: spec.commands[0].name(),
            command: command.name(),
        },
        None => ConfigError::unknown(name, Some(command), Place::CommandLine),
    }
}

fn unexpected(word: String, command: Command) -> ConfigError {
    let assignment = word
        .split_once('=')
        .map(|(name, value)| (name.trim(), value.trim()));
    let advice = match assignment {
        Some((name, value)) => match find(name) {
            Some(spec) if spec.is_taken_by(command) => {
                format!("options are written --{} {value}", spec.name)
            }
            // Such as cache=ram, or epoch=3.
            _ => return unknown(&format!("--{name}"), command),
        },
        None if named(&word).is_some() => {
            format!("a command comes before all options: yolo-train {word} …")
        }
        None if find(&word).is_some() || foreign_option(&word).is_some() => {
            format!("options are written --{} VALUE", word.replace('_', "-"))
        }
        None => match nearest(&word, Command::ALL.map(Command::name)) {
            Some(command) => format!("did you mean {command}?"),
            None => "commands are train, val and info, and options begin with --".to_owned(),
        },
    };
    ConfigError::UnexpectedWord { word, advice }
}

/// Whatever else clap finds wrong: the first line of its message.
fn usage(error: &clap::Error) -> ConfigError {
    let message = error.to_string();
    let line = message.lines().next().unwrap_or_default();
    ConfigError::Usage(line.trim_start_matches("error: ").to_owned())
}
