//! The order of samples, the cut into batches, and what else is a pure function of (seed, epoch, step).

use std::ops::Range;

use crate::ops::cpu::lanes::Lanes;

use super::random::{Draws, Stream, rng};

/// Mosaic, mixup and cutmix take their partners from the positions within this distance in the epoch's order.
pub const PARTNER_REACH: usize = 64;

/// Multiples of the network's largest stride: image sizes of batches.
pub const STRIDE: usize = 32;

/// The epoch's order and its cut into global batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampler {
    pub images: usize,
    /// Images of a global batch.
    pub batch: usize,
    pub seed: u64,
    /// Leave the last, incomplete batch out instead of training it with its true size.
    pub drop_last: bool,
}

impl Sampler {
    /// Number of global batches in an epoch.
    pub fn batches(&self) -> usize {
        if self.batch == 0 {
            0
        } else if self.drop_last {
            self.images / self.batch
        } else {
            self.images.div_ceil(self.batch)
        }
    }

    /// Positions of a global batch in the epoch's order; empty beyond the last.
    pub fn positions(&self, batch: usize) -> Range<usize> {
        if batch >= self.batches() {
            return self.images..self.images;
        }
        let start = batch * self.batch;
        start..(start + self.batch).min(self.images)
    }

    /// The epoch's order: image index at each position. A Fisher-Yates shuffle, a pure function of (seed, epoch).
    pub fn order(&self, epoch: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.images).collect();
        let mut random = rng(self.seed, epoch as u64, 0, Stream::Order);
        for last in (1..order.len()).rev() {
            order.swap(last, random.index(last + 1));
        }
        order
    }
}

/// The positions from which the partners of `position` are drawn: 2 x [`PARTNER_REACH`] + 1 positions around it,
/// moved inwards at the ends of the epoch, or all positions where there are fewer. A pure function of the position,
/// so it does not depend on batch size, workers or ranks, while decoded images can be kept for a while.
pub fn partner_window(position: usize, images: usize) -> Range<usize> {
    let length = (2 * PARTNER_REACH + 1).min(images);
    let start = position.saturating_sub(PARTNER_REACH).min(images - length);
    start..start + length
}

/// The part of every global batch that rank `index` of `count` holds: whole lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    pub index: usize,
    pub count: usize,
    /// Lanes of all ranks together, at least `count`.
    pub lanes: usize,
}

impl Shard {
    pub const WHOLE: Shard = Shard {
        index: 0,
        count: 1,
        lanes: 1,
    };

    /// This part of `positions`.
    pub fn of(&self, positions: Range<usize>) -> Range<usize> {
        let lanes = Lanes::of_rank(self.lanes, self.index, self.count, positions.len());
        let part = lanes.images().unwrap_or_default();
        positions.start + part.start..positions.start + part.end
    }
}

/// Multi-scale: the image size of one step for the whole global batch, a multiple of 32 within
/// `imgsz * (1 - fraction) ..= imgsz * (1 + fraction)`, uniformly. `imgsz` itself with a fraction of 0.
pub fn step_size(seed: u64, epoch: usize, step: usize, imgsz: usize, fraction: f64) -> usize {
    let low = (imgsz as f64 * (1.0 - fraction) / STRIDE as f64)
        .ceil()
        .max(1.0) as usize;
    let high = (imgsz as f64 * (1.0 + fraction) / STRIDE as f64).floor() as usize;
    if fraction <= 0.0 || high < low {
        return imgsz;
    }
    let mut random = rng(seed, epoch as u64, step as u64, Stream::Size);
    (low + random.index(high - low + 1)) * STRIDE
}

/// The first epoch (from 0) without mosaic, mixup and cutmix, and a line to print where that is not simply
/// `epochs - close_mosaic`: a run shorter than twice `close_mosaic` keeps mosaic for its first half.
pub fn mosaic_off_from(epochs: usize, close_mosaic: usize) -> (usize, Option<String>) {
    if close_mosaic == 0 || epochs >= 2 * close_mosaic {
        return (epochs - close_mosaic, None);
    }
    let from = epochs.div_ceil(2);
    let note = format!(
        "close-mosaic {close_mosaic} is more than half of {epochs} epochs: \
         mosaic, mixup and cutmix stay on for the first {from} and are off for the last {}",
        epochs - from
    );
    (from, Some(note))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampler(images: usize, batch: usize) -> Sampler {
        Sampler {
            images,
            batch,
            seed: 5,
            drop_last: false,
        }
    }

    #[test]
    fn an_order_is_a_permutation_that_changes_with_seed_and_epoch() {
        let s = sampler(100, 16);
        let order = s.order(3);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_eq!(order, s.order(3));
        assert_ne!(order, s.order(4));
        assert_ne!(order, Sampler { seed: 6, ..s }.order(3));
    }

    #[test]
    fn every_place_is_reached_about_equally_often() {
        let mut counts = [[0usize; 4]; 4];
        let s = sampler(4, 1);
        for epoch in 0..4000 {
            for (place, &image) in s.order(epoch).iter().enumerate() {
                counts[place][image] += 1;
            }
        }
        assert!(counts.iter().flatten().all(|&c| c.abs_diff(1000) < 120));
    }

    #[test]
    fn the_last_batch_has_its_true_size_or_is_dropped() {
        let s = sampler(10, 4);
        assert_eq!((s.batches(), s.positions(2)), (3, 8..10));
        let dropping = Sampler {
            drop_last: true,
            ..s
        };
        assert_eq!(dropping.batches(), 2);
        assert!(dropping.positions(2).is_empty());
    }

    #[test]
    fn mosaic_ends_early_enough_and_a_short_run_says_so() {
        assert_eq!(mosaic_off_from(100, 10), (90, None));
        assert_eq!(mosaic_off_from(20, 10), (10, None));
        assert_eq!(mosaic_off_from(10, 0), (10, None));
        let (from, note) = mosaic_off_from(10, 10);
        assert_eq!(from, 5);
        assert!(note.is_some_and(|n| n.contains("first 5")));
        assert_eq!(mosaic_off_from(1, 10).0, 1);
        assert_eq!(mosaic_off_from(3, 10).0, 2);
    }

    #[test]
    fn multi_scale_sizes_are_multiples_of_32_that_reach_both_ends() {
        let sizes: Vec<usize> = (0..500)
            .map(|step| step_size(1, 0, step, 320, 0.25))
            .collect();
        assert!(sizes.iter().all(|s| s % 32 == 0 && (240..=400).contains(s)));
        assert_eq!(sizes.iter().min(), Some(&256));
        assert_eq!(sizes.iter().max(), Some(&384));
        assert_eq!(step_size(1, 0, 9, 320, 0.0), 320);
        assert_eq!(step_size(1, 0, 9, 320, 0.05), 320);
    }

    proptest! {
        #[test]
        fn shards_cut_a_batch_without_gap(n in 0usize..200, start in 0usize..50, count in 1usize..9, more in 0usize..9) {
            let mut next = start;
            for index in 0..count {
                let part = Shard { index, count, lanes: count + more }.of(start..start + n);
                prop_assert_eq!(part.start, next);
                next = part.end;
            }
            prop_assert_eq!(next, start + n);
        }

        #[test]
        fn a_window_holds_its_position_and_stays_inside(images in 1usize..500, at in 0.0f64..1.0) {
            let position = (at * images as f64) as usize;
            let window = partner_window(position, images);
            prop_assert!(window.contains(&position));
            prop_assert!(window.end <= images);
            prop_assert_eq!(window.len(), images.min(2 * PARTNER_REACH + 1));
        }
    }
}
