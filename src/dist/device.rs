//! Collectives on values that lie in a GPU's memory (feature `cuda`).

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::buffer::ReduceOp;
use super::error::DistError;
use super::group::Call;

/// Type of the elements of a [`DeviceBuffer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DeviceType {
    F32,
    F64,
    F16,
    Bf16,
    I32,
    U32,
    I64,
    U64,
    U8,
}

impl DeviceType {
    /// Bytes of an element.
    #[must_use]
    pub fn width(self) -> usize {
        match self {
            DeviceType::U8 => 1,
            DeviceType::F16 | DeviceType::Bf16 => 2,
            DeviceType::F32 | DeviceType::I32 | DeviceType::U32 => 4,
            DeviceType::F64 | DeviceType::I64 | DeviceType::U64 => 8,
        }
    }
}

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceType::F32 => "f32",
            DeviceType::F64 => "f64",
            DeviceType::F16 => "f16",
            DeviceType::Bf16 => "bf16",
            DeviceType::I32 => "i32",
            DeviceType::U32 => "u32",
            DeviceType::I64 => "i64",
            DeviceType::U64 => "u64",
            DeviceType::U8 => "u8",
        })
    }
}

/// What a collective has to come after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// All that this process has handed to the GPU so far, on whatever stream.
    Everything,
    /// Nothing: the values are there.
    Nothing,
}

/// A point on a stream that has no name here: a word of the GPU's memory gets a value there that it had not before.
pub struct Mark {
    pub address: u64,
    pub value: u64,
    /// Owns the word.
    pub keep: Box<dyn Any + Send>,
}

/// Makes a [`Mark`] after all that its caller's thread has handed to the GPU.
pub type Marker = Box<dyn FnOnce() -> Result<Mark, DistError> + Send>;

/// Contiguous values in a GPU's memory, which stay there as long as this lives.
pub struct DeviceBuffer {
    pub(super) address: u64,
    pub(super) elements: usize,
    pub(super) dtype: DeviceType,
    pub(super) after: After,
    pub(super) marker: Option<Marker>,
    _keep: Box<dyn Any + Send>,
}

impl DeviceBuffer {
    /// `keep` owns the memory.
    ///
    /// # Safety
    /// `elements` of `dtype` lie at `address` of the GPU whose group this is given to, until `keep` is dropped, and nobody
    /// else uses them before [`DeviceHandle::join_stream`] or [`DeviceHandle::wait`].
    pub unsafe fn new(
        address: u64,
        elements: usize,
        dtype: DeviceType,
        after: After,
        keep: Box<dyn Any + Send>,
    ) -> Self {
        DeviceBuffer {
            address,
            elements,
            dtype,
            after,
            marker: None,
            _keep: keep,
        }
    }

    /// Lets a collective come after one stream alone, where waiting for everything would be too much: `marker` is called on
    /// the thread that calls the collective, if at all.
    #[must_use]
    pub fn with_marker(mut self, marker: Marker) -> Self {
        self.marker = Some(marker);
        self
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    #[must_use]
    pub fn dtype(&self) -> DeviceType {
        self.dtype
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} x {} at {:#x}",
            self.dtype, self.elements, self.address
        )
    }
}

/// A collective on a GPU that is under way; it goes on when this is dropped.
pub trait DeviceWork: Send + Sync {
    /// See [`DeviceHandle::join_stream`].
    ///
    /// # Errors
    /// Those of the collective, as far as they are known.
    fn join_stream(&self) -> Result<(), DistError>;
    /// See [`DeviceHandle::wait`].
    ///
    /// # Errors
    /// Those of the collective.
    fn wait(&self, deadline: Option<Instant>) -> Result<bool, DistError>;
    /// See [`DeviceHandle::is_done`].
    fn is_done(&self) -> bool;
}

/// A collective on a GPU that is under way; it goes on when this is dropped.
#[must_use = "the values are there after `join_stream` or `wait`"]
pub struct DeviceHandle(Result<Arc<dyn DeviceWork>, DistError>);

/// Nothing to wait for.
struct Done;

impl DeviceWork for Done {
    fn join_stream(&self) -> Result<(), DistError> {
        Ok(())
    }
    fn wait(&self, _: Option<Instant>) -> Result<bool, DistError> {
        Ok(true)
    }
    fn is_done(&self) -> bool {
        true
    }
}

impl DeviceHandle {
    /// Of a collective that what comes later is ordered behind already.
    pub fn done() -> Self {
        DeviceHandle(Ok(Arc::new(Done)))
    }

    pub(super) fn new(result: Result<Arc<dyn DeviceWork>, DistError>) -> Self {
        DeviceHandle(result)
    }

    /// Lets all that this process hands to the GPU from now on come after the collective. The host does not wait (except
    /// with drivers before CUDA 12.5).
    ///
    /// # Errors
    /// Those of the collective, as far as they are known. What fails later fails the next one, and [`DeviceHandle::wait`].
    pub fn join_stream(&self) -> Result<(), DistError> {
        self.work()?.join_stream()
    }

    /// Waits on the host until the collective is done, at most until `deadline`; tells whether it is done. It ends in
    /// bounded time without one, too: every collective has a deadline of its own.
    ///
    /// # Errors
    /// Those of the collective.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<bool, DistError> {
        self.work()?.wait(deadline)
    }

    /// Whether it is over, well or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.as_ref().map_or(true, |work| work.is_done())
    }

    fn work(&self) -> Result<&dyn DeviceWork, DistError> {
        match &self.0 {
            Ok(work) => Ok(&**work),
            Err(error) => Err(error.clone()),
        }
    }
}

/// Collectives on the GPU of each rank, in place where there is but one buffer. They are enqueued after what the buffers have
/// to come after, run while the GPU does other things, and are named, watched and compared between ranks as those of a
/// [`super::ProcessGroup`]. Every rank calls the same ones in the same order on each channel.
pub trait DeviceGroup: Send + Sync {
    /// Every rank gets the values of all ranks joined, in the order that NCCL chooses: sums of floats may differ between
    /// numbers of ranks in their last bits.
    fn all_reduce(&self, call: Call, op: ReduceOp, buffer: DeviceBuffer) -> DeviceHandle;

    /// `from` is this rank's part, of one length on all ranks; `to` gets those of all, in their order.
    fn all_gather(&self, call: Call, from: DeviceBuffer, to: DeviceBuffer) -> DeviceHandle;

    /// Every rank gets the root's values.
    fn broadcast(&self, call: Call, root: usize, buffer: DeviceBuffer) -> DeviceHandle;

    /// Both hold a part for each rank, all of one length: the `r`-th of `from` goes to rank `r`, and its part for this one
    /// becomes the `r`-th of `to`.
    fn all_to_all(&self, call: Call, from: DeviceBuffer, to: DeviceBuffer) -> DeviceHandle;
}
