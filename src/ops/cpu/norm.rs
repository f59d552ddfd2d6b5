//! Batch norm and activation: statistics, normalisation, gradients.
//!
//! Forward: [`moments`] of each lane, [`merged`] in their tree (and over a process group), [`Affine::of_batch`],
//! [`normalise`]. Backward: [`gradient_sums`] of each lane, merged likewise, [`GradientSums::finish`],
//! [`input_gradient`]. Sums have an order given by shapes alone: a lane's partial has the same bytes whether it is
//! computed alone or beside others, on any number of threads.
//!
//! Activations are seen as a matrix with rows of `W` floats, a common multiple of the channels and the vector's
//! width: per-channel values repeated to `W` floats then line up with whole vectors for any number of channels.

mod affine;
mod gradient;
mod moments;

pub use affine::{Affine, normalise, normalise_in_place};
pub use gradient::{
    GradientSums, NormGradient, gradient_sums, gradient_sums_in_place, input_gradient,
};
pub use moments::{Moments, moments};

use std::ops::Range;

use rayon::prelude::*;

use super::isa::Isa;
use super::lanes::{self, Lanes};
use crate::ops::ranks::Synced;

/// Rows of the matrix that are summed in float32 before the sum is carried to float64.
const ROWS: usize = 128;
/// Rows have at least this many vectors, so that as many sums run side by side.
const MIN_VECTORS: usize = 8;
/// About how many floats a task of a reduction has.
const TASK: usize = 1 << 16;
/// About how many floats a task of an elementwise pass has.
const CHUNK: usize = 1 << 14;

/// Merges the parts of lanes as [`lanes::tree`] does.
pub fn tree<T>(parts: Vec<T>, mut merge: impl FnMut(T, T) -> T) -> Option<T> {
    let mut parts: Vec<Option<T>> = parts.into_iter().map(Some).collect();
    lanes::tree(0..parts.len(), &mut |l| parts[l].take(), &mut merge)
}

/// Statistics that are merged over lanes and ranks.
pub trait Statistic: Clone {
    /// In the name of the exchange.
    const WHAT: &'static str;
    fn empty(channels: usize) -> Self;
    fn merge(self, other: Self) -> Self;
    /// How many numbers [`Self::pack`] gives for `channels` channels.
    fn width(channels: usize) -> usize;
    fn pack(&self, into: &mut Vec<f64>);
    /// What [`Self::pack`] gave.
    fn unpack(numbers: &[f64], channels: usize) -> Self;
}

/// Merges, for each of several norms, the parts of own lanes and, where `synced` is given, those of all ranks' lanes, in
/// the tree of all lanes. All of them go over ranks together, and nothing else than whole subtrees of own lanes does.
///
/// `parts` has those of each own lane, or none, which adds nothing; `channels` are the norms'.
pub fn merged<T: Statistic>(
    parts: Vec<Vec<T>>,
    lanes: &Lanes,
    synced: Option<&Synced>,
    channels: &[usize],
) -> Vec<T> {
    let norms = parts.into_iter().zip(channels);
    let Some(s) = synced else {
        let sum = |(p, &c)| tree(p, T::merge).unwrap_or_else(|| T::empty(c));
        return norms.map(sum).collect();
    };
    let mut own = vec![];
    for (parts, &c) in norms {
        let mut parts = parts.into_iter();
        for node in lanes.subtrees() {
            let of_node = parts.by_ref().take(node.len()).collect();
            let sum = tree(of_node, T::merge).unwrap_or_else(|| T::empty(c));
            sum.pack(&mut own);
        }
    }
    // a failure is told elsewhere, what is computed then is not used
    let all = s.ranks.gather(&s.name, T::WHAT, own).unwrap_or_default();
    let (size, total) = (s.ranks.size(), lanes.total());
    let nodes: Vec<_> = (0..size)
        .map(|r| lanes::nodes(total, lanes::lanes_of(r, size, total)))
        .collect();
    let mut rest: Vec<&[f64]> = all.iter().map(Vec::as_slice).collect();
    let mut of_norm = |c: usize| {
        let mut values = vec![];
        for (rest, nodes) in rest.iter_mut().zip(&nodes) {
            for _ in nodes {
                let (numbers, behind) = rest.split_at_checked(T::width(c))?;
                values.push(Some(T::unpack(numbers, c)));
                *rest = behind;
            }
        }
        let nodes = nodes.concat();
        (values.len() == nodes.len())
            .then(|| lanes::tree_of_nodes(total, &nodes, values, &mut T::merge))
            .flatten()
    };
    let of_norm = |&c: &usize| of_norm(c).unwrap_or_else(|| T::empty(c));
    channels.iter().map(of_norm).collect()
}

/// How a reduction over `[images, pixels, channels]` is cut: a function of the shape and the vector's width.
struct Plan {
    /// Floats of a row of the matrix.
    width: usize,
    /// Floats of an image.
    image: usize,
    /// Floats of a task, whole pixels.
    task: usize,
}

impl Plan {
    fn new(isa: Isa, pixels: usize, channels: usize) -> Self {
        let width = row_width(channels, isa.width());
        Self {
            width,
            image: pixels * channels,
            task: ROWS * width * (TASK / (ROWS * width)).max(1),
        }
    }

    /// Runs `f` on the place of each task: lane by lane, image by image, in order.
    fn tasks<T: Send>(
        &self,
        lanes: &[Range<usize>],
        f: impl Fn(Range<usize>) -> T + Sync,
    ) -> Vec<T> {
        let each = self.image.div_ceil(self.task);
        let images: Vec<usize> = lanes.iter().flat_map(Range::clone).collect();
        (0..images.len() * each)
            .into_par_iter()
            .map(|t| {
                let first = images[t / each] * self.image;
                let at = t % each * self.task;
                f(first + at..first + (at + self.task).min(self.image))
            })
            .collect()
    }

    /// Adds up the results of [`Self::tasks`] of each lane.
    fn per_lane<T: Clone>(
        &self,
        parts: Vec<T>,
        lanes: &[Range<usize>],
        empty: T,
        add: impl Fn(&mut T, &T),
    ) -> Vec<T> {
        let each = self.image.div_ceil(self.task);
        let mut parts = parts.iter();
        let lane = |lane: &Range<usize>| {
            let mut total = empty.clone();
            for _ in lane.clone() {
                // an image is one summand: its bytes do not depend on what stands before it
                let mut image = empty.clone();
                parts.by_ref().take(each).for_each(|p| add(&mut image, p));
                add(&mut total, &image);
            }
            total
        };
        lanes.iter().map(lane).collect()
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The smallest common multiple of channels and vector that has `MIN_VECTORS`.
fn row_width(channels: usize, vector: usize) -> usize {
    let both = channels / gcd(channels, vector) * vector;
    both * (MIN_VECTORS * vector).div_ceil(both)
}

/// Floats of a task of an elementwise pass, whole rows.
fn chunk(width: usize) -> usize {
    width * (CHUNK / width).max(1)
}

/// Adds the sums of a row to those of the channels.
#[inline(always)]
fn fold(row: &[f32], sums: &mut [f64]) {
    for pixel in row.chunks_exact(sums.len()) {
        for (s, &v) in sums.iter_mut().zip(pixel) {
            *s += f64::from(v);
        }
    }
}

#[cfg(test)]
#[path = "norm_tests.rs"]
mod tests;
