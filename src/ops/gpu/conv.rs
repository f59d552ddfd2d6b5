//! Convolutions: which kernel computes which.

use super::depthwise;
use super::gemm::{self, GatherLaunch, PixelsLaunch, Tile};
use super::launch::{Cut, T, UNITS, arg, cube_dim, cubes, dims4, elem, empty, table, vector};
#[cfg(feature = "cuda")]
use super::library;
use super::shape::{along, concat, sum};
use super::sums::{self, Target, lane_len, lane_sums, nothing};
use crate::ops::extension::{ConvArgs, Record};
use burn::tensor::{DType, Shape};
use burn_cubecl::ops::reshape;
use std::ops::Range;

/// Tiles of a weight gradient from which on a cube takes a whole lane: there are enough cubes then, and a partial sum
/// for each image would cost memory.
const MANY_TILES: usize = 48;
/// Cubes of an image's weight gradient to aim at, and the fewest pixels that a cube sums.
const CUBES: usize = 32;
const PIXELS: usize = 256;

/// Sizes of a convolution with padding `k / 2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sizes {
    pub n: usize,
    pub h: usize,
    pub w: usize,
    pub ci: usize,
    pub co: usize,
    pub k: usize,
    pub stride: usize,
    pub groups: usize,
}

impl Sizes {
    /// Of `x` `[n, h, w, ci]` and `w` `[k, k, ci/groups, co]`.
    ///
    /// # Panics
    /// If their channels do not fit.
    pub fn new(x: &T, w: &T, stride: usize, groups: usize) -> Self {
        let ([n, h, wd, ci], [k, _, per_group, co]) = (dims4(x), dims4(w));
        assert_eq!(
            ci,
            per_group * groups,
            "channels of x {:?} and w {:?}",
            x.meta.shape(),
            w.meta.shape()
        );
        Self {
            n,
            h,
            w: wd,
            ci,
            co,
            k,
            stride,
            groups,
        }
    }
    pub fn pad(&self) -> usize {
        self.k / 2
    }
    pub fn out_h(&self) -> usize {
        self.h.div_ceil(self.stride)
    }
    pub fn out_w(&self) -> usize {
        self.w.div_ceil(self.stride)
    }
    pub fn is_depthwise(&self) -> bool {
        self.groups == self.ci && self.co == self.ci
    }
    pub fn y_shape(&self) -> [usize; 4] {
        [self.n, self.out_h(), self.out_w(), self.co]
    }
    /// Elements of the weights.
    pub fn weights(&self) -> usize {
        self.k * self.k * (self.ci / self.groups) * self.co
    }
}

pub(super) fn forward(x: &T, w: &T, s: &Sizes, args: &ConvArgs) -> T {
    #[cfg(feature = "cuda")]
    if let Some(y) = library::forward(x, w, None, s, args) {
        return y;
    }
    let y = empty(x, s.y_shape(), x.dtype);
    if s.n == 0 {
        return y;
    }
    if s.is_depthwise() {
        depthwise::forward(x, w, &y, s);
    } else if s.groups > 1 {
        return by_groups(s, 3, |i, g| {
            forward(&part(x, i, g.ci), &part(w, i, g.co), g, &args.of_group())
        });
    } else {
        gather(x, w, &y, s, false);
    }
    y
}

/// As [`forward`], and `bias` `[co]` is added.
pub(super) fn forward_bias(x: &T, w: &T, bias: &T, s: &Sizes, args: &ConvArgs) -> T {
    #[cfg(feature = "cuda")]
    if let Some(y) = library::forward(x, w, Some(bias), s, args) {
        return y;
    }
    sum(&forward(x, w, s, args), bias)
}

pub(super) fn backward_data(dy: &T, w: &T, s: &Sizes, args: &ConvArgs) -> T {
    #[cfg(feature = "cuda")]
    if let Some(dx) = library::backward_data(dy, w, s, args) {
        return dx;
    }
    let dx = empty(dy, [s.n, s.h, s.w, s.ci], dy.dtype);
    if s.n == 0 {
        return dx;
    }
    if s.is_depthwise() {
        depthwise::backward_data(dy, w, &dx, s);
    } else if s.groups > 1 {
        return by_groups(s, 3, |i, g| {
            backward_data(&part(dy, i, g.co), &part(w, i, g.co), g, &args.of_group())
        });
    } else {
        gather(dy, w, &dx, s, true);
    }
    dx
}

impl ConvArgs {
    /// Of one group by itself.
    fn of_group(&self) -> Self {
        Self {
            groups: 1,
            slot: None,
            filters: Record::new(),
            ..self.clone()
        }
    }
}

/// Channels of group `i`.
fn part(t: &T, i: usize, channels: usize) -> T {
    along(t, 3, i * channels, channels)
}

/// Joins what `f` gives for each group along `axis`. No network here has such convolutions but those with one filter per
/// channel: it is right, and not fast.
fn by_groups(s: &Sizes, axis: usize, mut f: impl FnMut(usize, &Sizes) -> T) -> T {
    let group = Sizes {
        ci: s.ci / s.groups,
        co: s.co / s.groups,
        groups: 1,
        ..*s
    };
    let first = f(0, &group);
    (1..s.groups).fold(first, |all, i| concat(&[&all, &f(i, &group)], axis))
}

