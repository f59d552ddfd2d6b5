//! MixUp (Zhang et al. 2018) and CutMix (Yun et al. 2019) of two equally sized images.

use super::LabelBox;
use super::geometry::{MIN_AREA, area, survives};
use super::random::Draws;

/// Pixels and boxes of one image of `side` x `side` in the pipeline.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    pub pixels: Vec<u8>,
    pub labels: Vec<LabelBox>,
}

/// `share * own + (1 - share) * other`, rounded; the boxes of both.
pub fn mixup(own: &mut Picture, other: &Picture, share: f64) {
    let weight = (share.clamp(0.0, 1.0) * 65536.0).round() as u32;
    for (a, &b) in own.pixels.iter_mut().zip(&other.pixels) {
        *a = ((u32::from(*a) * weight + u32::from(b) * (65536 - weight) + (1 << 15)) >> 16) as u8;
    }
    own.labels.extend_from_slice(&other.labels);
}

/// How often cutmix tries to find a place.
pub const CUTMIX_TRIES: usize = 3;

/// Copies a rectangle of `other` into the same place of `own`, both `side` x `side`, and returns whether it did.
///
/// Up to [`CUTMIX_TRIES`] rectangles are drawn: lambda from Beta(1, 1), sides `side * sqrt(1 - lambda)`, the centre
/// uniform in the image, cut at its borders. The first is taken that shows something of `other` and leaves no box of
/// `own` half hidden: each own box is either covered by more than 1 - [`MIN_AREA`] (then it is dropped) or by less than
/// [`MIN_AREA`] (then it stays as it is). Boxes of `other` are clipped to the rectangle and kept by the rule of
/// [`survives`] (at least a tenth of the area, 2 pixels a side). If no try fits, the image stays as it is.
pub fn cutmix<R: Draws + ?Sized>(
    own: &mut Picture,
    other: &Picture,
    side: usize,
    random: &mut R,
) -> bool {
    for _ in 0..CUTMIX_TRIES {
        let extent = side as f64 * (1.0 - random.unit()).sqrt();
        let cut = |centre: f64| {
            let low = (centre - extent / 2.0).clamp(0.0, side as f64).round() as usize;
            let high = (centre + extent / 2.0).clamp(0.0, side as f64).round() as usize;
            (low, high)
        };
        let (left, right) = cut(random.uniform(0.0, side as f64));
        let (top, bottom) = cut(random.uniform(0.0, side as f64));
        if let Some(labels) = labels_after_cut(
            &own.labels,
            &other.labels,
            [left, top, right, bottom].map(|v| v as f64),
        ) {
            for y in top..bottom {
                let row = (y * side + left) * 3..(y * side + right) * 3;
                own.pixels[row.clone()].copy_from_slice(&other.pixels[row]);
            }
            own.labels = labels;
            return true;
        }
    }
    false
}

/// The boxes after `rectangle` was replaced, or `None` where that rectangle does not fit.
fn labels_after_cut(
    own: &[LabelBox],
    other: &[LabelBox],
    rectangle: [f64; 4],
) -> Option<Vec<LabelBox>> {
    let within = |label: &LabelBox| {
        let b = label.xyxy.map(f64::from);
        [
            b[0].max(rectangle[0]),
            b[1].max(rectangle[1]),
            b[2].min(rectangle[2]),
            b[3].min(rectangle[3]),
        ]
    };
    let whole = |label: &LabelBox| area(label.xyxy.map(f64::from));
    let mut labels = Vec::with_capacity(own.len() + other.len());
    for label in own {
        let hidden = area(within(label)) / whole(label).max(f64::MIN_POSITIVE);
        if hidden < MIN_AREA {
            labels.push(*label);
        } else if hidden <= 1.0 - MIN_AREA {
            return None;
        }
    }
    let before = labels.len();
    labels.extend(other.iter().filter_map(|label| {
        let clipped = within(label);
        survives(clipped, whole(label)).then(|| LabelBox {
            class: label.class,
            xyxy: clipped.map(|v| v as f32),
        })
    }));
    (labels.len() > before).then_some(labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::random::{Stream, rng};

    fn label(class: usize, xyxy: [f32; 4]) -> LabelBox {
        LabelBox { class, xyxy }
    }

    fn plain(side: usize, value: u8, labels: Vec<LabelBox>) -> Picture {
        Picture {
            pixels: vec![value; side * side * 3],
            labels,
        }
    }

    #[test]
    fn mixup_weighs_pixels_and_keeps_both_boxes() {
        let mut own = plain(4, 200, vec![label(0, [0.0, 0.0, 2.0, 2.0])]);
        let other = plain(4, 100, vec![label(1, [1.0, 1.0, 4.0, 4.0])]);
        mixup(&mut own, &other, 0.75);
        assert!(own.pixels.iter().all(|&v| v == 175));
        assert_eq!(own.labels.len(), 2);
        let mut same = plain(4, 200, vec![]);
        mixup(&mut same, &other, 1.0);
        assert!(same.pixels.iter().all(|&v| v == 200));
    }

    #[test]
    fn a_cut_drops_covered_boxes_and_refuses_half_covered_ones() {
        let other = [label(9, [10.0, 10.0, 40.0, 40.0])];
        let rectangle = [0.0, 0.0, 30.0, 30.0];
        let after = |own: &[LabelBox]| labels_after_cut(own, &other, rectangle);
        let cut = label(9, [10.0, 10.0, 30.0, 30.0]);
        assert_eq!(after(&[]), Some(vec![cut]));
        let far = label(1, [50.0, 50.0, 60.0, 60.0]);
        let covered = label(2, [5.0, 5.0, 30.0, 31.0]);
        assert_eq!(after(&[far, covered]), Some(vec![far, cut]));
        assert_eq!(after(&[label(3, [20.0, 0.0, 40.0, 10.0])]), None);
        // Nothing of the other image in the rectangle: no reason to cut.
        assert_eq!(
            labels_after_cut(&[], &other, [50.0, 50.0, 60.0, 60.0]),
            None
        );
    }

    #[test]
    fn cutmix_copies_exactly_the_rectangle_around_its_boxes() {
        let mut done = 0;
        for position in 0..50 {
            let mut own = plain(64, 10, vec![]);
            let other = plain(64, 250, vec![label(1, [2.0, 2.0, 62.0, 62.0])]);
            let mut random = rng(0, 0, position, Stream::CutMix);
            if cutmix(&mut own, &other, 64, &mut random) {
                done += 1;
                let copied = own.pixels.iter().filter(|&&v| v == 250).count() / 3;
                let [x1, y1, x2, y2] = own.labels[0].xyxy;
                assert!(copied as f32 >= (x2 - x1) * (y2 - y1));
            } else {
                assert!(own.pixels.iter().all(|&v| v == 10));
            }
        }
        assert!(done > 30);
    }
}
