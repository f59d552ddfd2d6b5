//! The gradient of an optimizer step on a device: one flat array for each lane of this rank, into which the backward pass
//! writes, reduced over ranks in ranges that follow the backward pass from the end of the array to its beginning.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use super::DeviceError;
use super::reduce::Reduction;
use crate::dist::ProcessGroup;
use crate::model::Layout;
use crate::ops::cpu::lanes::{LaneSums, cut as cut_lanes, lanes_of};
use crate::ops::gpu::{flat, lanes as device_lanes};
use crate::ops::ranks::{DeviceSlot, GradientSink};
use crate::train::fault;
use crate::train::gradients::Buckets;

struct Inner {
    /// Micro-batches of this step that are complete.
    micro_batches: usize,
    /// The current micro-batch ends the step.
    last: bool,
    /// Images of every lane, of all ranks, in this step.
    lane_images: Vec<usize>,
    /// Parameters of each bucket whose gradient of this micro-batch is not there yet.
    missing: Vec<usize>,
    /// Buckets whose reduction is under way or done.
    started: usize,
    reduction: Reduction,
    /// What went wrong in the backward pass, for whoever ends the step.
    failed: Option<DeviceError>,
}

/// See the module. It is shared with the graph.
pub(super) struct DeviceGradient {
    group: Arc<dyn ProcessGroup>,
    lanes: usize,
    /// `[own lanes, len]`.
    sums: CubeTensor,
    len: usize,
    /// Of each parameter in a row; `None` where nothing trains it.
    offsets: Vec<Option<usize>>,
    bucket_of: Vec<usize>,
    /// Ranges of a row that are reduced together, in the order of a backward pass.
    buckets: Vec<Range<usize>>,
    params_of: Vec<usize>,
    overlap: bool,
    inner: Mutex<Inner>,
}

impl std::fmt::Debug for DeviceGradient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rank = self.group.rank();
        write!(f, "gradients of rank {rank} on a device")
    }
}

/// Ranges of the array that hold at least `bytes` bytes each, from its end; with the range of each parameter.
fn cut(layout: &Layout, bytes: usize) -> (Vec<Range<usize>>, Vec<usize>) {
    let mut end = layout.param_len;
    let mut buckets: Vec<Range<usize>> = vec![];
    let mut bucket_of = vec![0; layout.params.len()];
    for (id, p) in layout.params.iter().enumerate().rev() {
        bucket_of[id] = buckets.len();
        if 4 * (end - p.offset) >= bytes {
            buckets.push(p.offset..end);
            end = p.offset;
        }
    }
    if end > 0 {
        buckets.push(0..end);
    }
    (buckets, bucket_of)
}

