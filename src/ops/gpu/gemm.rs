//! Convolutions as matrix products with float32 sums: what runs where no vendor library does.
//!
//! A cube computes a tile of the product from tiles of both operands in shared memory, which it gathers from the
//! activations: nothing is unrolled into memory. The order of every sum is that of taps and channels (or of pixels).

use super::launch::lane_start;
use cubecl::num_traits::Zero;
use cubecl::prelude::*;

/// Columns that a unit computes.
pub(super) const TN: usize = 4;

/// Sizes of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    /// Rows, columns and depth.
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Rows that a unit computes, [`TN`] columns each.
    pub rows: usize,
}

impl Tile {
    /// For a product of `m` rows and `n` columns; 256 units each.
    pub fn new(m: usize, n: usize) -> Self {
        let (tile_m, tile_n, k, rows) = match n {
            0..=16 => (256, 16, 8, 4),
            17..=32 => (128, 32, 16, 4),
            _ if m >= 1 << 14 => (128, 64, 16, 8),
            _ => (64, 64, 16, 4),
        };
        Self {
            m: tile_m,
            n: tile_n,
            k,
            rows,
        }
    }
}

/// Which pixels of `a` a row of the product reads, and where it lies in the output.
#[derive(CubeLaunch, CubeType, Clone, Copy)]
pub(super) struct Gather {
    /// Images, rows and columns of the grid of rows (of one class).
    pub images: u32,
    pub grid_h: u32,
    pub grid_w: u32,
    /// Size of the images that are read.
    pub a_h: u32,
    pub a_w: u32,
    /// Size of the images that are written.
    pub out_h: u32,
    pub out_w: u32,
    /// Channels that are read and written.
    pub depth: u32,
    pub columns: u32,
    /// Edge of the kernel, padding, stride.
    pub kernel: u32,
    pub pad: u32,
    pub stride: u32,
    /// Tiles along rows and columns.
    pub tiles_m: u32,
    pub tiles_n: u32,
}

/// Taps along an axis that reach a pixel: how many, the first, and where the first one reads relative to the pixel's
/// place in the grid. Of a convolution that is turned round, only every `stride`th tap reaches a class of pixels.
#[cube]
fn taps(class: u32, g: &Gather, #[comptime] turned: bool) -> (u32, u32, i32) {
    let mut count = g.kernel;
    let mut first = 0u32;
    let mut base = 0i32 - g.pad as i32;
    if turned {
        first = (class + g.pad) % g.stride;
        base = ((class + g.pad - first) / g.stride) as i32;
        // the kernel may be narrower than the stride
        count = (g.kernel + g.stride - 1 - min(first, g.kernel + g.stride - 1)) / g.stride;
    }
    (count, first, base)
}

