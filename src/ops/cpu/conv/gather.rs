//! Forward and data gradient: every pixel of the output gathers its neighbours of the input.
//!
//! `out(r, c) = sum over taps (i, j) and channels of in(r * step + dr[i], c * step + dc[j]) * panel[i, j]`. The
//! forward pass is one such gather; the data gradient is one for stride 1 and one for each residue of the pixel's
//! position with larger strides. Nothing is padded: rows and columns are cut into bands in which the same taps
//! lie inside the input, and the narrow bands at the left and right are computed downwards instead of along.

use rayon::prelude::*;

use super::super::buffer::Shared;
use super::super::isa::Isa;
use super::ConvShape;
use super::pack::{Block, Panels};
use super::tile::{Ahead, Line, Run, line, pixels_of_tile};

/// Consecutive output rows (or columns) in which the taps `first..last` lie inside the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Band {
    pub start: usize,
    pub end: usize,
    pub first: usize,
    pub last: usize,
}

/// Bands of `0..out`; tap `i` of `0..taps` reads position `at * step + low + i` of `0..len`.
pub(super) fn bands(out: usize, len: usize, step: usize, low: isize, taps: usize) -> Vec<Band> {
    let mut all: Vec<Band> = Vec::new();
    for at in 0..out {
        let base = (at * step) as isize + low;
        let first = (-base).clamp(0, taps as isize) as usize;
        let last = (len as isize - base).clamp(first as isize, taps as isize) as usize;
        match all.last_mut() {
            Some(b) if b.first == first && b.last == last => b.end = at + 1,
            _ => all.push(Band {
                start: at,
                end: at + 1,
                first,
                last,
            }),
        }
    }
    all
}

/// Where the pixels of an image lie in memory.
#[derive(Debug, Clone, Copy)]
struct Grid {
    /// First number of the first pixel.
    at: usize,
    image: usize,
    row: usize,
    pixel: usize,
}

/// Taps along one axis: `count` of them, the first `low` away from `position * step`.
#[derive(Debug, Clone, Copy)]
struct Taps {
    low: isize,
    count: usize,
}

struct Gather {
    src: Grid,
    dst: Grid,
    /// Of a pixel of the input.
    channels: usize,
    step: usize,
    /// From a pixel to the first number that the next output row reads and this one does not.
    next_row: isize,
    rows: Vec<Band>,
    columns: Vec<Band>,
    /// For each pair of bands.
    runs: Vec<Vec<Run>>,
    panels: Panels,
}

impl Gather {
    fn new(
        (src, (src_h, src_w), channels): (Grid, (usize, usize), usize),
        (dst, (dst_h, dst_w)): (Grid, (usize, usize)),
        step: usize,
        (rows, columns): (Taps, Taps),
        panels: Panels,
    ) -> Gather {
        let row_bands = bands(dst_h, src_h, step, rows.low, rows.count);
        let column_bands = bands(dst_w, src_w, step, columns.low, columns.count);
        // Channels of neighbouring pixels follow each other, unless a group takes a part of them.
        let joined = src.pixel == channels;
        let mut runs = Vec::new();
        for r in &row_bands {
            for c in &column_bands {
                let mut all = Vec::new();
                for i in r.first..r.last {
                    let mut push = |first: usize, last: usize| {
                        all.push(Run {
                            x: (rows.low + i as isize) * src.row as isize
                                + (columns.low + first as isize) * src.pixel as isize,
                            k: (i * columns.count + first) * channels,
                            len: (last - first) * channels,
                        });
                    };
                    if joined && c.first < c.last {
                        push(c.first, c.last);
                    } else {
                        (c.first..c.last).for_each(|j| push(j, j + 1));
                    }
                }
                runs.push(all);
            }
        }
        let next_row =
            (rows.low + rows.count as isize) * src.row as isize + columns.low * src.pixel as isize;
        Gather {
            channels,
            next_row,
            src,
            dst,
            step,
            rows: row_bands,
            columns: column_bands,
            runs,
            panels,
        }
    }

