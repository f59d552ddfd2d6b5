//! Signs that work goes on. Whoever does something for long beats as it gets on: a hang is then told from long work. Beats
//! come from the work itself (loops, progress callbacks), never from a thread of their own, which would beat for a hung one.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Counts beats and remembers the last one. Clones are the same pulse.
#[derive(Clone)]
pub struct Pulse(Arc<Mutex<Last>>);

struct Last {
    beats: u64,
    place: &'static str,
    step: u64,
    at: Instant,
}

/// The last beat of a pulse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// Beats so far.
    pub count: u64,
    /// What was being done, in a few words.
    pub place: &'static str,
    /// Optimizer steps that were done.
    pub step: u64,
    /// How long ago it was.
    pub age: Duration,
}

impl Default for Pulse {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Last {
            beats: 0,
            place: "start",
            step: 0,
            at: Instant::now(),
        })))
    }
}

impl Pulse {
    /// A pulse that nobody has beaten yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work goes on at `place`.
    pub fn beat(&self, place: &'static str) {
        let mut last = self.lock();
        last.beats += 1;
        last.place = place;
        last.at = Instant::now();
    }

    /// So many optimizer steps are done.
    pub fn set_step(&self, step: u64) {
        self.lock().step = step;
    }

    /// Optimizer steps that are done.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.lock().step
    }

    /// The last beat.
    #[must_use]
    pub fn last(&self) -> Beat {
        let last = self.lock();
        Beat {
            count: last.beats,
            place: last.place,
            step: last.step,
            age: last.at.elapsed(),
        }
    }
}

/// Options that hold a pulse are equal whoever looks at it.
impl PartialEq for Pulse {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.last(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_beat_is_remembered_by_all_clones() {
        let pulse = Pulse::new();
        let clone = pulse.clone();
        assert_eq!((clone.last().count, clone.last().place), (0, "start"));
        pulse.beat("scanning labels");
        pulse.set_step(7);
        pulse.beat("forward");
        let last = clone.last();
        assert_eq!((last.count, last.place, last.step), (2, "forward", 7));
    }
}
