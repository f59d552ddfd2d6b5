//! What the threads of a rank know of the group's state: the first error, and which ranks are gone.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::dist::error::DistError;
use crate::dist::handle::lock;
use crate::dist::log::Log;

/// How another rank ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Gone {
    /// It closed its group.
    Left,
    /// It ended without a word.
    Lost(String),
}

/// Tells the other ranks.
pub(crate) trait Control: Send + Sync {
    /// That this rank met an error.
    fn abort(&self, reason: &str);
    /// That this rank leaves; returns when the message is out.
    fn leave(&self);
    /// After the links are closed.
    fn finish(&self) {}
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) log: Log,
    failed: AtomicBool,
    failure: Mutex<Option<DistError>>,
    /// Of each world rank.
    gone: Vec<Mutex<Option<(Gone, Instant)>>>,
    /// Ranks with this one's processor cores.
    sharing: usize,
}

impl Shared {
    pub(crate) fn new(size: usize) -> Self {
        Shared {
            log: Log::default(),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            gone: (0..size).map(|_| Mutex::new(None)).collect(),
            sharing: size,
        }
    }

    pub(crate) fn with_sharing(mut self, ranks: usize) -> Self {
        self.sharing = ranks;
        self
    }

    pub(crate) fn sharing(&self) -> usize {
        self.sharing
    }

    /// The first error, cheap while there is none.
    pub(crate) fn failure(&self) -> Option<DistError> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.failure).clone()
    }

    /// Keeps the first error; gives it, and whether it is this one.
    pub(crate) fn fail(&self, error: DistError) -> (DistError, bool) {
        let mut failure = lock(&self.failure);
        let first = failure.is_none();
        let kept = failure.get_or_insert(error).clone();
        self.failed.store(true, Ordering::Release);
        (kept, first)
    }

    /// The first error; for a while waits for it, or for an account of how `rank` ended (which comes after the error
    /// that made it end).
    pub(crate) fn failure_soon(&self, rank: usize, patience: Duration) -> Option<DistError> {
        let end = Instant::now() + patience;
        loop {
            // In this order: the control thread learns of the error first.
            let gone = self.gone(rank).is_some();
            let failure = self.failure();
            if failure.is_some() || gone || Instant::now() >= end {
                return failure;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn set_gone(&self, rank: usize, gone: Gone) {
        lock(&self.gone[rank]).get_or_insert((gone, Instant::now()));
    }

    /// How and since when a rank is gone.
    pub(crate) fn gone(&self, rank: usize) -> Option<(Gone, Duration)> {
        lock(&self.gone[rank])
            .as_ref()
            .map(|(gone, at)| (gone.clone(), at.elapsed()))
    }
}
