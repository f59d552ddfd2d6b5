//! The last collectives of a rank, for whoever has to explain a hang.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::error::Collective;
use super::handle::lock;

/// Collectives that are remembered.
pub const REMEMBERED: usize = 100;

#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// Waits for earlier ones of its channel.
    Queued,
    Running,
    Done,
    /// With the error's text.
    Failed(String),
}

impl State {
    /// In a word.
    pub fn name(&self) -> &'static str {
        match self {
            State::Queued => "queued",
            State::Running => "running",
            State::Done => "done",
            State::Failed(_) => "failed",
        }
    }
}

/// One collective of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub collective: Collective,
    pub state: State,
    /// Optimizer steps that were done when it was called.
    pub step: u64,
    /// When it was called, began and ended, since the group was formed.
    pub called: Duration,
    pub began: Option<Duration>,
    pub ended: Option<Duration>,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        write!(
            f,
            "{:>10.1} ms, step {}: {}: ",
            ms(self.called),
            self.step,
            self.collective
        )?;
        match (&self.state, self.began, self.ended) {
            (State::Done, Some(began), Some(ended)) => {
                write!(f, "done in {:.2} ms", ms(ended.saturating_sub(began)))
            }
            (State::Failed(reason), ..) => write!(f, "failed: {reason}"),
            (State::Queued, ..) => f.write_str("queued"),
            _ => f.write_str("running"),
        }
    }
}

/// The last collectives of a rank.
#[derive(Debug)]
pub struct Log {
    start: Instant,
    entries: Mutex<(u64, VecDeque<Entry>)>,
}

impl Default for Log {
    fn default() -> Self {
        Log {
            start: Instant::now(),
            entries: Mutex::default(),
        }
    }
}

/// Place of a collective in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket(u64);

impl Log {
    pub(crate) fn called(&self, collective: &Collective, step: u64) -> Ticket {
        let mut guard = lock(&self.entries);
        let (first, entries) = &mut *guard;
        if entries.len() == REMEMBERED {
            entries.pop_front();
            *first += 1;
        }
        entries.push_back(Entry {
            collective: collective.clone(),
            state: State::Queued,
            step,
            called: self.start.elapsed(),
            began: None,
            ended: None,
        });
        Ticket(*first + entries.len() as u64 - 1)
    }

    fn change(&self, ticket: Ticket, f: impl FnOnce(&mut Entry, Duration)) {
        let mut guard = lock(&self.entries);
        let (first, entries) = &mut *guard;
        let place = ticket.0.checked_sub(*first).map(|p| p as usize);
        if let Some(entry) = place.and_then(|p| entries.get_mut(p)) {
            f(entry, self.start.elapsed());
        }
    }

    pub(crate) fn began(&self, ticket: Ticket) {
        self.change(ticket, |entry, now| {
            entry.state = State::Running;
            entry.began = Some(now);
        });
    }

    pub(crate) fn ended(&self, ticket: Ticket, failure: Option<String>) {
        self.change(ticket, |entry, now| {
            entry.state = failure.map_or(State::Done, State::Failed);
            entry.ended = Some(now);
        });
    }

    /// The newest one, in short.
    pub(crate) fn last(&self) -> Option<String> {
        let guard = lock(&self.entries);
        let entry = guard.1.back()?;
        let Collective {
            name,
            sequence,
            channel,
            ..
        } = &entry.collective;
        let state = entry.state.name();
        Some(format!("{name:?} (number {sequence}, {channel}), {state}"))
    }

    /// Collectives that were ever called.
    pub(crate) fn count(&self) -> u64 {
        let guard = lock(&self.entries);
        guard.0 + guard.1.len() as u64
    }

    /// Oldest first.
    pub fn entries(&self) -> Vec<Entry> {
        lock(&self.entries).1.iter().cloned().collect()
    }
}
