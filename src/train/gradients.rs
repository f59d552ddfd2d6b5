//! The gradient of an optimizer step while it grows: by lanes, in buckets that go over to the other ranks as soon as
//! the backward pass has filled them.
//!
//! The numerators' gradients of a micro-batch are summed per lane, added per lane over the micro-batches of the step,
//! and at last over lanes in their tree (and so over ranks). Where a step is one micro-batch, lanes that make up a whole
//! subtree of the tree are added up at once, which gives the same bits with less memory. Buckets follow the order in
//! which backward passes produce gradients, that of rank 0's first pass; they do not change a bit.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::fault;
use crate::config::Settings;
use crate::dist::{Buffer, Call, DType, DistError, Handle, Partials, ProcessGroup};
use crate::model::Layout;
use crate::model::layout::ParamId;
use crate::ops::cpu::lanes::{LaneSums, Lanes, cut as cut_lanes, lanes_of, tree_sum};
use crate::ops::ranks::GradientSink;

/// Elements of a task of the sum over lanes.
const CHUNK: usize = 1 << 16;

/// Where a parameter's gradient lies.
#[derive(Debug, Clone, Copy)]
struct Place {
    bucket: usize,
    offset: usize,
    len: usize,
}

/// Parameters whose gradients are reduced together.
#[derive(Debug, Default)]
struct Bucket {
    params: Vec<ParamId>,
    len: usize,
    /// One for each group of lanes, `[len]`.
    sums: Vec<Vec<f32>>,
    /// Parameters whose gradient of this micro-batch is not there yet.
    missing: usize,
}

#[derive(Debug)]
struct Inner {
    /// `None` where nothing trains it.
    places: Vec<Option<Place>>,
    buckets: Vec<Bucket>,
    /// Ranges of own lanes that are summed together.
    groups: Vec<Range<usize>>,
    by_lane: bool,
    /// Micro-batches of this step that are complete.
    micro_batches: usize,
    /// The current micro-batch ends the step.
    last: bool,
    /// A group that has an image in the current micro-batch, where there is one.
    filled: usize,
    /// Which parameters' gradients of this micro-batch are there.
    written: Vec<bool>,
    /// In which order they came.
    order: Vec<ParamId>,
    /// Images of every lane, of all ranks, in this step.
    lane_images: Vec<usize>,
    /// Buckets that are under way; they start in order.
    started: Vec<Handle<Buffer>>,
    /// The buckets follow the order of a backward pass.
    ordered: bool,
}

/// See the module. It is shared with the graph, which writes into it.
pub struct StepGradient {
    group: Arc<dyn ProcessGroup>,
    lanes: usize,
    own: Range<usize>,
    bucket_bytes: usize,
    /// Start a bucket's reduction while backward goes on; otherwise all of them at its end.
    overlap: bool,
    params: Vec<Range<usize>>,
    inner: Mutex<Inner>,
}

impl std::fmt::Debug for StepGradient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "gradients of rank {} of {}",
            self.group.rank(),
            self.group.size()
        )
    }
}

/// How gradients are reduced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Buckets {
    /// Bytes that a bucket is filled up to.
    pub bytes: usize,
    /// See [`StepGradient`].
    pub overlap: bool,
}

impl Buckets {
    /// As the options say.
    #[must_use]
    pub fn of(s: &Settings) -> Self {
        Self {
            bytes: (s.bucket_mb * f64::from(1 << 20)) as usize,
            overlap: true,
        }
    }
}

impl StepGradient {
    /// Of the parameters of `layout`, in `lanes` lanes over the ranks of `group`.
    #[must_use]
    pub fn new(
        layout: &Layout,
        group: Arc<dyn ProcessGroup>,
        lanes: usize,
        buckets: Buckets,
    ) -> Self {
        let params: Vec<_> = layout.params.iter().map(|p| p.range()).collect();
        let trained = |&id: &ParamId| layout.params[id].trained();
        let mut order: Vec<ParamId> = (0..params.len()).filter(trained).collect();
        let alone = group.size() == 1;
        let (places, first_buckets) = if alone {
            flat(&params, &order)
        } else {
            // the head comes first in a backward pass
            order.reverse();
            cut(&params, &order, buckets.bytes)
        };
        let inner = Inner {
            places,
            buckets: first_buckets,
            groups: vec![],
            by_lane: true,
            micro_batches: 0,
            last: false,
            filled: 0,
            written: vec![false; params.len()],
            order: vec![],
            lane_images: vec![0; lanes],
            started: vec![],
            ordered: alone,
        };
        Self {
            own: lanes_of(group.rank(), group.size(), lanes),
            lanes,
            bucket_bytes: buckets.bytes,
            overlap: buckets.overlap,
            params,
            inner: Mutex::new(inner),
            group,
        }
    }

