//! Sums of gradients over lanes and ranks.
//!
//! Over NCCL where the group has it; otherwise through the host, which works for every device and is slow.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::DeviceError;
use crate::dist::{Buffer, Call, DType, Handle, Partials, ProcessGroup};
use crate::ops::gpu::{flat, lanes};

/// Reductions of a step that are under way.
pub(super) struct Reduction {
    /// The same order of sums on any number of ranks, which only NCCL does not have anyway.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    deterministic: bool,
    /// Lanes of all ranks together.
    lanes: usize,
    under_way: Vec<UnderWay>,
}

enum UnderWay {
    /// The sum comes to the host.
    Host(Range<usize>, Handle<Buffer>),
    /// The sum comes to its place.
    #[cfg(feature = "cuda")]
    Device(crate::dist::device::DeviceHandle),
}

impl Reduction {
    pub(super) fn new(deterministic: bool, lanes: usize) -> Self {
        Self {
            deterministic,
            lanes,
            under_way: vec![],
        }
    }

    /// Starts a bucket: `range` of every row of `sums` `[own lanes, len]`.
    ///
    /// # Errors
    /// The device failed; those of the collective, as far as they are known.
    pub(super) fn start(
        &mut self,
        group: &dyn ProcessGroup,
        sums: &CubeTensor,
        range: Range<usize>,
    ) -> Result<(), DeviceError> {
        let call = Call::bulk(format!("gradients, bucket {}", self.under_way.len()));
        #[cfg(feature = "cuda")]
        if let Some(gpus) = group.device() {
            let started = self.over_nccl(group, gpus, &call, sums, range)?;
            self.under_way.push(UnderWay::Device(started));
            return Ok(());
        }
        let shape = sums.shape();
        let row = |lane: usize| flat::view(sums, lane * shape[1] + range.start, [range.len()]);
        let parts: Result<Vec<_>, DeviceError> = (0..shape[0])
            .map(|lane| Ok(Some(Buffer::F32(flat::download(&row(lane))?))))
            .collect();
        let partials = Partials::by_lane(self.lanes, DType::F32, range.len(), parts?);
        let handle = group.all_reduce_tree(call, partials);
        self.under_way.push(UnderWay::Host(range, handle));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn over_nccl(
        &self,
        group: &dyn ProcessGroup,
        gpus: &dyn crate::dist::device::DeviceGroup,
        call: &Call,
        sums: &CubeTensor,
        range: Range<usize>,
    ) -> Result<crate::dist::device::DeviceHandle, DeviceError> {
        use crate::dist::{ReduceOp, nccl};
        use crate::ops::cpu::lanes::{lanes_of, nodes};
        let len = sums.shape()[1];
        let first = flat::view(sums, range.start, [range.len()]);
        if self.deterministic {
            let own = lanes_of(group.rank(), group.size(), self.lanes);
            let subtrees = nodes(self.lanes, own.clone());
            let parts = subtrees.iter().map(|subtree| {
                let rows = subtree.start - own.start..subtree.end - own.start;
                lanes::tree_sum_of(sums, rows.clone(), range.clone());
                flat::tensor(flat::view(
                    sums,
                    rows.start * len + range.start,
                    [range.len()],
                ))
            });
            let total = nccl::all_reduce_tree(group, gpus, call, self.lanes, parts.collect())?;
            if let Some(total) = flat::primitive(total) {
                lanes::copy_into(&first, &total);
            }
            for subtree in &subtrees[1..] {
                let at = (subtree.start - own.start) * len + range.start;
                lanes::clear(&flat::view(sums, at, [range.len()]));
            }
            return Ok(crate::dist::device::DeviceHandle::done());
        }
        let rows = 0..sums.shape()[0];
        lanes::tree_sum_of(sums, rows, range);
        let buffer = nccl::tensor::buffer_of(&first)?;
        Ok(gpus.all_reduce(call.clone(), ReduceOp::Sum, buffer))
    }

    /// Ends the step: the sums of all lanes of all ranks are in the first row, the others are cleared. For NCCL the host
    /// does not wait.
    ///
    /// # Errors
    /// Those of the reduction.
    pub(super) fn finish(&mut self, sums: &CubeTensor) -> Result<(), DeviceError> {
        let shape = sums.shape();
        let mut through_host = false;
        for started in self.under_way.drain(..) {
            match started {
                UnderWay::Host(range, handle) => {
                    through_host = true;
                    let total = handle.wait()?.into_vec::<f32>();
                    let total = total.expect("what was given was float32");
                    flat::write(&flat::view(sums, range.start, [range.len()]), &total);
                }
                #[cfg(feature = "cuda")]
                UnderWay::Device(handle) => handle.join_stream()?,
            }
        }
        if through_host && shape[0] > 1 {
            let rest = (shape[0] - 1) * shape[1];
            lanes::clear(&flat::view(sums, shape[1], [rest]));
        }
        Ok(())
    }

    /// Forgets what is under way.
    pub(super) fn clear(&mut self) {
        self.under_way.clear();
    }
}
