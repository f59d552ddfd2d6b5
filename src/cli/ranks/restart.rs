//! `--max-restarts`: after a failure all ranks start again, from the last checkpoint of their run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{ANSWER, board};
use crate::cli::outcome::{FAILED, Outcome, code_of, one_line};
use crate::dist::launch::Environment;
use crate::dist::store::{StoreClient, StoreServer};
use crate::report::Console;
use crate::train::RESTARTS;

/// Key of the run's folder on the board.
const FOLDER: &str = "folder";

/// Tells the first process which folder the run has, so that it can start it again. To be called by rank 0.
pub fn began(folder: &Path) {
    let Ok(Some(environment)) = Environment::read() else {
        return;
    };
    // Without it a restart begins anew; this run goes on.
    let _ = StoreClient::connect(environment.board(), &environment.token, ANSWER)
        .and_then(|store| store.set(FOLDER, folder.display().to_string().as_bytes()));
}

/// How often ranks were started again, and with what.
pub(super) struct Restarts {
    done: usize,
    most: usize,
    folder: Option<PathBuf>,
}

impl Restarts {
    pub(super) fn new(most: usize) -> Self {
        Self {
            done: 0,
            most,
            folder: None,
        }
    }

    /// Whether the ranks, whose board this was, are to start again after this end; says so.
    pub(super) fn again(
        &mut self,
        board: &StoreServer,
        end: &anyhow::Result<Outcome>,
        interrupted: &AtomicBool,
    ) -> bool {
        let Err(error) = end else { return false };
        if self.done >= self.most
            || interrupted.load(Ordering::Relaxed)
            || code_of(error) != FAILED
            || board::of(board).is_empty()
        {
            return false;
        }
        if let Some((_, folder)) = board.values(FOLDER).pop() {
            self.folder = Some(PathBuf::from(String::from_utf8_lossy(&folder).into_owned()));
        }
        self.done += 1;
        let from = match self.resumed() {
            Some(folder) => format!("from the last checkpoint of {}", folder.display()),
            None => "from the beginning".into(),
        };
        Console::new().warn(format!(
            "{}; all ranks start again {from} (restart {} of {})",
            one_line(error),
            self.done,
            self.most
        ));
        true
    }

    /// The run to go on with.
    fn resumed(&self) -> Option<&Path> {
        let folder = self.folder.as_deref()?;
        let is_checkpoint = |e: std::fs::DirEntry| e.path().extension() == Some(OsStr::new("ckpt"));
        let mut entries = std::fs::read_dir(folder.join("checkpoints")).ok()?;
        entries
            .any(|e| e.is_ok_and(is_checkpoint))
            .then_some(folder)
    }

    /// What a rank's command line gets now.
    pub(super) fn apply(&self, command: &mut Process) {
        if self.done == 0 {
            return;
        }
        command.env(RESTARTS, self.done.to_string());
        if let Some(folder) = self.resumed() {
            command.arg("--resume").arg(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ranks::RanksError;
    use crate::cli::ranks::board::{Kind, Report};

    fn board_with_error() -> StoreServer {
        let board = StoreServer::bind(crate::dist::testing::local(), 0, "t").unwrap();
        let report = Report {
            rank: 1,
            kind: Kind::Killed,
            code: FAILED,
            text: "its process was killed".into(),
            order: 0,
        };
        board.set(&report.key(), &report.encode());
        board
    }

    fn failed(code: u8) -> anyhow::Result<Outcome> {
        let text = "its process was killed".into();
        Err(RanksError::Rank {
            rank: 1,
            code,
            text,
        }
        .into())
    }

    fn words(restarts: &Restarts) -> Vec<String> {
        let mut command = Process::new("yolo-train");
        restarts.apply(&mut command);
        let words = command.get_args().map(|w| w.to_string_lossy().into_owned());
        words.collect()
    }

    #[test]
    fn ranks_start_again_as_often_as_allowed_and_from_a_checkpoint_where_there_is_one() {
        let t = tempfile::tempdir().unwrap();
        let board = board_with_error();
        let calm = AtomicBool::new(false);
        let mut restarts = Restarts::new(2);
        assert_eq!(words(&restarts), [""; 0]);
        assert!(restarts.again(&board, &failed(FAILED), &calm));
        assert_eq!(words(&restarts), [""; 0], "nothing to go on with");
        let folder = t.path().to_str().unwrap();
        board.set(FOLDER, folder.as_bytes());
        std::fs::create_dir(t.path().join("checkpoints")).unwrap();
        std::fs::write(t.path().join("checkpoints/epoch-1.ckpt"), "").unwrap();
        assert!(restarts.again(&board, &failed(FAILED), &calm));
        assert_eq!(words(&restarts), ["--resume", folder]);
        assert!(
            !restarts.again(&board, &failed(FAILED), &calm),
            "two are enough"
        );
    }

    #[test]
    fn what_the_user_wanted_or_got_wrong_is_not_started_again() {
        let board = board_with_error();
        let (calm, asked) = (AtomicBool::new(false), AtomicBool::new(true));
        let mut restarts = Restarts::new(2);
        assert!(!restarts.again(&board, &Ok(Outcome::Finished), &calm));
        assert!(!restarts.again(&board, &Ok(Outcome::Interrupted), &calm));
        assert!(!restarts.again(&board, &failed(2), &calm));
        assert!(!restarts.again(&board, &failed(FAILED), &asked));
        assert!(!Restarts::new(0).again(&board, &failed(FAILED), &calm));
    }
}
