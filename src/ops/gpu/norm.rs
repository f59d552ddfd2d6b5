//! Batch norm and activation.
//!
//! Forward: [`moments`] of pieces of images in one pass over `y`, merged by lanes; [`normalise`] merges the lanes (of all
//! ranks) in the fixed tree, where it also moves the running statistics, and writes the activations in one pass.
//! Backward: sums of pieces in one pass, by lanes, then the input's gradient in one pass. The derivative of SiLU is
//! computed again from `y`; nothing but four numbers of each channel is kept.

use super::launch::{Cut, Plan, T, UNITS, arg, cube_dim, cubes, elem, empty, table, vector};
use super::norm_kernels::{
    gradient_lanes_kernel, gradient_sums_kernel, input_gradient_kernel, merge_kernel,
    moments_kernel, normalise_kernel,
};
use super::sums::{self, Target};
use crate::ops::Activation;
use crate::ops::group::Rows;
use burn::tensor::DType;

/// Rows of a piece for each unit: enough to hide the reduction at its end, few enough for 20x20 maps to fill a GPU.
const TIMES: usize = 16;
/// Columns and units of a column of the merging kernel: an image has many pieces, and a small network few channels.
const COLUMNS: usize = 8;
const SLOTS: usize = 32;

/// `[images, pixels, channels]` with its cut into pieces.
pub(super) struct Grid {
    plan: Plan,
    vector: usize,
    images: usize,
    pixels: usize,
    channels: usize,
}

impl Grid {
    pub fn new(tensors: &[&T]) -> Self {
        let [images, h, w, channels] = super::launch::dims4(tensors[0]);
        let vector = vector(tensors, &[channels]);
        Self {
            plan: Plan::new(h * w, channels, vector, TIMES),
            vector,
            images,
            pixels: h * w,
            channels,
        }
    }
    fn pieces(&self) -> usize {
        self.images * self.plan.per_image
    }
    fn parts(&self, like: &T) -> T {
        table(like, self.pieces() * 2 * self.channels)
    }
    /// Cubes of a pass over all rows.
    fn passes(&self) -> usize {
        let rows = self.images * self.pixels;
        rows.div_ceil(self.plan.chunk).max(1) * self.plan.blocks
    }
}

/// Mean and sum of squared deviations of each own lane, into `rows`; zeros of an empty one.
pub(super) fn moments(y: &T, cut: Cut, rows: &Rows) {
    let g = Grid::new(&[y]);
    let (p, client) = (g.plan, &y.client);
    let parts = g.parts(y);
    let blocks = g.channels.div_ceil(COLUMNS);
    // SAFETY: pieces are those of the images, columns those of the channels.
    unsafe {
        if g.pieces() > 0 {
            moments_kernel::launch_unchecked(
                client,
                cubes(g.pieces() * p.blocks),
                cube_dim(),
                g.vector,
                arg(y, g.vector),
                arg(&parts, g.vector),
                g.pixels,
                p.chunk,
                p.per_image,
                g.pieces(),
                p.vectors,
                p.width,
                p.blocks,
                UNITS,
                elem(y.dtype),
            );
        }
        merge_kernel::launch_unchecked(
            client,
            cubes(blocks * cut.own),
            cube_dim(),
            arg(&parts, 1),
            arg(&rows.table, 1),
            rows.at,
            sums::lane_len(&rows.table),
            g.pixels,
            p.chunk,
            p.per_image,
            g.channels,
            blocks,
            cut.all,
            cut.lanes,
            cut.first,
            cut.own,
            COLUMNS,
            SLOTS,
        );
    }
}

/// What the statistics of a norm are, on the device.
pub(super) enum Source {
    /// Those of the lanes of all ranks, and the running statistics that move towards them with this momentum.
    Lanes(Rows, Option<(Places, f32)>),
    Fixed(Places),
}

/// Where mean and variance lie.
#[derive(Clone)]
pub(super) struct Places {
    pub flat: T,
    pub mean: usize,
    pub var: usize,
}

/// Activations, and `[4, channels]` for the backward pass.
pub(super) fn normalise(
    y: &T,
    gamma: &T,
    beta: &T,
    source: Source,
    cut: Cut,
    act: Activation,
) -> (T, T) {
    let g = Grid::new(&[y]);
    let (p, client) = (g.plan, &y.client);
    let out = empty(y, y.meta.shape().clone(), y.dtype);
    let stats = empty(y, [4, g.channels], DType::F32);
    let (rows, places, momentum, fixed) = match source {
        Source::Lanes(rows, running) => {
            let (places, momentum) = running.unzip();
            (rows, places, momentum, false)
        }
        Source::Fixed(places) => (no_rows(y), Some(places), None, true),
    };
    let tracks = momentum.is_some();
    // without images there is nothing to read or write, but statistics there are: those of other ranks
    let (from, to) = match g.images {
        0 => (table(y, 4), table(y, 4)),
        _ => (y.clone(), out.clone()),
    };
    let places = places.unwrap_or_else(|| Places {
        flat: table(y, 1),
        mean: 0,
        var: 0,
    });
    // SAFETY: units stay in the rows and channels of `y`.
    unsafe {
        normalise_kernel::launch_unchecked(
            client,
            cubes(g.passes()),
            cube_dim(),
            g.vector,
            arg(&from, g.vector),
            arg(gamma, 1),
            arg(beta, 1),
            arg(&rows.table, 1),
            arg(&places.flat, 1),
            arg(&stats, 1),
            arg(&to, g.vector),
            g.images * g.pixels,
            p.chunk,
            p.vectors,
            p.width,
            p.blocks,
            g.pixels,
            cut.images,
            cut.all,
            cut.lanes,
            cut.first,
            rows.at,
            sums::lane_len(&rows.table),
            places.mean,
            places.var,
            momentum.unwrap_or(0.0),
            crate::ops::NORM_EPS as f32,
            cut.own,
            fixed,
            tracks,
            act == Activation::Silu,
            UNITS,
            elem(y.dtype),
        );
    }
    (out, stats)
}

