//! Weight gradient: for each tap the product of the shifted input and the output's gradient, summed over pixels.
//!
//! Two ways to cut the work, by shape alone. Small gradients: each task takes some rows of a lane and has a
//! partial sum of the gradient; these are added in order within a lane, then over the lanes. Large ones: each
//! task takes a part of the gradient, goes over all images, and adds up its lanes itself.

use std::ops::Range;

use rayon::prelude::*;

use super::super::buffer::{Buffer, Shared};
use super::super::isa::Isa;
use super::super::lanes::{LaneSums, store, tree};
use super::ConvShape;
use super::gather::{Band, bands};
use super::pack;
use super::weight_tile::{Outer, outer};

/// Gradients up to this many numbers are summed over rows first.
const SMALL: usize = 200 * 1024;

struct Plan<'a> {
    isa: Isa,
    shape: &'a ConvShape,
    x: &'a [f32],
    dy: &'a [f32],
    /// Output columns by the taps that lie inside.
    columns: Vec<Band>,
    /// The gradient of `x`'s channels runs along vectors, not that of `dy`'s: `[co][k, k, ci]`.
    transposed: bool,
    /// Output rows that are computed together for all taps, so that they stay in the first cache.
    chunk: usize,
}

/// Part of one group's gradient: taps of the rows `kr`, of each the numbers `row` of `[k, ci]`, channels `co`.
#[derive(Debug, Clone)]
struct Part {
    group: usize,
    kr: Range<usize>,
    row: Range<usize>,
    co: Range<usize>,
}