    /// Taps along a row that meet the same input one pixel further on: 3, or 0 if it is not so.
    fn sliding(&self, columns: &Band) -> usize {
        let joined = self.src.pixel == self.channels;
        if joined && self.step == 1 && columns.last - columns.first == 3 {
            3
        } else {
            0
        }
    }

    /// Output rows `r0..r1` of an image.
    ///
    /// # Safety
    /// `x` and `y` have the lengths of the grids, and no other task touches these rows' part of `y`.
    unsafe fn rows(
        &self,
        isa: Isa,
        x: &[f32],
        y: Shared,
        image: usize,
        (r0, r1): (usize, usize),
        add: bool,
    ) {
        // Rows without borders that follow each other are one line.
        let flat = self.columns.len() == 1
            && self.rows.len() == 1
            && self.src.row * self.step == self.src.pixel * self.step * self.columns[0].end
            && self.dst.row == self.dst.pixel * self.columns[0].end
            && self.step == 1;
        // The first block is the first to touch input and output: it asks for what follows.
        let next = if flat {
            let pixels = 3 * pixels_of_tile(isa.registers(), 2);
            Ahead {
                x: (pixels * self.src.pixel) as isize,
                x_pitch: 0,
                x_rows: 1,
                y: pixels * self.dst.pixel,
            }
        } else {
            Ahead {
                x: self.next_row,
                x_pitch: self.src.row,
                x_rows: self.step,
                y: self.dst.row,
            }
        };
        for block in &self.panels.blocks {
            let ahead = if block.start == 0 {
                next
            } else {
                Ahead::default()
            };
            let panel = self.panels.panel(block).as_ptr();
            for (i, band) in self.rows.iter().enumerate() {
                let (b0, b1) = (band.start.max(r0), band.end.min(r1));
                if b0 >= b1 {
                    continue;
                }
                for (j, columns) in self.columns.iter().enumerate() {
                    let runs = &self.runs[i * self.columns.len() + j];
                    let (height, width) = (b1 - b0, columns.end - columns.start);
                    let go = |r: usize, c: usize, down: bool, pixels: usize| {
                        let x_at = self.src.at
                            + image * self.src.image
                            + r * self.step * self.src.row
                            + c * self.step * self.src.pixel;
                        let y_at = self.dst.at
                            + image * self.dst.image
                            + r * self.dst.row
                            + c * self.dst.pixel
                            + block.start;
                        let (xs, ys) = if down {
                            (self.src.row, self.dst.row)
                        } else {
                            (self.src.pixel, self.dst.pixel)
                        };
                        // SAFETY: the bands hold pixels whose taps lie inside the input; the output pixels are
                        // those of the caller's rows; a panel has a row for every tap and channel.
                        unsafe {
                            let l = Line {
                                x: x.as_ptr().add(x_at),
                                xs: xs * self.step,
                                y: y.at(y_at),
                                ys,
                                pixels,
                                runs,
                                w: panel,
                                pairs: block.pairs,
                                taps: if down { 0 } else { self.sliding(columns) },
                                channels: block.channels,
                                ahead: if down { Ahead::default() } else { ahead },
                                add,
                            };
                            line(isa, block.vectors, &l);
                        }
                    };
                    if flat {
                        go(b0, 0, false, height * width);
                    } else if width >= height.min(6) {
                        (b0..b1).for_each(|r| go(r, columns.start, false, width));
                    } else {
                        (columns.start..columns.end).for_each(|c| go(b0, c, true, height));
                    }
                }
            }
        }
    }
}

/// Rows of a task: enough work to be worth one, few enough that what it touches stays in the second cache.
fn rows_of_task(rows: usize, columns: usize, bytes_of_row: usize) -> usize {
    let cached = (256 * 1024 / bytes_of_row.max(1)).max(1);
    let worth = 128usize.div_ceil(columns.max(1));
    cached.min(rows.div_ceil(8).max(worth)).min(rows).max(1)
}

