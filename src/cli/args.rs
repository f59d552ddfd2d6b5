//! From the words of the command line to settings. The clap commands are built from the table of options; what clap finds
//! wrong is said in our own one-liners.

use std::ffi::OsString;

use clap::builder::Styles;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches};

use crate::config::{
    Command, ConfigError, DefaultText, Kind, OptionSpec, Place, SOURCES, Settings, find,
    foreign_option, nearest, options_of,
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
    let words = words.into_iter().map(without_negation);
    let words = with_run_named(with_negative_values(words));
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

/// `--no-val` is `--val=false`, for every flag.
fn without_negation(word: OsString) -> OsString {
    let flag = word
        .to_str()
        .and_then(|w| w.strip_prefix("--no-").or(w.strip_prefix("--no_")))
        .and_then(find)
        .filter(|spec| spec.kind == Kind::Flag);
    flag.map_or(word, |spec| format!("--{}=false", spec.name).into())
}

/// `status RUN` is `status --run RUN`.
fn with_run_named(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_option = |w: &OsString| w.as_encoded_bytes().starts_with(b"-");
    if words.get(1).is_some_and(|w| w == Command::Status.name())
        && words.get(2).is_some_and(|w| !is_option(w))
    {
        words.insert(2, "--run".into());
    }
    words
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
                .is_some_and(|spec| !matches!(spec.kind, Kind::Flag | Kind::OptionalText(_)))
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
                Command::Predict => "Find objects in images, and draw or write down what was found",
                Command::Info => "Show a network's layers, parameters and operations",
                Command::Bench => "Time training steps on this machine",
                Command::Status => "Show what the ranks of a run do now: yolo-train status RUN",
                Command::Doctor => "Look at this machine: what training needs and what it finds",
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
        Kind::Flag | Kind::OptionalText(_) => {
            argument.num_args(0..=1).default_missing_value("true")
        }
        // a shell makes several words of a pattern without quotes
        Kind::Text(SOURCES) => argument.num_args(1..),
        _ => argument.num_args(1),
    }
}