impl Plan<'_> {
    fn ci(&self) -> usize {
        self.shape.ci / self.shape.groups
    }

    fn co(&self) -> usize {
        self.shape.co / self.shape.groups
    }

    /// Adds output rows `rows` of an image to `dst`: `[kr, row, co]`, or `[co][kr, row]` if transposed.
    fn accumulate(&self, image: usize, rows: Range<usize>, part: &Part, dst: &mut [f32]) {
        let height = part.row.len();
        assert_eq!(dst.len(), part.kr.len() * height * part.co.len());
        let mut r = rows.start;
        while r < rows.end {
            let end = (r + self.chunk).min(rows.end);
            for kr in part.kr.clone() {
                let at = (kr - part.kr.start) * height;
                for band in &self.columns {
                    self.taps(image, r..end, kr, band, part, at, dst);
                }
            }
            r = end;
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn taps(
        &self,
        image: usize,
        rows: Range<usize>,
        kr: usize,
        band: &Band,
        part: &Part,
        at: usize,
        dst: &mut [f32],
    ) {
        let s = self.shape;
        let (p, ci, oh, ow) = (s.k / 2, self.ci(), s.out_h(), s.out_w());
        // Rows whose tap lies inside: 0 <= r * stride + kr - p < h.
        let first = rows.start.max(p.saturating_sub(kr).div_ceil(s.stride));
        let last = rows
            .end
            .min((s.h + p).saturating_sub(kr).div_ceil(s.stride));
        if first >= last {
            return;
        }
        // Taps of a row follow each other in memory, unless a group takes a part of the channels.
        let one = s.groups == 1;
        let (count, step) = if one {
            (1, band.last - band.first)
        } else {
            (band.last - band.first, 1)
        };
        for i in 0..count {
            let tap = band.first + i;
            let lo = (tap * ci).max(part.row.start);
            let hi = ((tap + step) * ci).min(part.row.end);
            if lo >= hi {
                continue;
            }
            let x_row = (image * s.h + first * s.stride + kr - p) * s.w;
            let x_pixel = x_row + band.start * s.stride + tap - p;
            let x_at = x_pixel * s.ci + part.group * ci + lo - tap * ci;
            let y_at = ((image * oh + first) * ow + band.start) * s.co
                + part.group * self.co()
                + part.co.start;
            let (height, width) = (last - first, band.end - band.start);
            let at = at + lo - part.row.start;
            // The longer side of the grid is the inner loop.
            let (x_step, y_step) = ((s.stride * s.ci, s.stride * s.w * s.ci), (s.co, ow * s.co));
            let down = width < height;
            let turn = |(along, across): (usize, usize)| {
                if down {
                    (across, along)
                } else {
                    (along, across)
                }
            };
            let ((x_inner, x_outer), (y_inner, y_outer)) = (turn(x_step), turn(y_step));
            let (inner, outer_count) = turn((width, height));
            let (n, m) = (hi - lo, part.co.len());
            // What the next chunk will be the first to read.
            let x_ahead = if kr + s.stride >= part.kr.end {
                self.chunk * s.stride * s.w * s.ci
            } else {
                0
            };
            let y_ahead = if kr == part.kr.start && tap == 0 {
                self.chunk * ow * s.co
            } else {
                0
            };
            // SAFETY: the band's columns and the rows from `first` to `last` hold pixels whose taps lie inside `x`
            // (checked against the shape), `dst` holds the part (asserted), and it is borrowed exclusively.
            unsafe {
                let (x, y) = (self.x.as_ptr().add(x_at), self.dy.as_ptr().add(y_at));
                let o = if self.transposed {
                    let pitch = dst.len() / m;
                    Outer {
                        a: y,
                        a_inner: y_inner,
                        a_outer: y_outer,
                        rows: m,
                        b: x,
                        b_inner: x_inner,
                        b_outer: x_outer,
                        columns: n,
                        a_ahead: y_ahead,
                        b_ahead: x_ahead,
                        inner,
                        outer: outer_count,
                        dst: dst.as_mut_ptr().add(at),
                        pitch,
                    }
                } else {
                    Outer {
                        a: x,
                        a_inner: x_inner,
                        a_outer: x_outer,
                        rows: n,
                        b: y,
                        b_inner: y_inner,
                        b_outer: y_outer,
                        columns: m,
                        a_ahead: x_ahead,
                        b_ahead: y_ahead,
                        inner,
                        outer: outer_count,
                        dst: dst.as_mut_ptr().add(at * m),
                        pitch: m,
                    }
                };
                outer(self.isa, &o);
            }
        }
    }
}

pub(super) fn backward_weight(
    isa: Isa,
    shape: &ConvShape,
    x: &[f32],
    dy: &[f32],
    lanes: &[Range<usize>],
    sums: &mut LaneSums,
) {
    let (ci, co, k) = (shape.ci / shape.groups, shape.co / shape.groups, shape.k);
    let size = k * k * ci * co;
    let small = size <= SMALL;
    let n = isa.width();
    // Vectors go along the side that fills them better; along `dy` if equal.
    let waste = |c: usize| (c.div_ceil(n) * n) as f64 / c as f64;
    let one = if shape.groups == 1 { k * ci } else { ci };
    let load = |c: usize| if c <= n { 1.1 } else { 1.0 };
    let transposed = small && waste(one) * load(one) + 0.01 < waste(co) * load(co);
    let row_bytes = 4 * (shape.out_w() * shape.co + shape.stride * shape.w * shape.ci);
    // About what the first cache holds, but enough pixels to be worth loading and storing the sums; with several
    // taps the input is used again and may come from the second.
    let bytes = 1024 * if k == 1 { 64 } else { 192 };
    let plan = Plan {
        isa,
        shape,
        x,
        dy,
        columns: bands(shape.out_w(), shape.w, shape.stride, -((k / 2) as isize), k),
        transposed,
        chunk: (bytes / row_bytes).max(160usize.div_ceil(shape.out_w())),
    };
    if small {
        by_pixels(&plan, lanes, sums);
    } else {
        by_parts(&plan, lanes, sums);
    }
}

/// Output rows (counted over all images) of each partial sum, and for each lane its partial sums.
fn units(
    shape: &ConvShape,
    lanes: &[Range<usize>],
    small: bool,
) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    // Fewer pixels than this are not worth a sum of their own; more sums than this are not worth their memory.
    let (pixels, most) = if small { (400, 8) } else { (800, 4) };
    let oh = shape.out_h();
    let mut all = Vec::new();
    let of_lanes = lanes
        .iter()
        .map(|lane| {
            let (first, rows) = (lane.start * oh, lane.len() * oh);
            let start = all.len();
            if rows > 0 {
                let n = (rows * shape.out_w() / pixels).clamp(1, most).min(rows);
                all.extend((0..n).map(|i| first + i * rows / n..first + (i + 1) * rows / n));
            }
            start..all.len()
        })
        .collect();
    (all, of_lanes)
}

