//! Starting again after a failure: when, on how many ranks, and from where.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::RanksError;
use crate::cli::outcome::USAGE;
use crate::config::Settings;
use crate::dist::launch::Again;
use crate::dist::store::StoreServer;
use crate::train::newest_checkpoint;

/// Key of the run's folder on the board.
pub(super) const RUN: &str = "run";

/// The attempts of a run.
pub(super) struct Attempts {
    left: usize,
    /// Least number of ranks to go on with, where it may change.
    elastic: Option<usize>,
    /// Of the next attempt.
    pub ranks: usize,
    pub again: Option<Again>,
    /// Who failed last, and from which checkpoint the run went on then.
    last: Option<(usize, Option<PathBuf>)>,
}

impl Attempts {
    pub(super) fn new(settings: &Settings, ranks: usize) -> Self {
        Self {
            left: settings.max_restarts,
            elastic: settings.elastic,
            ranks,
            again: None,
            last: None,
        }
    }

    /// Prepares another attempt after `error`, if there is to be one; what to say then.
    pub(super) fn next(
        &mut self,
        error: &anyhow::Error,
        board: &StoreServer,
        interrupted: &AtomicBool,
    ) -> Option<String> {
        let Some(RanksError::Rank { rank, code, text }) = error.downcast_ref() else {
            return None;
        };
        if self.left == 0 || *code == USAGE || interrupted.load(Ordering::Relaxed) {
            return None;
        }
        self.left -= 1;
        let run = board.values(RUN).into_iter().next();
        let run = run.and_then(|(_, path)| String::from_utf8(path).ok());
        let checkpoint = run.as_deref().and_then(|r| newest_checkpoint(Path::new(r)));
        let from = match (&checkpoint, &run) {
            (Some(_), Some(run)) => format!("from the last checkpoint of {run}"),
            _ => "from the beginning".into(),
        };
        let failed = (*rank, checkpoint.clone());
        let mut fewer = String::new();
        if let Some(least) = self.elastic
            && self.last.as_ref() == Some(&failed)
            && self.ranks > least.max(1)
        {
            self.ranks -= 1;
            fewer = format!(
                " on {} rank{} (--elastic): rank {rank} failed twice without a new checkpoint",
                self.ranks,
                if self.ranks == 1 { "" } else { "s" }
            );
        }
        self.last = Some(failed);
        let restarts = self.again.as_ref().map_or(0, |a| a.restarts) + 1;
        self.again = Some(Again {
            restarts,
            fault: format!("rank {rank}: {text}"),
            run: checkpoint.and(run),
        });
        Some(format!(
            "rank {rank}: {text}; all ranks start again {from}{fewer} (restart {restarts} of {})",
            restarts + self.left
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::settings;
    use crate::dist::testing::local;

    #[test]
    fn a_rank_that_fails_twice_at_the_same_place_is_left_out_where_that_is_allowed() {
        let t = tempfile::tempdir().unwrap();
        let board = StoreServer::bind(local(), 0, "t").unwrap();
        let folder = t.path().display().to_string();
        board.set(RUN, folder.as_bytes());
        let checkpoint = |n: usize| {
            std::fs::create_dir_all(t.path().join("checkpoints")).unwrap();
            let name = format!("checkpoints/epoch-00000-batch-{n:07}.ckpt");
            std::fs::write(t.path().join(name), "").unwrap();
        };
        let failure = |rank| {
            anyhow::Error::from(RanksError::Rank {
                rank,
                code: 1,
                text: "gone".into(),
            })
        };
        let calm = AtomicBool::new(false);
        let s = settings(&[("max-restarts", "5"), ("elastic", "2")]);
        let mut a = Attempts::new(&s, 3);
        let mut next = |rank| {
            a.next(&failure(rank), &board, &calm)
                .map(|line| (line, a.ranks, a.again.clone().unwrap()))
        };
        let (line, ranks, again) = next(1).unwrap();
        assert!(
            line.contains(
                "rank 1: gone; all ranks start again from the beginning (restart 1 of 5)"
            ),
            "{line}"
        );
        assert_eq!((ranks, again.run), (3, None));
        checkpoint(1);
        let (_, ranks, again) = next(1).unwrap();
        assert_eq!(
            (ranks, again.run, again.restarts),
            (3, Some(folder), 2),
            "it had come further"
        );
        let (line, ranks, _) = next(1).unwrap();
        assert!(
            ranks == 2 && line.contains("on 2 ranks (--elastic): rank 1"),
            "{line}"
        );
        assert_eq!(next(1).unwrap().1, 2, "not below --elastic");
        checkpoint(2);
        assert_eq!(next(0).unwrap().2.restarts, 5);
        assert!(next(0).is_none(), "no restarts are left");
    }

    #[test]
    fn wrong_usage_and_an_interruption_are_no_reason_to_start_again() {
        let board = StoreServer::bind(local(), 0, "t").unwrap();
        let s = settings(&[("max-restarts", "5")]);
        let error = |code| {
            anyhow::Error::from(RanksError::Rank {
                rank: 0,
                code,
                text: "x".into(),
            })
        };
        let next = |code, interrupted| {
            Attempts::new(&s, 2).next(&error(code), &board, &AtomicBool::new(interrupted))
        };
        assert!(next(1, false).is_some());
        assert!(next(USAGE, false).is_none());
        assert!(next(1, true).is_none());
    }
}
