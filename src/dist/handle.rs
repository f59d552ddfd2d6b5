//! A collective that is under way.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::buffer::Buffer;
use super::error::DistError;

/// What a collective gives back.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    None,
    One(Buffer),
    /// One for each rank, in order.
    Many(Vec<Buffer>),
}

/// What [`Handle`] makes of an [`Output`].
pub trait FromOutput: Sized {
    fn from_output(output: Output) -> Self;
}

impl FromOutput for () {
    fn from_output(_: Output) {}
}

impl FromOutput for Output {
    fn from_output(output: Output) -> Self {
        output
    }
}

impl FromOutput for Buffer {
    fn from_output(output: Output) -> Self {
        match output {
            Output::One(buffer) => buffer,
            _ => unreachable!("a collective that gives one buffer"),
        }
    }
}

impl FromOutput for Vec<Buffer> {
    fn from_output(output: Output) -> Self {
        match output {
            Output::Many(buffers) => buffers,
            _ => unreachable!("a collective that gives a buffer for each rank"),
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No invariant spans a panic: the values under these locks are replaced as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
pub(crate) struct Promise {
    slot: Mutex<Option<Result<Output, DistError>>>,
    filled: Condvar,
}

impl Promise {
    pub(crate) fn fill(&self, result: Result<Output, DistError>) {
        let mut slot = lock(&self.slot);
        if slot.is_none() {
            *slot = Some(result);
        }
        self.filled.notify_all();
    }
}

/// A collective that is under way. It goes on when the handle is dropped.
#[derive(Debug)]
#[must_use = "a collective is complete after `wait`"]
pub struct Handle<T> {
    promise: Arc<Promise>,
    kind: std::marker::PhantomData<fn() -> T>,
}

impl<T: FromOutput> Handle<T> {
    pub(crate) fn new(promise: Arc<Promise>) -> Self {
        Handle {
            promise,
            kind: std::marker::PhantomData,
        }
    }

    /// One that is complete.
    pub(crate) fn ready(result: Result<Output, DistError>) -> Self {
        let promise = Promise::default();
        promise.fill(result);
        Handle::new(Arc::new(promise))
    }

    /// The same collective with its result as another type; the caller knows which.
    pub(crate) fn cast<U: FromOutput>(self) -> Handle<U> {
        Handle::new(self.promise)
    }

    pub fn is_done(&self) -> bool {
        lock(&self.promise.slot).is_some()
    }

    /// Waits until it is done, at most until `deadline`; tells whether it is done. This ends the wait, not the
    /// collective, whose own deadline stands in its [`super::Call`].
    pub fn wait_deadline(&self, deadline: Instant) -> bool {
        let mut slot = lock(&self.promise.slot);
        while slot.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            slot = self
                .promise
                .filled
                .wait_timeout(slot, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    /// The result. It comes in bounded time: every collective has a deadline.
    ///
    /// # Errors
    /// Those of the collective.
    pub fn wait(self) -> Result<T, DistError> {
        let mut slot = lock(&self.promise.slot);
        loop {
            match slot.take() {
                Some(result) => return result.map(T::from_output),
                None => {
                    slot = self
                        .promise
                        .filled
                        .wait(slot)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}
