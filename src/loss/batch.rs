//! What the loss of a batch is computed from, and what is shown of it.

use super::{Components, Gains, GroundTruth, HeadLoss};
use crate::ops;
use crate::ops::cpu::lanes;
use burn::tensor::{DType, Device, Tensor};

/// Images of equal size with their objects.
#[derive(Debug, Clone, PartialEq)]
pub struct MicroBatch<'a> {
    /// `[n, h, w, 3]`, RGB.
    pub pixels: &'a [u8],
    /// Their `(h, w)`.
    pub size: (usize, usize),
    /// What the network takes, which they are resized to.
    pub height: usize,
    pub width: usize,
    /// One list per image, corners in pixels of what the network takes.
    pub truths: Vec<Vec<GroundTruth>>,
}

impl MicroBatch<'_> {
    /// `[n, height, width, 3]` in 0..1: float32, on GPUs also float16 and bfloat16.
    #[must_use]
    pub fn image(&self, device: &Device, dtype: DType) -> Tensor<4> {
        let shape = [self.truths.len(), self.size.0, self.size.1, 3];
        let to = [self.height, self.width];
        ops::image(self.pixels, shape, to, device, dtype)
    }
}

/// Loss of the head whose items are shown: one-to-one where there is one.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ShownLoss {
    pub sums: Components,
    pub score_sum: f64,
}

impl ShownLoss {
    /// Of a head's loss; zero without one.
    #[must_use]
    pub fn of(loss: Option<&HeadLoss>) -> Self {
        loss.map(|l| Self {
            sums: l.sums,
            score_sum: l.score_sum,
        })
        .unwrap_or_default()
    }
    /// Whether no part of it is NaN or infinite.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        let s = self.sums;
        [s.boxes, s.classes, s.distances, self.score_sum]
            .iter()
            .all(|v| v.is_finite())
    }

    /// Of all lanes, in the tree's order.
    #[must_use]
    pub fn over_lanes(lanes: &[ShownLoss]) -> Self {
        lanes::tree(0..lanes.len(), &mut |l| Some(lanes[l]), &mut |mut a, b| {
            a.add(b);
            a
        })
        .unwrap_or_default()
    }

    /// Adds another part.
    pub fn add(&mut self, o: ShownLoss) {
        self.sums.add(o.sums);
        self.score_sum += o.score_sum;
    }
    /// Gained and normalised items: box, class, distance.
    #[must_use]
    pub fn items(&self, gains: Gains) -> [f64; 3] {
        self.sums.items(gains, self.score_sum)
    }
}
