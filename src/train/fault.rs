//! Faults on purpose: a hook for tests of what happens when a rank fails, and nothing else. The environment variable
//! `YOLO_TRAIN_FAULT` names one, for example `rank:1,step:3,place:forward,kind:hang`; it happens once, the first time that
//! the rank comes to the place with so many optimizer steps done, or more; with `restart:1` in it after the first restart
//! (`--max-restarts`), otherwise before any. Without the variable a place costs one look at a static.

use super::error::TrainError;
use crate::dist::{DistError, ProcessGroup};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const VARIABLE: &str = "YOLO_TRAIN_FAULT";

macro_rules! words {
    ($(#[$meta:meta])* $type:ident { $($variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $type { $($variant,)* }

        impl $type {
            fn read(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)*
                    _ => None,
                }
            }

            fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }
    };
}

words! {
    /// Where it happens.
    Place {
        DataScan = "scan",
        Forward = "forward",
        AllReduce = "all-reduce",
        Optimizer = "optimizer",
        Checkpoint = "checkpoint",
        Validation = "validation",
    }
}

words! {
    /// What happens.
    Kind {
        Kill = "kill",
        Panic = "panic",
        Hang = "hang",
        Stop = "stop",
        Error = "error",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fault {
    rank: usize,
    step: u64,
    place: Place,
    kind: Kind,
    /// How often the ranks were started again before.
    restart: usize,
}

impl Fault {
    fn read(text: &str) -> Option<Self> {
        let (mut rank, mut step, mut place, mut kind) = (None, 0, None, None);
        let mut restart = 0;
        for part in text.split(',') {
            match part.split_once(':')? {
                ("rank", value) => rank = Some(value.parse().ok()?),
                ("restart", value) => restart = value.parse().ok()?,
                ("step", value) => step = value.parse().ok()?,
                ("place", value) => place = Some(Place::read(value)?),
                ("kind", value) => kind = Some(Kind::read(value)?),
                _ => return None,
            }
        }
        Some(Self {
            rank: rank?,
            step,
            place: place?,
            kind: kind?,
            restart,
        })
    }
}

/// The fault of this process. A variable that makes no sense ends the program: a test that tests nothing is worse.
fn wanted() -> Option<&'static Fault> {
    static FAULT: OnceLock<Option<Fault>> = OnceLock::new();
    let read = || {
        let text = std::env::var(VARIABLE).ok()?;
        let fault = Fault::read(&text);
        assert!(fault.is_some(), "{VARIABLE}={text} makes no sense");
        fault
    };
    FAULT.get_or_init(read).as_ref()
}

/// The fault that is wanted at this place of this rank, if it is, happens.
///
/// # Errors
/// [`TrainError::Injected`], the kind `error`.
pub(crate) fn at(group: &dyn ProcessGroup, place: Place) -> Result<(), TrainError> {
    let Some(fault) = wanted() else {
        return Ok(());
    };
    let step = group.pulse().step();
    static DONE: AtomicBool = AtomicBool::new(false);
    if (fault.rank, fault.place) != (group.rank(), place)
        || step < fault.step
        || crate::dist::launch::restarts() != fault.restart
        || DONE.swap(true, Ordering::Relaxed)
    {
        return Ok(());
    }
    match fault.kind {
        Kind::Kill => send("KILL"),
        Kind::Stop => {
            // as in life, where the others have heard of the place before
            std::thread::sleep(Duration::from_millis(600));
            send("STOP");
        }
        Kind::Panic => panic!(
            "a fault ({}) was injected at {}",
            fault.kind.word(),
            place.word()
        ),
        Kind::Hang => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        Kind::Error => {
            return Err(TrainError::Injected {
                rank: fault.rank,
                step,
                place: place.word(),
            });
        }
    }
    Ok(())
}

/// As [`at`], where only errors of the group are known: the group is ended.
///
/// # Errors
/// [`DistError::Aborted`] by this rank.
pub(crate) fn within(group: &dyn ProcessGroup, place: Place) -> Result<(), DistError> {
    at(group, place).map_err(|e| {
        let reason = e.to_string();
        group.abort(&reason);
        DistError::Aborted {
            by: group.rank(),
            reason,
        }
    })
}

/// A signal to this very process that it cannot handle.
fn send(name: &str) {
    #[cfg(unix)]
    {
        use rustix::process::{Signal, getpid, kill_process};
        let signal = match name {
            "KILL" => Signal::KILL,
            _ => Signal::STOP,
        };
        kill_process(getpid(), signal).expect("a process may send itself signals");
    }
    #[cfg(not(unix))]
    panic!("no signal {name} on this system");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_read_from_its_text_or_refused() {
        let fault = Fault {
            rank: 1,
            step: 3,
            place: Place::AllReduce,
            kind: Kind::Hang,
            restart: 0,
        };
        assert_eq!(
            Fault::read("rank:1,step:3,place:all-reduce,kind:hang"),
            Some(fault)
        );
        let first = Fault::read("kind:kill,place:scan,rank:0").unwrap();
        assert_eq!((first.step, first.place), (0, Place::DataScan));
        for text in [
            "",
            "rank:1",
            "rank:x,place:scan,kind:kill",
            "rank:1,place:moon,kind:kill",
            "rank:1,place:scan,kind:rust",
            "rank:1,place:scan,kind:kill,more:1",
        ] {
            assert_eq!(Fault::read(text), None, "{text}");
        }
    }

    #[test]
    fn without_the_variable_nothing_happens() {
        let group = crate::dist::Single::new();
        assert!(at(&group, Place::Forward).is_ok());
        assert_eq!(within(&group, Place::AllReduce), Ok(()));
    }
}
