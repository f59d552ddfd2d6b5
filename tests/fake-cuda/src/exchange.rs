//! Messages between ranks: files in a folder. A message is written under another name, then linked to its own, so that it
//! is there as a whole or not at all; whoever it is for removes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between looks at a message that has not come.
const LOOK: Duration = Duration::from_micros(100);
/// Between looks at whether the sender lives.
const PULSE: Duration = Duration::from_millis(20);

/// Why nothing came.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Miss {
    Aborted,
    /// The process of the sender is gone.
    Dead,
}

pub struct Exchange {
    pub folder: PathBuf,
    pub rank: usize,
    pub world: usize,
    pub aborted: AtomicBool,
    /// Whether a dead sender is noticed.
    pub notices: bool,
}

impl Exchange {
    pub fn card(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("rank-{rank}"))
    }

    /// The card of a rank that has closed the communicator.
    pub fn left(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("left-{rank}"))
    }

    /// One content for several ranks, under names of their own.
    pub fn send(&self, names: &[String], parts: &[&[u8]]) {
        let own = self
            .folder
            .join(format!("writing-{}-{}", self.rank, names[0]));
        if fs::write(&own, parts.concat()).is_err() {
            return;
        }
        for name in names {
            let _ = fs::hard_link(&own, self.folder.join(name));
        }
        let _ = fs::remove_file(&own);
    }

    /// Takes a message of `from`.
    pub fn receive(&self, from: usize, name: &str) -> Result<Vec<u8>, Miss> {
        let path = self.folder.join(name);
        let mut looked = Instant::now();
        loop {
            if self.aborted.load(Ordering::Acquire) {
                return Err(Miss::Aborted);
            }
            if let Ok(bytes) = fs::read(&path) {
                let _ = fs::remove_file(&path);
                return Ok(bytes);
            }
            if looked.elapsed() > PULSE {
                looked = Instant::now();
                // it may have sent this before
                if self.notices && !lives(&self.card(from)) && !path.exists() {
                    return Err(Miss::Dead);
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Until the communicator is aborted, as a kernel that waits for what never comes.
    pub fn spin(&self) {
        while !self.aborted.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Whether the process of a rank's card runs; one that is dead and not yet waited for does not.
fn lives(card: &Path) -> bool {
    let Ok(pid) = fs::read_to_string(card) else {
        return true;
    };
    let pid = pid.split_whitespace().next().unwrap_or_default().to_owned();
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => {
            let state = stat.rsplit(')').next().unwrap_or_default();
            !state.trim_start().starts_with(['Z', 'X'])
        }
        Err(_) => false,
    }
}