/// `out[pixel, n] = sum over taps and depth of a[pixel of the tap, k] w[tap, k, n]`; `turned`, the gradient with respect
/// to a convolution's input, reads `w[tap, n, k]` and the pixels that a pixel contributed to. It has `stride^2` classes
/// of pixels, which differ in their taps.
#[cube(launch_unchecked)]
pub(super) fn gather_kernel<F: Float, NA: Size, NB: Size, NO: Size>(
    a: &[Vector<F, NA>],
    w: &[Vector<F, NB>],
    out: &mut [Vector<F, NO>],
    g: &Gather,
    #[comptime] turned: bool,
    #[comptime] tm: usize,
    #[comptime] tn: usize,
    #[comptime] tk: usize,
    #[comptime] rows: usize,
    #[comptime] units: usize,
    #[define(F)] _dtype: ElemType,
) {
    let cube = CUBE_POS as u32;
    let tile_n = cube % g.tiles_n;
    let tile_m = cube / g.tiles_n % g.tiles_m;
    let class = cube / g.tiles_n / g.tiles_m;
    let mut classes = 1u32;
    let mut step = 1u32;
    if turned {
        classes = g.stride * g.stride;
        step = g.stride;
    }
    if class >= classes {
        terminate!();
    }
    let (class_y, class_x) = (class / step, class % step);
    let (taps_y, first_y, base_y) = taps(class_y, g, turned);
    let (taps_x, first_x, base_x) = taps(class_x, g, turned);
    let mut scale = g.stride as i32;
    let mut turn = 1i32;
    if turned {
        scale = 1i32.runtime();
        turn = (-1i32).runtime();
    }
    let depth = taps_y * taps_x * g.depth;
    let (va, vb, vo) = (NA::value(), NB::value(), NO::value());
    let pitch = comptime!(tm + 4);
    let mut a_tile = Shared::<[f32]>::new_aligned_slice(comptime!(pitch * tk), 16usize);
    let mut b_tile = Shared::<[f32]>::new_aligned_slice(comptime!(tn * tk), 16usize);
    let unit = UNIT_POS as usize;

    // the pixels of the rows of `a` that this unit loads
    let loads = comptime!((tm * tk / va).div_ceil(units));
    let mut ys = Array::<i32>::new(loads);
    let mut xs = Array::<i32>::new(loads);
    let mut bases = Array::<u32>::new(loads);
    let grid = g.grid_h * g.grid_w;
    #[unroll]
    for it in 0..loads {
        let row = (unit + it * units) / comptime!(tk / va);
        let m = tile_m * comptime!(tm as u32) + row as u32;
        let image = m / grid;
        let inside = image < g.images;
        let y = (m % grid / g.grid_w) as i32 * scale + base_y;
        // far outside: no tap reaches it
        ys[it] = select(inside, y, (-1i32 << 20).runtime());
        xs[it] = (m % g.grid_w) as i32 * scale + base_x;
        bases[it] = image * g.a_h;
    }
    let mut acc = Array::<f32>::new(comptime!(rows * TN));
    #[unroll]
    for i in 0..comptime!(rows * TN) {
        acc[i] = f32::new(0.0f32);
    }
    let across = comptime!(tn / TN);
    let (tx, ty) = (unit % across, unit / across);
    let steps = depth.div_ceil(comptime!(tk as u32));
    for s in 0..steps {
        let start = s * comptime!(tk as u32);
        #[unroll]
        for it in 0..loads {
            let index = unit + it * units;
            let row = index / comptime!(tk / va);
            let column = index % comptime!(tk / va) * va;
            if row < tm {
                let k = start + column as u32;
                let tap = k / g.depth;
                let y = ys[it] + (tap / taps_x) as i32 * turn;
                let x = xs[it] + (tap % taps_x) as i32 * turn;
                let mut value = Vector::<f32, NA>::zero();
                if k < depth && y >= 0 && y < g.a_h as i32 && x >= 0 && x < g.a_w as i32 {
                    let pixel = (bases[it] + y as u32) * g.a_w + x as u32;
                    let at = (pixel * g.depth + k % g.depth) as usize / va;
                    value = Vector::<f32, NA>::cast_from(a[at]);
                }
                #[unroll]
                for j in 0..va {
                    a_tile[(column + j) * pitch + row] = value.extract(j);
                }
            }
        }
        let loads_b = comptime!((tn * tk / vb).div_ceil(units));
        #[unroll]
        for it in 0..loads_b {
            let index = unit + it * units;
            if index < comptime!(tn * tk / vb) {
                let mut value = Vector::<f32, NB>::zero();
                if turned {
                    // along the depth, which is contiguous there
                    let n = index / comptime!(tk / vb);
                    let row = index % comptime!(tk / vb) * vb;
                    let k = start + row as u32;
                    let tap = k / g.depth;
                    let tap_y = first_y + tap / taps_x * g.stride;
                    let tap_x = first_x + tap % taps_x * g.stride;
                    let column = tile_n * comptime!(tn as u32) + n as u32;
                    if k < depth && column < g.columns {
                        let at = ((tap_y * g.kernel + tap_x) * g.columns + column) * g.depth
                            + k % g.depth;
                        value = Vector::<f32, NB>::cast_from(w[at as usize / vb]);
                    }
                    #[unroll]
                    for j in 0..vb {
                        b_tile[(row + j) * tn + n] = value.extract(j);
                    }
                } else {
                    let n = index % comptime!(tn / vb) * vb;
                    let row = index / comptime!(tn / vb);
                    let k = start + row as u32;
                    let column = tile_n * comptime!(tn as u32) + n as u32;
                    if k < depth && column < g.columns {
                        value =
                            Vector::<f32, NB>::cast_from(w[(k * g.columns + column) as usize / vb]);
                    }
                    #[unroll]
                    for j in 0..vb {
                        b_tile[row * tn + n + j] = value.extract(j);
                    }
                }
            }
        }
        sync_cube();
        multiply(&a_tile, &b_tile, &mut acc, ty, tx, pitch, tn, tk, rows);
        sync_cube();
    }
    #[unroll]
    for i in 0..rows {
        let m = tile_m * comptime!(tm as u32) + (ty * rows + i) as u32;
        let image = m / grid;
        let y = m % grid / g.grid_w * step + class_y;
        let x = m % g.grid_w * step + class_x;
        if image < g.images && y < g.out_h && x < g.out_w {
            let pixel = (image * g.out_h + y) * g.out_w + x;
            #[unroll]
            for j in 0..comptime!(TN / vo) {
                let n = tile_n * comptime!(tn as u32) + (tx * TN + j * vo) as u32;
                if n < g.columns {
                    let mut value = Vector::<f32, NO>::zero();
                    #[unroll]
                    for k in 0..vo {
                        value.insert(k, acc[i * TN + j * vo + k]);
                    }
                    out[(pixel * g.columns + n) as usize / vo] = Vector::<F, NO>::cast_from(value);
                }
            }
        }
    }
}

