//! The exchange of statistics inside a forward and backward pass, over a process group.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::buffer::Buffer;
use super::error::DistError;
use super::group::{Call, ProcessGroup, Work};
use super::handle::{Output, lock};
use crate::ops::ranks::Ranks;
#[cfg(feature = "cuda")]
use burn_cubecl::tensor::CubeTensor;

/// Ranks of a group as the operations see them. The first failure is kept: a pass cannot end in the middle of a graph.
pub struct GroupRanks {
    group: Arc<dyn ProcessGroup>,
    /// Lanes of all ranks together.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "for rows on GPUs"))]
    lanes: usize,
    failure: Mutex<Option<DistError>>,
    /// Nanoseconds that passes waited here.
    waited: AtomicU64,
}

impl std::fmt::Debug for GroupRanks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.group.rank(), self.group.size())
    }
}

impl GroupRanks {
    #[must_use]
    pub fn new(group: Arc<dyn ProcessGroup>, lanes: usize) -> Self {
        Self {
            group,
            lanes,
            failure: Mutex::new(None),
            waited: AtomicU64::new(0),
        }
    }

    /// What failed first since the last call.
    ///
    /// # Errors
    /// That.
    pub fn check(&self) -> Result<(), DistError> {
        lock(&self.failure).take().map_or(Ok(()), Err)
    }

    /// Time that passes waited here since the last call.
    pub fn take_waited(&self) -> Duration {
        Duration::from_nanos(self.waited.swap(0, Ordering::Relaxed))
    }
}

impl Ranks for GroupRanks {
    fn size(&self) -> usize {
        self.group.size()
    }

    fn gather(&self, of: &str, what: &'static str, own: Vec<f64>) -> Option<Vec<Vec<f64>>> {
        if lock(&self.failure).is_some() {
            return None;
        }
        let start = Instant::now();
        let call = Call::latency(format!("{of} {what}"));
        let result = self
            .group
            .run(call, Work::AllGatherVariable(Buffer::F64(own)));
        self.waited
            .fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        match result {
            Ok(Output::Many(all)) => all.into_iter().map(Buffer::into_vec).collect(),
            Ok(_) => unreachable!("an all-gather gives a buffer for each rank"),
            Err(error) => {
                lock(&self.failure).get_or_insert(error);
                None
            }
        }
    }

    #[cfg(feature = "cuda")]
    fn gather_device(&self, of: &str, what: &'static str, own: CubeTensor) -> Option<CubeTensor> {
        if lock(&self.failure).is_some() {
            return None;
        }
        let Some(gpus) = self.group.device() else {
            return crate::ops::gpu::gather_through_host(self, of, what, own);
        };
        let call = Call::latency(format!("{of} {what}"));
        match super::nccl::gather_rows(&*self.group, gpus, call, self.lanes, own) {
            Ok(all) => Some(all),
            Err(error) => {
                lock(&self.failure).get_or_insert(error);
                None
            }
        }
    }
}