fn gather(a: &T, w: &T, out: &T, s: &Sizes, turned: bool) {
    let [_, a_h, a_w, depth] = dims4(a);
    let [_, out_h, out_w, columns] = dims4(out);
    let (classes, step) = match turned {
        true => (s.stride * s.stride, s.stride),
        false => (1, 1),
    };
    let (grid_h, grid_w) = (out_h.div_ceil(step), out_w.div_ceil(step));
    let rows = s.n * grid_h * grid_w;
    let tile = Tile::new(rows, columns);
    let (tiles_m, tiles_n) = (rows.div_ceil(tile.m), columns.div_ceil(tile.n));
    let (va, vb, vo) = (
        vector(&[a], &[depth]),
        vector(&[w], &[if turned { depth } else { columns }]),
        vector(&[out], &[columns]),
    );
    let client = &a.client;
    let u = |v: usize| v as u32;
    // SAFETY: reads and writes are masked by the sizes.
    unsafe {
        gemm::gather_kernel::launch_unchecked(
            client,
            cubes(classes * tiles_m * tiles_n),
            cube_dim(),
            va,
            vb,
            vo,
            arg(a, va),
            arg(w, vb),
            arg(out, vo),
            GatherLaunch::new(
                u(s.n),
                u(grid_h),
                u(grid_w),
                u(a_h),
                u(a_w),
                u(out_h),
                u(out_w),
                u(depth),
                u(columns),
                u(s.k),
                u(s.pad()),
                u(s.stride),
                u(tiles_m),
                u(tiles_n),
            ),
            turned,
            tile.m,
            tile.n,
            tile.k,
            tile.rows,
            UNITS,
            elem(a.dtype),
        );
    }
}

/// The gradient with respect to the weights, by lanes, into the target or as a tensor of type `dtype`.
pub(super) fn backward_weight(
    dy: &T,
    x: &T,
    s: &Sizes,
    cut: Cut,
    lanes: &[Range<usize>],
    target: Target,
    shape: Shape,
    dtype: DType,
) -> T {
    #[cfg(feature = "cuda")]
    if let Some(dw) = library::backward_weight(dy, x, s, lanes, cut, &target, &shape, dtype) {
        return dw;
    }
    if s.is_depthwise() {
        return depthwise::backward_weight(dy, x, s, cut, target, shape, dtype);
    }
    if s.groups > 1 {
        let rows = by_groups(s, 2, |i, g| {
            let (dy, x) = (part(dy, i, g.co), part(x, i, g.ci));
            let of_group = g.weights();
            let (target, shape) = (Target::Lanes, [of_group].into());
            let rows = backward_weight(&dy, &x, g, cut, lanes, target, shape, DType::F32);
            reshape(rows, [cut.own, of_group / g.co, g.co].into())
        });
        let rows = reshape(rows, [cut.own, s.weights()].into());
        return sums::put(&rows, 0, target, shape, dtype);
    }
    let height = s.k * s.k * s.ci;
    let tile = Tile::new(height, s.co);
    let tiles = [height.div_ceil(tile.m), s.co.div_ceil(tile.n)];
    let count = tiles[0] * tiles[1];
    if count >= MANY_TILES {
        let run = |out: &T, stride: usize, offset: usize, add: bool| {
            weights(dy, x, s, cut, tile, tiles, None, out, [stride, offset], add);
        };
        return match target {
            Target::Slot(slot, place) => {
                run(&place.flat, lane_len(&place.flat), place.offset, place.add);
                slot.sink.written(slot.id);
                nothing(x)
            }
            target => {
                let rows = empty(x, [cut.own, s.weights()], DType::F32);
                run(&rows, s.weights(), 0, false);
                sums::put(&rows, 0, target, shape, dtype)
            }
        };
    }
    let pixels = s.out_h() * s.out_w();
    let per_image = CUBES.div_ceil(count).min(pixels.div_ceil(PIXELS)).max(1);
    let chunk = pixels.div_ceil(per_image).max(1);
    let per_image = pixels.div_ceil(chunk).max(1);
    let parts = table(x, s.n * per_image * s.weights());
    if s.n > 0 {
        let pieces = Some((chunk, per_image));
        weights(
            dy,
            x,
            s,
            cut,
            tile,
            tiles,
            pieces,
            &parts,
            [s.weights(), 0],
            false,
        );
    }
    lane_sums(&parts, per_image, s.weights(), cut, target, shape, dtype)
}

fn weights(
    dy: &T,
    x: &T,
    s: &Sizes,
    cut: Cut,
    tile: Tile,
    tiles: [usize; 2],
    pieces: Option<(usize, usize)>,
    out: &T,
    place: [usize; 2],
    add: bool,
) {
    let (va, vb) = (vector(&[x], &[s.ci]), vector(&[dy], &[s.co]));
    let by_lane = pieces.is_none();
    let (chunk, per_image) = pieces.unwrap_or((0, 1));
    let pieces = if by_lane { cut.own } else { s.n * per_image };
    let client = &x.client;
    let u = |v: usize| v as u32;
    // SAFETY: reads and writes are masked by the sizes.
    unsafe {
        gemm::weight_kernel::launch_unchecked(
            client,
            cubes(pieces * tiles[0] * tiles[1]),
            cube_dim(),
            va,
            vb,
            arg(x, va),
            arg(dy, vb),
            arg(out, 1),
            PixelsLaunch::new(
                u(s.h),
                u(s.w),
                u(s.out_h()),
                u(s.out_w()),
                u(s.ci),
                u(s.co),
                u(s.k),
                u(s.pad()),
                u(s.stride),
                u(chunk),
                u(per_image),
                u(pieces),
                u(tiles[0]),
                u(tiles[1]),
            ),
            cut.all,
            cut.lanes,
            cut.first,
            place[0],
            place[1],
            add,
            by_lane,
            tile.m,
            tile.n,
            tile.k,
            tile.rows,
            UNITS,
            elem(x.dtype),
        );
    }
}