/// Adds the product of two tiles in shared memory, `a` `[k, pitch]` and `b` `[k, tn]`, to the unit's part.
#[cube]
pub(super) fn multiply(
    a: &Shared<[f32]>,
    b: &Shared<[f32]>,
    acc: &mut Array<f32>,
    ty: usize,
    tx: usize,
    #[comptime] pitch: usize,
    #[comptime] tn: usize,
    #[comptime] tk: usize,
    #[comptime] rows: usize,
) {
    for k in 0..tk {
        let mut values = Array::<f32>::new(TN);
        #[unroll]
        for j in 0..TN {
            values[j] = b[k * tn + tx * TN + j];
        }
        #[unroll]
        for i in 0..rows {
            let v = a[k * pitch + ty * rows + i];
            #[unroll]
            for j in 0..TN {
                acc[i * TN + j] = fma(v, values[j], acc[i * TN + j]);
            }
        }
    }
}

/// What the gradient with respect to weights sums over.
#[derive(CubeLaunch, CubeType, Clone, Copy)]
pub(super) struct Pixels {
    /// Size of the input and of the output.
    pub h: u32,
    pub w: u32,
    pub out_h: u32,
    pub out_w: u32,
    /// Channels of both.
    pub ci: u32,
    pub co: u32,
    pub kernel: u32,
    pub pad: u32,
    pub stride: u32,
    /// Pixels of a piece, pieces of an image; whole lanes where this is 0.
    pub chunk: u32,
    pub per_image: u32,
    /// Pieces (or lanes) altogether.
    pub pieces: u32,
    pub tiles_m: u32,
    pub tiles_n: u32,
}