fn given(command: Command, matches: &ArgMatches) -> Vec<(&'static OptionSpec, String)> {
    options_of(command)
        .filter_map(|spec| {
            let words: Vec<&str> = matches
                .get_many::<String>(spec.name)?
                .map(String::as_str)
                .collect();
            Some((spec, words.join(",")))
        })
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
        None if word.starts_with(|c: char| c.is_ascii_digit()) => {
            "an option takes one word; lists are written with commas (--classes 0,2)".to_owned()
        }
        None if command == Command::Predict => {
            format!("images are given with --source {word}")
        }
        None => match nearest(&word, Command::ALL.map(Command::name)) {
            Some(command) => format!("did you mean {command}?"),
            None => format!(
                "commands are {}, and options begin with --",
                Command::ALL.map(Command::name).join(", ")
            ),
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(words: &str) -> Result<Parsed, ConfigError> {
        let words = ["yolo-train"].into_iter().chain(words.split_whitespace());
        parse(words.map(OsString::from))
    }

    fn run(words: &str) -> (Command, Settings) {
        match parsed(words) {
            Ok(Parsed::Run(command, settings)) => (command, *settings),
            other => panic!("{words}: {other:?}"),
        }
    }

    fn message(words: &str) -> String {
        match parsed(words) {
            Err(error) => error.to_string(),
            other => panic!("{words}: {other:?}"),
        }
    }

    #[test]
    fn training_is_the_default_command() {
        for words in ["", "--data x.yaml --epochs 3", "--cos-lr"] {
            assert_eq!(run(words), run(&format!("train {words}")));
            assert_eq!(run(words).0, Command::Train);
        }
    }

    #[test]
    fn status_takes_its_run_as_a_word() {
        for words in [
            "status runs/detect/train --json",
            "status --json --run runs/detect/train",
        ] {
            let (command, settings) = run(words);
            assert_eq!(command, Command::Status);
            assert_eq!(
                (&settings.run[..], settings.json),
                ("runs/detect/train", true)
            );
        }
        assert_eq!(message("status"), "`yolo-train status` needs --run");
        assert!(message("status a b").starts_with("unexpected word b"));
    }

    #[test]
    fn flags_take_an_optional_value() {
        for (words, cos_lr) in [
            ("", false),
            ("--cos-lr", true),
            ("--cos-lr --epochs 3", true),
            ("--cos-lr=true", true),
            ("--cos-lr false", false),
            ("--cos-lr=false", false),
            ("--cos_lr", true),
        ] {
            let settings = run(words).1;
            assert_eq!(settings.cos_lr, cos_lr, "{words}");
            assert_eq!(settings.is_given("cos-lr"), !words.is_empty(), "{words}");
        }
        for (words, val) in [
            ("--no-val", false),
            ("--no_val", false),
            ("--no-val --val", true),
        ] {
            let settings = run(words).1;
            assert_eq!(
                (settings.val, settings.is_given("val")),
                (val, true),
                "{words}"
            );
        }
    }

    #[test]
    fn both_spellings_and_both_forms_are_understood_and_the_last_counts() {
        for words in [
            "--close-mosaic 5",
            "--close_mosaic 5",
            "--close-mosaic=5",
            "--close-mosaic 7 --close_mosaic 5",
        ] {
            assert_eq!(run(words).1.close_mosaic, 5, "{words}");
        }
    }

    #[test]
    fn negative_values_are_values() {
        assert_eq!(run("--save-period -1").1.save_period, -1);
        assert!(
            message("--lr0 -1").starts_with("bad value for --lr0 on the command line: given -1")
        );
        assert!(
            message("--lr0 -nan")
                .starts_with("bad value for --lr0 on the command line: given -nan")
        );
        #[cfg(not(feature = "cuda"))]
        assert_eq!(
            message("--device -1,-1"),
            "device -1,-1 cannot be used: this build has no CUDA; build one that has: cargo install --path . --features cuda, or give --device cpu"
        );
    }

    #[test]
    fn validation_and_description_have_their_own_options() {
        let (command, settings) = run("val --weights w.safetensors --data d.yaml --split test");
        assert_eq!(command, Command::Val);
        assert_eq!(settings.weights, "w.safetensors");
        assert_eq!(settings.split.name(), "test");
        let (command, settings) = run("info --model yolov8s --nc 3 --imgsz 320");
        assert_eq!(command, Command::Info);
        assert_eq!((settings.nc, settings.imgsz), (3, 320));
        assert_eq!(message("val"), "`yolo-train val` needs --weights");
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        for (words, expected) in [
            (
                "--epoch 3",
                "unknown option --epoch; did you mean --epochs? (see --help)",
            ),
            (
                "--batch 3 --epoch=3",
                "unknown option --epoch; did you mean --epochs? (see --help)",
            ),
            ("--frobnicate", "unknown option --frobnicate (see --help)"),
            ("-e 3", "unknown option -e (see --help)"),
            (
                "--no-epochs",
                "unknown option --no-epochs; did you mean --epochs? (see --help)",
            ),
            (
                "--cache ram",
                "option --cache is known from other trainers but not supported yet: images are read from disk",
            ),
            (
                "--exist_ok",
                "option --exist_ok is known from other trainers but not needed: a run never overwrites another one",
            ),
            (
                "--epochs",
                "--epochs on the command line needs a value: a whole number from 1 to 1000000",
            ),
            (
                "--epochs --batch 3",
                "--epochs on the command line needs a value: a whole number from 1 to 1000000",
            ),
            (
                "--split test",
                "option --split belongs to `yolo-train val`, not to `yolo-train train`",
            ),
            (
                "val --weights w --epochs 3",
                "option --epochs belongs to `yolo-train train`, not to `yolo-train val`",
            ),
            (
                "epochs=10",
                "unexpected word epochs=10 on the command line; options are written --epochs 10",
            ),
            (
                "train --batch 2 close_mosaic=3",
                "unexpected word close_mosaic=3 on the command line; options are written --close-mosaic 3",
            ),
            (
                "epoch=10",
                "unknown option --epoch; did you mean --epochs? (see --help)",
            ),
            (
                "trian",
                "unexpected word trian on the command line; did you mean train?",
            ),
            (
                "--epochs 3 val",
                "unexpected word val on the command line; a command comes before all options: yolo-train val …",
            ),
            (
                "--classes 0 2",
                "unexpected word 2 on the command line; an option takes one word; lists are written with commas (--classes 0,2)",
            ),
        ] {
            assert_eq!(message(words), expected, "{words}");
        }
    }

    #[test]
    fn help_shows_every_option_under_its_group() {
        for command in Command::ALL {
            let Ok(Parsed::Show(help)) = parsed(&format!("{} --help", command.name())) else {
                panic!("no help");
            };
            let help = help.to_string();
            for spec in options_of(command) {
                assert!(help.contains(&format!("--{} ", spec.name)), "{}", spec.name);
                assert!(
                    help.contains(&format!("\n{}:\n", spec.group)),
                    "{}",
                    spec.group
                );
            }
        }
    }

    proptest! {
        #[test]
        fn any_words_give_settings_or_one_line(words in proptest::collection::vec(
            prop_oneof![any::<String>(), Just("--epochs".to_owned()), Just("val".to_owned()), Just("-1".to_owned())], 0..5)
        ) {
            let words = ["yolo-train".to_owned()].into_iter().chain(words);
            if let Err(error) = parse(words.map(OsString::from)) {
                let message = error.to_string();
                prop_assert!(!message.contains(['\n', '\r']), "{}", message);
            }
        }
    }
}
