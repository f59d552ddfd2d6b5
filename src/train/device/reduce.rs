//! Sums of gradients over lanes and ranks.
//!
//! Over NCCL where the group has it; otherwise through the host, which works for every device and is slow.

use std::ops::Range;

use burn_cubecl::tensor::CubeTensor;

use super::DeviceError;
use crate::dist::{Buffer, Call, DType, Handle, Partials, ProcessGroup};
use crate::ops::gpu::flat;
use crate::ops::gpu::lanes;

/// Sums `[lanes, len]` of one rank in the lanes' tree: the first row holds the sum, the others are cleared.
pub(super) fn sum_lanes(sums: &CubeTensor) {
    lanes::tree_sum(sums);
}

/// Reductions that go through the host.
#[derive(Default)]
pub(super) struct ThroughHost(Vec<(Range<usize>, Handle<Buffer>)>);

impl ThroughHost {
    /// Starts a bucket: `range` of every row of `sums` `[own lanes, len]`.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn start(
        &mut self,
        group: &dyn ProcessGroup,
        sums: &CubeTensor,
        range: Range<usize>,
        lanes: usize,
    ) -> Result<(), DeviceError> {
        let shape = burn::backend::TensorMetadata::shape(sums);
        let len = shape[1];
        let row = |lane: usize| flat::view(sums, lane * len + range.start, [range.len()]);
        let parts: Result<Vec<_>, DeviceError> = (0..shape[0])
            .map(|lane| Ok(Some(Buffer::F32(flat::download(&row(lane))?))))
            .collect();
        let partials = Partials::by_lane(lanes, DType::F32, range.len(), parts?);
        let call = Call::bulk(format!("gradients, bucket {}", self.0.len()));
        self.0.push((range, group.all_reduce_tree(call, partials)));
        Ok(())
    }

    /// Waits for all: the sums of all lanes of all ranks are in the first row, the others are cleared.
    ///
    /// # Errors
    /// Those of the reduction.
    pub(super) fn finish(&mut self, sums: &CubeTensor) -> Result<(), DeviceError> {
        let shape = burn::backend::TensorMetadata::shape(sums);
        for (range, handle) in self.0.drain(..) {
            let total: Vec<f32> = handle
                .wait()?
                .into_vec()
                .expect("what was given was float32");
            flat::write(&flat::view(sums, range.start, [range.len()]), &total);
        }
        if shape[0] > 1 {
            let rest = (shape[0] - 1) * shape[1];
            flat::write(&flat::view(sums, shape[1], [rest]), &vec![0.0f32; rest]);
        }
        Ok(())
    }
}