    fn alone(&self) -> bool {
        self.group.size() == 1
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Micro-batches of the step so far.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.lock().micro_batches
    }

    /// Images of every lane, of all ranks, in the step so far.
    #[must_use]
    pub fn lane_images(&self) -> Vec<usize> {
        self.lock().lane_images.clone()
    }

    /// A micro-batch of `images` images on all ranks together begins.
    pub fn begin(&self, images: usize, ends_step: bool) {
        let inner = &mut *self.lock();
        inner.last = ends_step;
        if inner.micro_batches == 0 {
            inner.by_lane = !ends_step;
            inner.groups = if inner.by_lane {
                (0..self.own.len()).map(|l| l..l + 1).collect()
            } else {
                let rank = self.group.rank();
                Lanes::of_rank(self.lanes, rank, self.group.size(), images).subtrees()
            };
            inner.lane_images.fill(0);
            inner.started.clear();
        }
        let lanes = cut_lanes(images, self.lanes);
        for (count, lane) in inner.lane_images.iter_mut().zip(&lanes) {
            *count += lane.len();
        }
        let has_image = |lane: usize| !lanes[self.own.start + lane].is_empty();
        let filled = inner.groups.iter().rposition(|g| g.clone().any(has_image));
        inner.filled = filled.unwrap_or(0);
        inner.written.fill(false);
        inner.order.clear();
        let groups = inner.groups.len();
        for bucket in &mut inner.buckets {
            bucket.missing = bucket.params.len();
            bucket.sums.resize_with(groups, Vec::new);
            for sum in &mut bucket.sums {
                sum.resize(bucket.len, 0.0);
            }
        }
    }

    /// Takes a gradient that was summed over all images of this rank, without lanes.
    pub fn put_whole(&self, id: ParamId, values: &[f32]) {
        let filled = self.lock().filled;
        self.write(id, &mut |sums| {
            let add = sums.add;
            for (group, out) in sums.out.into_iter().enumerate() {
                match (group == filled, add) {
                    (true, true) => out.iter_mut().zip(values).for_each(|(o, v)| *o += v),
                    (true, false) => out.copy_from_slice(values),
                    (false, true) => {}
                    (false, false) => out.fill(0.0),
                }
            }
        });
    }

    /// The backward pass of a micro-batch is over.
    pub fn end(&self) {
        let inner = &mut *self.lock();
        let Inner {
            buckets,
            written,
            places,
            micro_batches,
            ..
        } = inner;
        // what has no gradient in this graph adds nothing
        for bucket in buckets.iter_mut().filter(|_| *micro_batches == 0) {
            for &id in bucket.params.iter().filter(|id| !written[**id]) {
                let at = places[id].expect("it is in a bucket");
                for sum in &mut bucket.sums {
                    sum[at.offset..at.offset + at.len].fill(0.0);
                }
            }
        }
        buckets.iter_mut().for_each(|b| b.missing = 0);
        inner.micro_batches += 1;
        if inner.last {
            self.start(inner);
        }
    }

    /// Forgets the step.
    pub fn clear(&self) {
        let inner = &mut *self.lock();
        inner.micro_batches = 0;
        inner.lane_images.fill(0);
    }