/// Runs gathers that together make up each image's rows.
#[allow(clippy::too_many_arguments)]
fn run<T: Send>(
    isa: Isa,
    images: usize,
    rows: usize,
    rows_of_task: usize,
    gathers: &[Gather],
    src: &[f32],
    dst: &mut [f32],
    add: bool,
    after: impl Fn(Shared, usize, (usize, usize)) -> T + Sync,
) -> Vec<T> {
    let tasks = rows.div_ceil(rows_of_task);
    let out = Shared::new(dst);
    let task = |t: usize| {
        let (image, i) = (t / tasks, t % tasks);
        let range = (i * rows_of_task, ((i + 1) * rows_of_task).min(rows));
        for g in gathers {
            // SAFETY: a task's rows are its own; the callers' grids are those of `src` and `dst`.
            unsafe { g.rows(isa, src, out, image, range, add) };
        }
        after(out, image, range)
    };
    (0..images * tasks).into_par_iter().map(task).collect()
}

pub(super) fn forward<T: Send>(
    isa: Isa,
    shape: &ConvShape,
    x: &[f32],
    w: &[f32],
    y: &mut [f32],
    after: impl Fn(&mut [f32]) -> T + Sync,
) -> Vec<T> {
    let &ConvShape {
        ci,
        co,
        k,
        stride,
        groups,
        ..
    } = shape;
    let (oh, ow) = (shape.out_h(), shape.out_w());
    let (ci_g, co_g) = (ci / groups, co / groups);
    let taps = Taps {
        low: -((k / 2) as isize),
        count: k,
    };
    let gathers: Vec<Gather> = (0..groups)
        .map(|g| {
            let fill = |b: &Block, panel: &mut [f32], pitch: usize| {
                for (row, out) in panel.chunks_exact_mut(pitch).enumerate() {
                    let from = &w[row * co + g * co_g + b.start..][..b.channels];
                    out[..b.channels].copy_from_slice(from);
                }
            };
            let panels = Panels::pack(isa, co_g, (k * k * ci_g, ci_g.is_multiple_of(2)), fill);
            let src = Grid {
                at: g * ci_g,
                image: shape.h * shape.w * ci,
                row: shape.w * ci,
                pixel: ci,
            };
            let dst = Grid {
                at: g * co_g,
                image: oh * ow * co,
                row: ow * co,
                pixel: co,
            };
            Gather::new(
                (src, (shape.h, shape.w), ci_g),
                (dst, (oh, ow)),
                stride,
                (taps, taps),
                panels,
            )
        })
        .collect();
    let bytes = 4 * (ow * co + stride * shape.w * ci);
    let rows = rows_of_task(oh, ow, bytes);
    run(
        isa,
        shape.n,
        oh,
        rows,
        &gathers,
        x,
        y,
        false,
        |out, image, (r0, r1)| {
            // SAFETY: the task's own rows, which are written by now.
            let done = unsafe { out.slice((image * oh + r0) * ow * co, (r1 - r0) * ow * co) };
            after(done)
        },
    )
}

/// Taps that reach input position `s * i + residue` (for all `i`) from output position `i + low ..`, ascending;
/// `kernel(i)` is the filter's index of tap `i`.
fn residue_taps(k: usize, s: usize, residue: usize) -> (Taps, Vec<usize>) {
    let p = k / 2;
    // Output position o meets input position o * s + j - p under the filter's index j.
    let kernel: Vec<usize> = (0..k)
        .rev()
        .filter(|j| (residue + p + s * k - j).is_multiple_of(s))
        .collect();
    let low = match kernel.first() {
        Some(&j) => ((residue + p) as isize - j as isize).div_euclid(s as isize),
        None => 0,
    };
    (
        Taps {
            low,
            count: kernel.len(),
        },
        kernel,
    )
}