/// Sums of `dz` and `dz (y - mean)` of each own lane, into `rows`; the gradients of gamma and beta go to their targets, or
/// are returned.
pub(super) fn gradient_sums(
    da: &T,
    y: &T,
    stats: &T,
    cut: Cut,
    act: Activation,
    rows: &Rows,
    gamma: Target,
    beta: Target,
) -> (T, T) {
    let g = Grid::new(&[y, da]);
    let (p, client) = (g.plan, &y.client);
    let parts = g.parts(y);
    let c = g.channels;
    // one launch where both go to the same memory, as those of a step do
    let direct = match (&gamma, &beta) {
        (Target::Slot(_, a), Target::Slot(_, b)) => (same_memory(&a.flat, &b.flat)
            && a.add == b.add)
            .then(|| (a.flat.clone(), a.offset, b.offset, a.add)),
        _ => None,
    };
    let is_direct = direct.is_some();
    let (out, gamma_at, beta_at, add) =
        direct.unwrap_or_else(|| (empty(y, [cut.own, 2 * c], DType::F32), 0, c, false));
    let blocks = c.div_ceil(COLUMNS);
    // SAFETY: pieces are those of the images, columns those of the channels.
    unsafe {
        if g.pieces() > 0 {
            gradient_sums_kernel::launch_unchecked(
                client,
                cubes(g.pieces() * p.blocks),
                cube_dim(),
                g.vector,
                arg(y, g.vector),
                arg(da, g.vector),
                arg(stats, 1),
                arg(&parts, g.vector),
                g.pixels,
                p.chunk,
                p.per_image,
                g.pieces(),
                p.vectors,
                p.width,
                p.blocks,
                act == Activation::Silu,
                UNITS,
                elem(y.dtype),
            );
        }
        gradient_lanes_kernel::launch_unchecked(
            client,
            cubes(blocks * cut.own),
            cube_dim(),
            arg(&parts, 1),
            arg(stats, 1),
            arg(&rows.table, 1),
            arg(&out, 1),
            rows.at,
            sums::lane_len(&rows.table),
            p.per_image,
            c,
            blocks,
            cut.all,
            cut.lanes,
            cut.first,
            cut.own,
            sums::lane_len(&out),
            gamma_at,
            beta_at,
            add,
            COLUMNS,
            SLOTS,
        );
    }
    let put = |target: Target, from: usize| match target {
        Target::Slot(slot, _) if is_direct => {
            slot.sink.written(slot.id);
            sums::nothing(y)
        }
        target => sums::put(&out, from, target, [c].into(), DType::F32),
    };
    (put(gamma, 0), put(beta, c))
}

/// What is bound where statistics are constants; nobody reads it.
fn no_rows(like: &T) -> Rows {
    Rows {
        table: table(like, 1),
        at: 0,
    }
}

fn same_memory(a: &T, b: &T) -> bool {
    a.handle.memory.descriptor() == b.handle.memory.descriptor()
        && a.handle.offset_start == b.handle.offset_start
}

/// The gradient with respect to `y`; `rows` are the sums of all ranks' lanes, `None` where the statistics are constants.
pub(super) fn input_gradient(
    da: &T,
    y: &T,
    stats: &T,
    rows: Option<Rows>,
    cut: Cut,
    act: Activation,
) -> T {
    let g = Grid::new(&[y, da]);
    let (p, client) = (g.plan, &y.client);
    let out = empty(y, y.meta.shape().clone(), y.dtype);
    if g.images == 0 {
        return out;
    }
    let fixed = rows.is_none();
    let rows = rows.unwrap_or_else(|| no_rows(y));
    // SAFETY: units stay in the rows and channels of `y`.
    unsafe {
        input_gradient_kernel::launch_unchecked(
            client,
            cubes(g.passes()),
            cube_dim(),
            g.vector,
            arg(y, g.vector),
            arg(da, g.vector),
            arg(stats, 1),
            arg(&rows.table, 1),
            arg(&out, g.vector),
            rows.at,
            sums::lane_len(&rows.table),
            g.images * g.pixels,
            p.chunk,
            p.vectors,
            p.width,
            p.blocks,
            g.pixels,
            cut.images,
            cut.own,
            fixed,
            act == Activation::Silu,
            UNITS,
            elem(y.dtype),
        );
    }
    out
}