    /// Starts the buckets that are complete, in their order, which is that of all ranks.
    fn start(&self, inner: &mut Inner) {
        if self.alone() {
            return;
        }
        while let Some(bucket) = inner.buckets.get_mut(inner.started.len()) {
            if bucket.missing > 0 {
                return;
            }
            let sums = std::mem::take(&mut bucket.sums);
            let images = &inner.lane_images[self.own.clone()];
            let parts = sums.into_iter().zip(&inner.groups).map(|(sum, group)| {
                let any = images[group.clone()].iter().any(|&n| n > 0);
                any.then_some(Buffer::F32(sum))
            });
            let partials = if inner.by_lane {
                Partials::by_lane(self.lanes, DType::F32, bucket.len, parts)
            } else {
                Partials::by_subtree(self.lanes, DType::F32, bucket.len, parts)
            };
            // What this ends, the reduction tells.
            let _ = fault::within(&*self.group, fault::Place::AllReduce);
            let call = Call::bulk(format!("gradients, bucket {}", inner.started.len()));
            inner
                .started
                .push(self.group.all_reduce_tree(call, partials));
        }
    }

    /// Ends the step: `into` gets the sum over all lanes of all ranks, in the order of the layout. The time is what was
    /// waited for other ranks.
    ///
    /// # Errors
    /// Those of the reduction.
    pub fn finish(&self, into: &mut Vec<f32>) -> Result<Duration, DistError> {
        let mut waited = Duration::ZERO;
        let inner = &mut *self.lock();
        inner.micro_batches = 0;
        if self.alone() {
            let images = &inner.lane_images;
            let [bucket] = &mut inner.buckets[..] else {
                unreachable!("one rank has one bucket")
            };
            if let [sum] = &mut bucket.sums[..] {
                std::mem::swap(sum, into);
            } else {
                let parts: Vec<Option<&[f32]>> = bucket
                    .sums
                    .iter()
                    .zip(images)
                    .map(|(s, &n)| (n > 0).then_some(&s[..]))
                    .collect();
                into.resize(bucket.len, 0.0);
                into.par_chunks_mut(CHUNK).enumerate().for_each(|(i, out)| {
                    let at = i * CHUNK..i * CHUNK + out.len();
                    let parts: Vec<_> = parts.iter().map(|p| p.map(|p| &p[at.clone()])).collect();
                    tree_sum(&parts, out);
                });
            }
            return Ok(waited);
        }
        into.resize(self.len(), 0.0);
        for (handle, bucket) in inner.started.drain(..).zip(&mut inner.buckets) {
            let start = Instant::now();
            let total = handle.wait()?;
            waited += start.elapsed();
            let total: Vec<f32> = total.into_vec().expect("what was given was float32");
            let mut at = 0;
            for &id in &bucket.params {
                let to = self.params[id].clone();
                let len = to.len();
                into[to].copy_from_slice(&total[at..at + len]);
                at += len;
            }
            // its memory serves the next step
            bucket.sums = vec![total];
        }
        if !inner.ordered {
            inner.ordered = true;
            let order: Vec<u64> = inner.order.iter().map(|&id| id as u64).collect();
            let call = Call::latency("order of gradients");
            let order = self.group.broadcast(call, 0, Buffer::U64(order)).wait()?;
            let order: Vec<u64> = order.into_vec().expect("what was given was u64");
            let mut order: Vec<ParamId> = order.into_iter().map(|id| id as ParamId).collect();
            let rest = inner.buckets.iter().flat_map(|b| b.params.clone());
            order.extend(rest.filter(|id| !inner.written[*id]).collect::<Vec<_>>());
            (inner.places, inner.buckets) = cut(&self.params, &order, self.bucket_bytes);
        }
        Ok(waited)
    }

    /// The gradients of the lanes of all ranks so far, `[lanes, parameters]` in the order of the layout, on every rank;
    /// empty where no step is under way.
    ///
    /// # Errors
    /// Those of a collective.
    pub fn gather(&self) -> Result<Vec<f32>, DistError> {
        let inner = &mut *self.lock();
        if inner.micro_batches == 0 {
            return Ok(vec![]);
        }
        let len = self.len();
        let mut own = vec![0.0f32; self.own.len() * len];
        for (own, lane) in own.chunks_exact_mut(len).zip(0..) {
            for bucket in &inner.buckets {
                for &id in &bucket.params {
                    let at = inner.places[id].expect("it is in a bucket");
                    let from = &bucket.sums[lane][at.offset..at.offset + at.len];
                    own[self.params[id].clone()].copy_from_slice(from);
                }
            }
        }
        gather_lanes(&*self.group, own)
    }