/// `out[piece, (tap, ci), co] = sum over the pixels of a piece of x[pixel of the tap, ci] dy[pixel, co]`.
#[cube(launch_unchecked)]
pub(super) fn weight_kernel<F: Float, NA: Size, NB: Size>(
    x: &[Vector<F, NA>],
    dy: &[Vector<F, NB>],
    out: &mut [f32],
    g: &Pixels,
    all: usize,
    lanes: usize,
    first: usize,
    stride: usize,
    offset: usize,
    #[comptime] add: bool,
    #[comptime] by_lane: bool,
    #[comptime] tm: usize,
    #[comptime] tn: usize,
    #[comptime] tk: usize,
    #[comptime] rows: usize,
    #[comptime] units: usize,
    #[define(F)] _dtype: ElemType,
) {
    let cube = CUBE_POS as u32;
    let tile_n = cube % g.tiles_n;
    let tile_m = cube / g.tiles_n % g.tiles_m;
    let piece = cube / g.tiles_n / g.tiles_m;
    if piece >= g.pieces {
        terminate!();
    }
    let pixels = g.out_h * g.out_w;
    let mut start = 0u32;
    let mut end = 0u32;
    if by_lane {
        start = lane_start(piece as usize, all, lanes, first) as u32 * pixels;
        end = lane_start(piece as usize + 1, all, lanes, first) as u32 * pixels;
    } else {
        let image = piece / g.per_image * pixels;
        start = image + piece % g.per_image * g.chunk;
        end = min(start + g.chunk, image + pixels);
    }
    let (va, vb) = (NA::value(), NB::value());
    let mut a_tile = Shared::<[f32]>::new_aligned_slice(comptime!(tm * tk), 16usize);
    let mut b_tile = Shared::<[f32]>::new_aligned_slice(comptime!(tn * tk), 16usize);
    let unit = UNIT_POS as usize;
    let height = g.kernel * g.kernel * g.ci;

    // the taps and channels that this unit loads
    let loads = comptime!((tm * tk / va).div_ceil(units));
    let mut ys = Array::<i32>::new(loads);
    let mut xs = Array::<i32>::new(loads);
    let mut channels = Array::<u32>::new(loads);
    #[unroll]
    for it in 0..loads {
        let column = (unit + it * units) % comptime!(tm / va) * va;
        let r = tile_m * comptime!(tm as u32) + column as u32;
        let tap = r / g.ci;
        ys[it] = (tap / g.kernel) as i32 - g.pad as i32;
        xs[it] = (tap % g.kernel) as i32 - g.pad as i32;
        channels[it] = r % g.ci;
    }
    let mut acc = Array::<f32>::new(comptime!(rows * TN));
    #[unroll]
    for i in 0..comptime!(rows * TN) {
        acc[i] = f32::new(0.0f32);
    }
    let across = comptime!(tn / TN);
    let (tx, ty) = (unit % across, unit / across);
    let steps = (end - start).div_ceil(comptime!(tk as u32));
    for s in 0..steps {
        let from = start + s * comptime!(tk as u32);
        #[unroll]
        for it in 0..loads {
            let index = unit + it * units;
            let column = index % comptime!(tm / va) * va;
            let row = index / comptime!(tm / va);
            if row < tk {
                let m = from + row as u32;
                let r = tile_m * comptime!(tm as u32) + column as u32;
                let y = (m % pixels / g.out_w * g.stride) as i32 + ys[it];
                let px = (m % g.out_w * g.stride) as i32 + xs[it];
                let mut value = Vector::<f32, NA>::zero();
                if m < end && r < height && y >= 0 && y < g.h as i32 && px >= 0 && px < g.w as i32 {
                    let pixel = (m / pixels * g.h + y as u32) * g.w + px as u32;
                    let at = (pixel * g.ci + channels[it]) as usize / va;
                    value = Vector::<f32, NA>::cast_from(x[at]);
                }
                #[unroll]
                for j in 0..va {
                    a_tile[row * tm + column + j] = value.extract(j);
                }
            }
        }
        let loads_b = comptime!((tn * tk / vb).div_ceil(units));
        #[unroll]
        for it in 0..loads_b {
            let index = unit + it * units;
            if index < comptime!(tn * tk / vb) {
                let n = index % comptime!(tn / vb) * vb;
                let row = index / comptime!(tn / vb);
                let m = from + row as u32;
                let column = tile_n * comptime!(tn as u32) + n as u32;
                let mut value = Vector::<f32, NB>::zero();
                if m < end && column < g.co {
                    value = Vector::<f32, NB>::cast_from(dy[(m * g.co + column) as usize / vb]);
                }
                #[unroll]
                for j in 0..vb {
                    b_tile[row * tn + n + j] = value.extract(j);
                }
            }
        }
        sync_cube();
        multiply(&a_tile, &b_tile, &mut acc, ty, tx, tm, tn, tk, rows);
        sync_cube();
    }
    let base = piece as usize * stride + offset;
    #[unroll]
    for i in 0..rows {
        let r = tile_m * comptime!(tm as u32) + (ty * rows + i) as u32;
        #[unroll]
        for j in 0..TN {
            let n = tile_n * comptime!(tn as u32) + (tx * TN + j) as u32;
            if r < height && n < g.co {
                let at = base + (r * g.co + n) as usize;
                if add {
                    out[at] += acc[i * TN + j];
                } else {
                    out[at] = acc[i * TN + j];
                }
            }
        }
    }
}
