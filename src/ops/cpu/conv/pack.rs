//! Weights in the order in which the tiles read them.

use rayon::prelude::*;

use super::super::buffer::{Buffer, Shared};
use super::super::isa::Isa;
use super::super::simd::MAX_N;

/// Consecutive output channels that a tile computes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    /// First channel.
    pub start: usize,
    pub channels: usize,
    /// Vectors that hold them.
    pub vectors: usize,
    /// At most half a vector: two rows of the panel stand in one, their numbers in turn, so that the vector is full.
    pub pairs: bool,
}

/// Cuts `channels` into blocks of one to three vectors, none of one where there are more.
pub(super) fn blocks(isa: Isa, channels: usize) -> Vec<Block> {
    let n = isa.width();
    let mut left = channels.div_ceil(n);
    let mut start = 0;
    let mut all = Vec::new();
    while left > 0 {
        let vectors = match left {
            1 => 1,
            2 | 4 => 2,
            _ => 3,
        };
        let width = (channels - start).min(vectors * n);
        all.push(Block {
            start,
            channels: width,
            vectors,
            pairs: false,
        });
        start += width;
        left -= vectors;
    }
    all
}

/// Panels of one gather: for each block, rows of `vectors` vectors.
pub(super) struct Panels {
    data: Buffer,
    pub blocks: Vec<Block>,
    width: usize,
    rows: usize,
}

impl Panels {
    /// `fill(block, panel, pitch)` writes the first `block.channels` numbers of the panel's rows, `pitch` apart.
    /// `even`: every run of rows has an even start and length.
    pub fn pack(
        isa: Isa,
        channels: usize,
        (rows, even): (usize, bool),
        fill: impl Fn(&Block, &mut [f32], usize) + Sync,
    ) -> Panels {
        let mut blocks = blocks(isa, channels);
        let width = isa.width();
        if let Some(only) = blocks.first_mut() {
            only.pairs = even && 2 * channels <= width;
        }
        let vectors: usize = blocks.iter().map(|b| b.vectors).sum();
        let mut data = Buffer::take(vectors * width * rows);
        let shared = Shared::new(&mut data);
        let one = |b: &Block| {
            let pitch = b.vectors * width;
            // SAFETY: blocks are disjoint and their panels follow each other.
            let panel = unsafe { shared.slice(b.start * rows, pitch * rows) };
            if b.channels < pitch {
                for row in panel.chunks_exact_mut(pitch) {
                    row[b.channels..].fill(0.0);
                }
            }
            fill(b, panel, pitch);
            if b.pairs {
                for i in 0..rows / 2 {
                    let mut row = [0.0; MAX_N];
                    for c in 0..width / 2 {
                        row[2 * c] = panel[2 * i * width + c];
                        row[2 * c + 1] = panel[(2 * i + 1) * width + c];
                    }
                    panel[i * width..][..width].copy_from_slice(&row[..width]);
                }
            }
        };
        if rows * channels > 1 << 14 {
            blocks.par_iter().for_each(one);
        } else {
            blocks.iter().for_each(one);
        }
        Panels {
            data,
            blocks,
            width,
            rows,
        }
    }

    /// The panel of a block. (All blocks but the last are whole vectors, so `start` counts what lies before.)
    pub fn panel(&self, b: &Block) -> &[f32] {
        &self.data[b.start * self.rows..][..b.vectors * self.width * self.rows]
    }
}