impl DeviceGradient {
    /// Of the parameters of the padded `layout`, in `lanes` lanes over the ranks of `group`.
    pub(super) fn new(
        device: &CubeDevice,
        layout: &Layout,
        group: Arc<dyn ProcessGroup>,
        lanes: usize,
        buckets: Buckets,
        deterministic: bool,
    ) -> Self {
        let own = lanes_of(group.rank(), group.size(), lanes);
        let len = layout.param_len;
        let sums = flat::empty(device, [own.len(), len], DType::F32);
        device_lanes::clear(&sums);
        let (buckets_, bucket_of) = cut(layout, buckets.bytes);
        let mut params_of = vec![0; buckets_.len()];
        let trained = |p: &&crate::model::layout::ParamInfo| p.trained();
        for (p, &b) in layout.params.iter().zip(&bucket_of) {
            params_of[b] += usize::from(trained(&p));
        }
        let offset = |p: &crate::model::layout::ParamInfo| p.trained().then_some(p.offset);
        Self {
            sums,
            len,
            offsets: layout.params.iter().map(offset).collect(),
            bucket_of,
            params_of,
            overlap: buckets.overlap,
            inner: Mutex::new(Inner {
                micro_batches: 0,
                last: false,
                lane_images: vec![0; lanes],
                missing: vec![0; buckets_.len()],
                started: 0,
                reduction: Reduction::new(deterministic, lanes),
                failed: None,
            }),
            buckets: buckets_,
            lanes,
            group,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pending(&self) -> usize {
        self.lock().micro_batches
    }

    pub(super) fn lane_images(&self) -> Vec<usize> {
        self.lock().lane_images.clone()
    }

    /// A micro-batch of `images` images on all ranks together begins.
    pub(super) fn begin(&self, images: usize, ends_step: bool) {
        let inner = &mut *self.lock();
        inner.last = ends_step;
        if inner.micro_batches == 0 {
            inner.lane_images.fill(0);
        }
        for (count, lane) in inner
            .lane_images
            .iter_mut()
            .zip(cut_lanes(images, self.lanes))
        {
            *count += lane.len();
        }
        inner.missing.clone_from(&self.params_of);
        inner.started = 0;
    }

    /// The backward pass of a micro-batch is over.
    pub(super) fn end(&self) {
        let inner = &mut *self.lock();
        // what has no gradient in this graph adds nothing
        inner.missing.fill(0);
        inner.micro_batches += 1;
        if inner.last {
            self.start(inner);
        }
    }

    /// Forgets the step.
    pub(super) fn clear(&self) {
        let inner = &mut *self.lock();
        inner.micro_batches = 0;
        inner.lane_images.fill(0);
        inner.failed = None;
        inner.reduction.clear();
        device_lanes::clear(&self.sums);
    }

    /// Starts the buckets that are complete, in their order, which is that of all ranks.
    fn start(&self, inner: &mut Inner) {
        if self.group.size() == 1 {
            return;
        }
        while inner.started < self.buckets.len() && inner.missing[inner.started] == 0 {
            // What this ends, the reduction tells.
            let _ = fault::within(&*self.group, fault::Place::AllReduce);
            let number = inner.started;
            inner.started += 1;
            let range = self.buckets[number].clone();
            let done = inner.reduction.start(&*self.group, &self.sums, range);
            if let Err(e) = done {
                inner.failed.get_or_insert(e);
            }
        }
    }

    /// Ends the step: the sum over all lanes of all ranks `[len]`, in the array's first row, which whoever uses it clears.
    pub(super) fn finish(&self) -> Result<CubeTensor, DeviceError> {
        let inner = &mut *self.lock();
        inner.micro_batches = 0;
        if let Some(e) = inner.failed.take() {
            return Err(e);
        }
        if self.group.size() == 1 {
            device_lanes::tree_sum(&self.sums);
        } else {
            inner.reduction.finish(&self.sums)?;
        }
        Ok(flat::view(&self.sums, 0, [self.len]))
    }

    /// The gradients of this rank's lanes so far, `[own lanes, len]`; empty where no step is under way.
    pub(super) fn own_lanes(&self) -> Result<Vec<f32>, DeviceError> {
        match self.pending() {
            0 => Ok(vec![]),
            _ => Ok(flat::download(&self.sums)?),
        }
    }

    /// Goes on with `[own lanes, len]`.
    pub(super) fn restore(&self, own: &[f32], lane_images: &[usize], micro_batches: usize) {
        if micro_batches == 0 {
            return self.clear();
        }
        flat::write(&self.sums, own);
        let inner = &mut *self.lock();
        inner.micro_batches = micro_batches;
        inner.lane_images = lane_images.to_vec();
    }
}

impl GradientSink for DeviceGradient {
    fn write(&self, _: usize, _: &mut dyn FnMut(LaneSums<'_>)) {
        unreachable!("operations on a device write into its memory")
    }

    fn device(&self, id: usize) -> Option<DeviceSlot> {
        Some(DeviceSlot {
            flat: self.sums.clone(),
            offset: self.offsets[id]?,
            add: self.lock().micro_batches > 0,
        })
    }

    fn written(&self, id: usize) {
        let inner = &mut *self.lock();
        let missing = &mut inner.missing[self.bucket_of[id]];
        *missing = missing.saturating_sub(1);
        if inner.last && self.overlap {
            self.start(inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::ModelSpec;
    use crate::model::Network;

    #[test]
    fn buckets_follow_the_backward_pass_and_cover_every_parameter_once() {
        let layout = Network::new(ModelSpec::resolve("yolo26n").unwrap(), 80)
            .layout
            .padded(flat::ALIGN);
        for bytes in [1, 1 << 20, usize::MAX] {
            let (buckets, bucket_of) = cut(&layout, bytes);
            assert_eq!(buckets[0].end, layout.param_len);
            assert_eq!(buckets.last().unwrap().start, 0);
            for pair in buckets.windows(2) {
                assert_eq!(pair[1].end, pair[0].start);
            }
            for (p, &b) in layout.params.iter().zip(&bucket_of) {
                assert!(buckets[b].start <= p.offset && p.range().end <= buckets[b].end);
            }
        }
    }
}
