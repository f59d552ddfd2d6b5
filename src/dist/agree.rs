//! After work that each rank does for itself: how did it end on the others?

use super::buffer::Buffer;
use super::error::DistError;
use super::group::{Call, ProcessGroup, Work};
use super::handle::Output;

/// How a rank's part of some work ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// With something for the others; may be empty.
    Done(Vec<u8>),
    /// It was asked to end.
    Interrupted,
    /// With an error, in words.
    Failed(String),
}

/// How the work ended on all ranks; every rank comes to the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Agreement {
    /// What each rank had for the others.
    Done(Vec<Vec<u8>>),
    /// At least one rank was interrupted, none failed.
    Interrupted,
    /// The first rank that failed.
    Failed { rank: usize, reason: String },
}

const DONE: u8 = 0;
const INTERRUPTED: u8 = 1;
const FAILED: u8 = 2;

/// Exchanges reports. Every rank comes here however its work ended, so that none waits in a collective that another one never
/// starts. The deadline of `call` has to cover the difference between the first and the last rank.
///
/// # Errors
/// Those of a collective.
pub fn agree(group: &dyn ProcessGroup, call: Call, own: Report) -> Result<Agreement, DistError> {
    let message = Buffer::U8(own.to_bytes());
    let Output::Many(all) = group.run(call, Work::AllGatherVariable(message))? else {
        unreachable!("an all-gather gives many");
    };
    let (mut done, mut interrupted) = (Vec::with_capacity(all.len()), false);
    for (rank, message) in all.iter().enumerate() {
        match Report::from_bytes(message.bytes()) {
            Report::Done(bytes) => done.push(bytes),
            Report::Interrupted => interrupted = true,
            Report::Failed(reason) => return Ok(Agreement::Failed { rank, reason }),
        }
    }
    Ok(if interrupted {
        Agreement::Interrupted
    } else {
        Agreement::Done(done)
    })
}

impl Report {
    fn to_bytes(&self) -> Vec<u8> {
        let (kind, rest): (u8, &[u8]) = match self {
            Report::Done(bytes) => (DONE, bytes),
            Report::Interrupted => (INTERRUPTED, &[]),
            Report::Failed(reason) => (FAILED, reason.as_bytes()),
        };
        [&[kind], rest].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Report {
        match bytes {
            [DONE, rest @ ..] => Report::Done(rest.to_vec()),
            [INTERRUPTED] => Report::Interrupted,
            [FAILED, reason @ ..] => Report::Failed(String::from_utf8_lossy(reason).into_owned()),
            _ => Report::Failed("it sent no report that this program knows".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::tcp::Transport;
    use crate::dist::testing::threads;

    /// What each rank concludes from the reports of ranks 0, 1, ….
    fn agreed(reports: &[Report]) -> Agreement {
        let all = threads(reports.len(), Transport::Auto, |group| {
            agree(group, Call::latency("done"), reports[group.rank()].clone()).unwrap()
        });
        assert!(all.iter().all(|a| *a == all[0]), "{all:?}");
        all[0].clone()
    }

    #[test]
    fn every_rank_learns_what_the_others_report() {
        let done = |text: &str| Report::Done(text.into());
        assert_eq!(agreed(&[done("a")]), Agreement::Done(vec!["a".into()]));
        assert_eq!(
            agreed(&[done(""), done("long"), done("\0")]),
            Agreement::Done(vec!["".into(), "long".into(), "\0".into()])
        );
        let interrupted = [done(""), Report::Interrupted, done("")];
        assert_eq!(agreed(&interrupted), Agreement::Interrupted);
        let failed = |text: &str| Report::Failed(text.into());
        assert_eq!(
            agreed(&[Report::Interrupted, done(""), failed("b"), failed("c")]),
            Agreement::Failed {
                rank: 2,
                reason: "b".into()
            }
        );
    }

    #[test]
    fn a_report_that_is_none_is_a_failure() {
        for bytes in [&[][..], &[9], &[INTERRUPTED, 1]] {
            assert!(matches!(Report::from_bytes(bytes), Report::Failed(_)));
        }
    }
}