    /// Goes on with what [`Self::gather`] and [`Self::lane_images`] gave, on however many ranks.
    ///
    /// # Panics
    /// If these are not of so many lanes and parameters.
    pub fn restore(&self, gradients: &[f32], lane_images: &[usize], micro_batches: usize) {
        if micro_batches == 0 {
            return self.clear();
        }
        let len = self.len();
        assert_eq!(gradients.len(), self.lanes * len, "gradients of all lanes");
        let mut inner = self.lock();
        let inner = &mut *inner;
        inner.micro_batches = micro_batches;
        inner.by_lane = true;
        inner.groups = (0..self.own.len()).map(|l| l..l + 1).collect();
        inner.lane_images = lane_images.to_vec();
        for bucket in &mut inner.buckets {
            let lanes = gradients.chunks_exact(len).skip(self.own.start);
            bucket.sums = lanes
                .take(self.own.len())
                .map(|lane| match self.alone() {
                    true => lane.to_vec(),
                    false => {
                        let params = bucket.params.iter();
                        params
                            .flat_map(|&id| &lane[self.params[id].clone()])
                            .copied()
                            .collect()
                    }
                })
                .collect();
        }
    }

    /// Elements of all parameters.
    fn len(&self) -> usize {
        self.params.last().map_or(0, |p| p.end)
    }
}

/// One bucket in the order of the flat memory, holes of what is not trained included: nothing has to be moved.
fn flat(params: &[Range<usize>], trained: &[ParamId]) -> (Vec<Option<Place>>, Vec<Bucket>) {
    let mut places = vec![None; params.len()];
    for &id in trained {
        places[id] = Some(Place {
            bucket: 0,
            offset: params[id].start,
            len: params[id].len(),
        });
    }
    let bucket = Bucket {
        params: trained.to_vec(),
        len: params.last().map_or(0, |p| p.end),
        ..Bucket::default()
    };
    (places, vec![bucket])
}

/// Cuts parameters in this order into buckets of at least `bytes` bytes, but for the last.
fn cut(
    params: &[Range<usize>],
    order: &[ParamId],
    bytes: usize,
) -> (Vec<Option<Place>>, Vec<Bucket>) {
    let mut places = vec![None; params.len()];
    let mut buckets = vec![];
    let mut bucket = Bucket::default();
    for &id in order {
        let len = params[id].len();
        places[id] = Some(Place {
            bucket: buckets.len(),
            offset: bucket.len,
            len,
        });
        bucket.params.push(id);
        bucket.len += len;
        if 4 * bucket.len >= bytes {
            buckets.push(std::mem::take(&mut bucket));
        }
    }
    if !bucket.params.is_empty() {
        buckets.push(bucket);
    }
    (places, buckets)
}

impl GradientSink for StepGradient {
    fn write(&self, id: usize, write: &mut dyn FnMut(LaneSums<'_>)) {
        let inner = &mut *self.lock();
        let Some(at) = inner.places[id] else { return };
        let bucket = &mut inner.buckets[at.bucket];
        let out = bucket.sums.iter_mut();
        write(LaneSums {
            groups: &inner.groups,
            out: out.map(|s| &mut s[at.offset..at.offset + at.len]).collect(),
            add: inner.micro_batches > 0,
        });
        debug_assert!(!inner.written[id], "parameter {id} came twice");
        inner.written[id] = true;
        inner.order.push(id);
        bucket.missing -= 1;
        if inner.last && self.overlap {
            self.start(inner);
        }
    }
}

/// The gradients of the lanes of all ranks, from those of the `own` ones. All ranks call it.
///
/// # Errors
/// Those of a collective.
pub(super) fn gather_lanes(group: &dyn ProcessGroup, own: Vec<f32>) -> Result<Vec<f32>, DistError> {
    if group.size() == 1 {
        return Ok(own);
    }
    let call = Call::bulk("gradients of a step that is under way");
    let all = group.all_gather_variable(call, own.into()).wait()?;
    let all = all.into_iter().filter_map(Buffer::into_vec::<f32>);
    Ok(all.flatten().collect())
}