fn by_pixels(plan: &Plan, lanes: &[Range<usize>], sums: &mut LaneSums) {
    let s = plan.shape;
    let (ci, co, oh) = (plan.ci(), plan.co(), s.out_h());
    let size = s.k * s.k * ci * co;
    let small = size <= 16 * 1024;
    let (units, of_lanes) = units(s, lanes, small);
    // Larger gradients are cut into parts too, which follow each other in memory.
    let row = s.k * ci;
    let cuts = if small || plan.transposed {
        1
    } else {
        2usize.min(row)
    };
    let mut parts = Vec::new();
    for group in 0..s.groups {
        if cuts == 1 {
            parts.push(Part {
                group,
                kr: 0..s.k,
                row: 0..row,
                co: 0..co,
            });
        } else if s.k > 1 {
            parts.extend((0..s.k).map(|r| Part {
                group,
                kr: r..r + 1,
                row: 0..row,
                co: 0..co,
            }));
        } else {
            let cut = |i: usize| i * row / cuts;
            parts.extend((0..cuts).map(|i| Part {
                group,
                kr: 0..1,
                row: cut(i)..cut(i + 1),
                co: 0..co,
            }));
        }
    }
    let mut partial = Buffer::take(units.len() * s.groups * size);
    let shared = Shared::new(&mut partial);
    (0..units.len() * parts.len())
        .into_par_iter()
        .for_each(|t| {
            let (u, part) = (t / parts.len(), &parts[t % parts.len()]);
            let at = ((u * s.groups + part.group) * s.k + part.kr.start) * row * co
                + part.row.start * co;
            // SAFETY: the parts of a unit and the units are disjoint; each lies inside its unit's sum.
            let dst = unsafe { shared.slice(at, part.kr.len() * part.row.len() * co) };
            dst.fill(0.0);
            let mut rows = units[u].clone();
            while !rows.is_empty() {
                let (image, r) = (rows.start / oh, rows.start % oh);
                let end = (r + rows.len()).min(oh);
                plan.accumulate(image, r..end, part, dst);
                rows.start += end - r;
            }
        });
    let partial = &partial[..];
    let total = s.groups * size;
    const PIECE: usize = 4096;
    // The sum of a group of lanes from element `at` on.
    let reduce = |group: Range<usize>, at: usize, len: usize| {
        let add = |a: &mut Buffer, b: &[f32]| a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        let of = |u: usize| &partial[u * total + at..][..len];
        tree(
            group,
            &mut |l| {
                let mut units = of_lanes[l].clone();
                let first = units.next()?;
                let mut sum = Buffer::take(len);
                sum.copy_from_slice(of(first));
                units.for_each(|u| add(&mut sum, of(u)));
                Some(sum)
            },
            &mut |mut a, b| {
                add(&mut a, &b);
                a
            },
        )
    };
    let more = sums.add;
    for (group, out) in sums.groups.iter().zip(sums.out.iter_mut()) {
        if s.groups == 1 && !plan.transposed {
            out.par_chunks_mut(PIECE).enumerate().for_each(|(i, out)| {
                store(
                    reduce(group.clone(), i * PIECE, out.len()).as_deref(),
                    out,
                    more,
                );
            });
            continue;
        }
        let mut sum = Buffer::take(total);
        sum.par_chunks_mut(PIECE).enumerate().for_each(|(i, out)| {
            store(
                reduce(group.clone(), i * PIECE, out.len()).as_deref(),
                out,
                false,
            );
        });
        let rows = s.k * s.k * ci;
        let mut turned = Buffer::take(co);
        for (g, sum) in sum.chunks(size).enumerate() {
            for r in 0..rows {
                let out = &mut out[r * s.co + g * co..][..co];
                for (c, out) in turned.iter_mut().enumerate() {
                    *out = if plan.transposed {
                        sum[c * rows + r]
                    } else {
                        sum[r * co + c]
                    };
                }
                store(Some(&turned), out, more);
            }
        }
    }
}

fn by_parts(plan: &Plan, lanes: &[Range<usize>], sums: &mut LaneSums) {
    let s = plan.shape;
    let (ci, co, oh) = (plan.ci(), plan.co(), s.out_h());
    let row = s.k * ci;
    let blocks = pack::blocks(plan.isa, co);
    // At least about 16 parts, of at least 64 rows each.
    let pieces = 16usize
        .div_ceil(s.groups * s.k * blocks.len())
        .min(row.div_ceil(64))
        .max(1);
    let mut parts = Vec::new();
    for group in 0..s.groups {
        for kr in 0..s.k {
            for b in &blocks {
                for i in 0..pieces {
                    let row = i * row / pieces..(i + 1) * row / pieces;
                    let co = b.start..b.start + b.channels;
                    parts.push(Part {
                        group,
                        kr: kr..kr + 1,
                        row,
                        co,
                    });
                }
            }
        }
    }
    let more = sums.add;
    let outs: Vec<_> = sums
        .groups
        .iter()
        .zip(sums.out.iter_mut())
        .map(|(group, out)| (group.clone(), Shared::new(out)))
        .collect();
    let work: Vec<_> = parts
        .iter()
        .flat_map(|part| {
            outs.iter()
                .map(move |(group, out)| (part, group.clone(), *out))
        })
        .collect();
    work.into_par_iter().for_each(|(part, group, out)| {
        let width = part.co.len();
        let sum = tree(
            group,
            &mut |l| {
                if lanes[l].is_empty() {
                    return None;
                }
                let mut sum = Buffer::zeros(part.row.len() * width);
                lanes[l]
                    .clone()
                    .for_each(|image| plan.accumulate(image, 0..oh, part, &mut sum));
                Some(sum)
            },
            &mut |mut a, b| {
                a.iter_mut().zip(b.iter()).for_each(|(a, b)| *a += b);
                a
            },
        );
        for (i, r) in part.row.clone().enumerate() {
            let at = (part.kr.start * row + r) * s.co + part.group * co + part.co.start;
            // SAFETY: parts are disjoint, and this is a row of this task's part and group of lanes.
            let out = unsafe { out.slice(at, width) };
            store(sum.as_ref().map(|s| &s[i * width..][..width]), out, more);
        }
    });
}