pub(super) fn backward_data(
    isa: Isa,
    shape: &ConvShape,
    dy: &[f32],
    w: &[f32],
    dx: &mut [f32],
    add: bool,
) {
    let &ConvShape {
        h,
        w: width,
        ci,
        co,
        k,
        stride: s,
        groups,
        ..
    } = shape;
    let (oh, ow) = (shape.out_h(), shape.out_w());
    let (ci_g, co_g) = (ci / groups, co / groups);
    let mut gathers = Vec::new();
    for g in 0..groups {
        for pr in 0..s.min(h) {
            for pc in 0..s.min(width) {
                let (rows, kernel_rows) = residue_taps(k, s, pr);
                let (columns, kernel_columns) = residue_taps(k, s, pc);
                let fill = |b: &Block, panel: &mut [f32], pitch: usize| {
                    let mut panel = panel.chunks_exact_mut(pitch * co_g);
                    for kr in &kernel_rows {
                        for kc in &kernel_columns {
                            let tap = panel.next().expect("one part of the panel for each tap");
                            transpose_tap(
                                &w[(kr * k + kc) * ci_g * co..][..ci_g * co],
                                (co, g * co_g, co_g),
                                b,
                                tap,
                                pitch,
                            );
                        }
                    }
                };
                let panels = Panels::pack(
                    isa,
                    ci_g,
                    (rows.count * columns.count * co_g, co_g.is_multiple_of(2)),
                    fill,
                );
                let src = Grid {
                    at: g * co_g,
                    image: oh * ow * co,
                    row: ow * co,
                    pixel: co,
                };
                let dst = Grid {
                    at: (pr * width + pc) * ci + g * ci_g,
                    image: h * width * ci,
                    row: s * width * ci,
                    pixel: s * ci,
                };
                let size = ((h - pr).div_ceil(s), (width - pc).div_ceil(s));
                gathers.push(Gather::new(
                    (src, (oh, ow), co_g),
                    (dst, size),
                    1,
                    (rows, columns),
                    panels,
                ));
            }
        }
    }
    let rows = h.div_ceil(s);
    let bytes = 4 * (ow * co + s * width * ci);
    let task = rows_of_task(rows, width.div_ceil(s), bytes);
    run(
        isa,
        shape.n,
        rows,
        task,
        &gathers,
        dy,
        dx,
        add,
        |_, _, _| {},
    );
}

/// `panel[c][i] = w[block.start + i][first + c]` for one tap's weights `[ci, co]`, `c` in `0..count`.
fn transpose_tap(
    w: &[f32],
    (co, first, count): (usize, usize, usize),
    block: &Block,
    panel: &mut [f32],
    pitch: usize,
) {
    // Sixteen channels at a time: a cache line of the weights is read once.
    for c0 in (0..count).step_by(16) {
        let c1 = (c0 + 16).min(count);
        for i in 0..block.channels {
            let from = &w[(block.start + i) * co + first..];
            for c in c0..c1 {
                panel[c * pitch + i] = from[c];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_are_the_borders_and_the_inside() {
        let b = |start, end, first, last| Band {
            start,
            end,
            first,
            last,
        };
        assert_eq!(
            bands(5, 5, 1, -1, 3),
            vec![b(0, 1, 1, 3), b(1, 4, 0, 3), b(4, 5, 0, 2)]
        );
        assert_eq!(bands(3, 6, 2, -1, 3), vec![b(0, 1, 1, 3), b(1, 3, 0, 3)]);
        assert_eq!(bands(1, 1, 1, -2, 5), vec![b(0, 1, 2, 3)]);
    }

    #[test]
    fn residues_of_a_strided_gradient_share_the_taps() {
        assert_eq!(residue_taps(3, 1, 0).1, vec![2, 1, 0]);
        assert_eq!(residue_taps(3, 1, 0).0.low, -1);
        assert_eq!(residue_taps(3, 2, 0).1, vec![1]);
        assert_eq!(residue_taps(3, 2, 0).0.low, 0);
        assert_eq!(residue_taps(3, 2, 1).1, vec![2, 0]);
        assert_eq!(residue_taps(3, 2, 1).0.low, 0);
        assert_eq!(residue_taps(1, 2, 1).0.count, 0);
    }
}
