//! What a rank does when something goes wrong: tell the others, leave its last collectives, say how it ended.

use super::error::TrainError;
use super::status::{Monitor, Phase};
use crate::dist::ProcessGroup;
use crate::report::Console;
use crate::report::events::EventLog;
use crate::report::files::write_atomic;
use serde_json::json;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// Does `work`. A panic in it is a defect of the program, which the other ranks are told of at once; then it goes on.
pub(super) fn panics<T>(group: &dyn ProcessGroup, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = (panic.downcast_ref::<&str>().copied())
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        group.abort(&format!(
            "rank {} panicked at {:?}: {}",
            group.rank(),
            group.pulse().last().place,
            said.unwrap_or("no message")
        ));
        resume_unwind(panic)
    })
}

/// `events.jsonl` of the run in `folder`, which gets the console's warnings, too.
///
/// # Errors
/// [`TrainError::Write`].
pub(super) fn events(folder: &Path, console: &Console) -> Result<EventLog, TrainError> {
    let path = folder.join("events.jsonl");
    let log = EventLog::append_to(&path).map_err(|source| TrainError::Write { path, source })?;
    let warnings = log.clone();
    console.on_warning(move |text| warnings.event("warning", json!({ "text": text })));
    Ok(log)
}

/// Ends the group where `end` is an error that the other ranks may not know of: they would wait for this rank.
pub(super) fn tell(group: &dyn ProcessGroup, end: &Result<(), TrainError>) {
    match end {
        Ok(()) => {}
        // all ranks come to these together
        Err(
            TrainError::Interrupted
            | TrainError::OtherRank { .. }
            | TrainError::Loader(_)
            | TrainError::Validate(_)
            | TrainError::Eval(_)
            | TrainError::NotFinite { .. }
            | TrainError::Diverged { .. }
            | TrainError::Dist(_),
        ) => {}
        Err(e) => group.abort(&e.to_string()),
    }
}

/// Says how a rank's part of the run ended, where people and programs look for it.
pub(super) fn end(
    end: &Result<(), TrainError>,
    folder: &Path,
    group: &dyn ProcessGroup,
    monitor: &Monitor,
    events: &EventLog,
    console: &Console,
) {
    let error = match end {
        Ok(()) => {
            events.event("end", json!({ "how": "finished" }));
            return monitor.end(Phase::Finished, None);
        }
        Err(TrainError::Interrupted) => {
            events.event("end", json!({ "how": "interrupted" }));
            return monitor.end(Phase::Interrupted, None);
        }
        Err(e) => e,
    };
    leave(end, folder, group, console);
    events.event("fault", json!({ "error": error.to_string() }));
    events.event(
        "end",
        json!({ "how": "failed", "error": error.to_string() }),
    );
    monitor.end(Phase::Failed, Some(error.to_string()));
}

/// Where the run failed, this rank leaves its last collectives in the run's folder and says so.
pub(super) fn leave(
    end: &Result<(), TrainError>,
    folder: &Path,
    group: &dyn ProcessGroup,
    console: &Console,
) {
    if group.size() == 1 || matches!(end, Ok(()) | Err(TrainError::Interrupted)) {
        return;
    }
    let left = leave_collectives(folder, group);
    if group.rank() == 0 {
        console.note(match &left {
            Some(path) => format!(
                "the last collectives of each rank: {}",
                path.with_file_name("collectives-rank-*.txt").display()
            ),
            None => "the last collectives could not be written".into(),
        });
    }
    if let Some(path) = left.filter(|p| !p.starts_with(folder)) {
        // not in the run's folder: whoever looks for them has to be told, by every rank
        Console::new().note(format!(
            "rank {} left its last collectives in {}",
            group.rank(),
            path.display()
        ));
    }
}

/// Writes this rank's last collectives into the run's folder, or where that cannot be, as on a machine that does not see
/// it, into the folder for temporary files. Where they are.
fn leave_collectives(folder: &Path, group: &dyn ProcessGroup) -> Option<PathBuf> {
    let rank = group.rank();
    let last = group.pulse().last();
    let mut text = format!(
        "The last collectives of rank {rank} of {}, oldest first, by the time since the ranks met.\n\
         Now at {:?} of step {}, for {:.1} s.\n\n",
        group.size(),
        last.place,
        last.step,
        last.age.as_secs_f64()
    );
    for entry in group.log() {
        let _ = writeln!(text, "{entry}");
    }
    // a disk that takes its time must not look like a rank that hangs (`exit_when_stuck`)
    group.beat("end of the run");
    let name = format!("collectives-rank-{rank}.txt");
    let elsewhere = format!("yolo-train-{}-{name}", std::process::id());
    [folder.join(name), std::env::temp_dir().join(elsewhere)]
        .into_iter()
        .find(|path| write_atomic(path, text.as_bytes()).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::tcp::Transport;
    use crate::dist::testing::threads;
    use crate::dist::{Buffer, Call, DistError, ReduceOp};

    #[test]
    fn a_panic_ends_the_other_ranks_and_tells_them_why() {
        let told = threads(2, Transport::Auto, |group| {
            if group.rank() == 1 {
                group.beat("forward");
                let panic = catch_unwind(AssertUnwindSafe(|| {
                    panics(group, || -> () { panic!("for this test") })
                }));
                assert!(panic.is_err(), "it goes on");
                return None;
            }
            let call = Call::latency("losses");
            let sum = group.all_reduce(call, ReduceOp::Sum, Buffer::F32(vec![1.0]));
            Some(sum.wait().unwrap_err())
        });
        let Some(DistError::Aborted { by: 1, reason }) = &told[0] else {
            panic!("{told:?}")
        };
        assert_eq!(reason, "rank 1 panicked at \"forward\": for this test");
    }

    #[test]
    fn collectives_are_left_with_name_step_and_state() {
        let t = tempfile::tempdir().unwrap();
        threads(2, Transport::Auto, |group| {
            group.pulse().set_step(12);
            for name in ["losses", "bucket 3"] {
                let call = Call::bulk(name);
                let sum = group.all_reduce(call, ReduceOp::Sum, Buffer::F32(vec![1.0; 10]));
                sum.wait().unwrap();
            }
            let path = leave_collectives(t.path(), group).unwrap();
            assert!(path.starts_with(t.path()));
        });
        for rank in 0..2 {
            let path = t.path().join(format!("collectives-rank-{rank}.txt"));
            let text = std::fs::read_to_string(path).unwrap();
            let lines: Vec<&str> = text.lines().skip(3).collect();
            assert_eq!(lines.len(), 2, "{text}");
            assert!(
                lines[1].contains("step 12") && lines[1].contains("bucket 3"),
                "{text}"
            );
            assert!(
                lines[1].contains("40 bytes") && lines[1].contains("done in"),
                "{text}"
            );
        }
    }

    #[test]
    fn without_the_runs_folder_collectives_are_left_elsewhere() {
        let t = tempfile::tempdir().unwrap();
        let path = leave_collectives(&t.path().join("not there"), &crate::dist::Single::new());
        let path = path.unwrap();
        assert!(path.exists() && !path.starts_with(t.path()));
        std::fs::remove_file(path).unwrap();
    }
}
