//! How a command ends: the exit code, and the one line on standard error where it failed.

use serde::Serialize;
use std::io::{self, ErrorKind, Write};

use super::ranks::RanksError;
use crate::config::ConfigError;
use crate::gpu::GpuError;

/// How a command ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Finished,
    /// Stopped in an orderly way by SIGINT or SIGTERM.
    Interrupted,
}

pub(super) const FAILED: u8 = 1;
pub(super) const USAGE: u8 = 2;
/// What a shell reports for a program that SIGINT has ended: 128 + 2.
pub(super) const INTERRUPTED: u8 = 130;

/// The exit code of a command's end: 0 finished, 1 failed, 2 wrong usage, 130 interrupted. Says on standard error what
/// failed, once and in one line. A reader of the output that has gone away is no failure.
pub fn exit_code(end: &anyhow::Result<Outcome>) -> u8 {
    match end {
        Ok(Outcome::Finished) => 0,
        Ok(Outcome::Interrupted) => INTERRUPTED,
        Err(error) if is_broken_pipe(error) => 0,
        Err(error) => {
            if !matches!(error.downcast_ref(), Some(RanksError::Told { .. })) {
                // Nobody is left to tell where standard error is closed.
                let _ = writeln!(io::stderr(), "yolo-train: error: {}", one_line(error));
            }
            code_of(error)
        }
    }
}

/// The exit code of a failure.
pub(super) fn code_of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<RanksError>() {
        Some(error) => error.code(),
        None if error.downcast_ref::<ConfigError>().is_some() => USAGE,
        None if error.downcast_ref::<GpuError>().is_some() => USAGE,
        None => FAILED,
    }
}

pub(super) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .root_cause()
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// An error with its causes, outermost first, in one line; a cause that the text before it already says is left out.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ");
        if text.is_empty() || line.contains(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    line
}

/// Writes to standard output. Unlike `print!` it does not panic where the reader has gone away.
///
/// # Errors
/// Those of writing; [`exit_code`] knows the one of a closed pipe.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Prints what a bench has found: one JSON object in a line where `json` asks for it, otherwise `table`.
///
/// # Errors
/// Those of [`print`].
pub(super) fn print_found(
    json: bool,
    found: &impl Serialize,
    table: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    print(&match json {
        true => format!("{}\n", serde_json::to_string(found)?),
        false => table(),
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn causes_are_joined_in_one_line_without_repetition() {
        let error = anyhow!("no such file\n  (os error 2)")
            .context("cannot read a.jpg: no such file (os error 2)")
            .context("epoch 3");
        assert_eq!(
            one_line(&error),
            "epoch 3: cannot read a.jpg: no such file (os error 2)"
        );
    }

    #[test]
    fn ends_have_their_exit_codes() {
        assert_eq!(exit_code(&Ok(Outcome::Finished)), 0);
        assert_eq!(exit_code(&Ok(Outcome::Interrupted)), 130);
        assert_eq!(exit_code(&Err(anyhow!("disk full"))), 1);
        let usage = ConfigError::Usage("wrong".into());
        let usage: anyhow::Result<Outcome> = Err(usage).context("reading the options");
        assert_eq!(exit_code(&usage), 2);
        assert_eq!(exit_code(&Err(RanksError::Told { code: 7 }.into())), 7);
        let gone: anyhow::Result<Outcome> =
            Err(io::Error::from(ErrorKind::BrokenPipe)).context("printing");
        assert_eq!(exit_code(&gone), 0);
    }
}
