//! The program: reads the command line, hands it to its command, ends with an exit code that says how it went.

use std::process::ExitCode;

use yolo_train::cli::{self, Outcome, Parsed};
use yolo_train::config::Command;

fn main() -> ExitCode {
    ExitCode::from(cli::exit_code(&run()))
}

fn run() -> anyhow::Result<Outcome> {
    match cli::parse(std::env::args_os())? {
        Parsed::Show(text) => {
            text.print()?;
            Ok(Outcome::Finished)
        }
        Parsed::Run(Command::Train, settings) => cli::train::run(&settings),
        Parsed::Run(Command::Val, settings) => cli::val::run(&settings),
        Parsed::Run(Command::Predict, settings) => cli::predict::run(&settings),
        Parsed::Run(Command::Info, settings) => cli::info::run(&settings),
        Parsed::Run(Command::Bench, settings) => cli::bench::run(&settings),
        Parsed::Run(Command::Doctor, settings) => cli::doctor::run(&settings),
        Parsed::Run(Command::Status, settings) => cli::status::run(&settings),
    }
}
