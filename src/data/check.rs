//! What a box is worth for training: the one rule for every format.

use std::collections::HashSet;

/// A box may stick out by this many pixels without a word: what rounding to six decimals (YOLO txt) or two
/// (COCO JSON) makes of a box at the edge.
pub const ROUNDING: f64 = 0.02;

/// The judgement on a box of the ground truth, `[x, y, width, height]` in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BoxCheck {
    /// Corners for training, clipped to the image by no more than [`ROUNDING`].
    Fine([f32; 4]),
    /// Clipped corners of a box that sticks out by more, and by how many pixels at most.
    Overhang([f32; 4], f64),
    /// No area: nothing to learn from.
    ZeroArea,
    /// Nothing of it lies in the image: malformed.
    Outside,
    /// A negative side: malformed.
    Negative,
    /// Not a number, or infinite: malformed.
    NotFinite,
}

/// Judges a box and clips it to an image of `width` x `height` pixels.
pub fn check_box(bbox: [f64; 4], width: u32, height: u32) -> BoxCheck {
    let [x, y, w, h] = bbox;
    let (width, height) = (f64::from(width), f64::from(height));
    let (right, bottom) = (x + w, y + h);
    if ![x, y, right, bottom].iter().all(|v| v.is_finite()) {
        return BoxCheck::NotFinite;
    }
    if w < 0.0 || h < 0.0 {
        return BoxCheck::Negative;
    }
    // A box without area may lie on the edge; beyond it by more than rounding it is outside like any other.
    let outside =
        x > width + ROUNDING || y > height + ROUNDING || right < -ROUNDING || bottom < -ROUNDING;
    if outside {
        return BoxCheck::Outside;
    }
    if w == 0.0 || h == 0.0 {
        return BoxCheck::ZeroArea;
    }
    let xyxy = [
        x.clamp(0.0, width) as f32,
        y.clamp(0.0, height) as f32,
        right.clamp(0.0, width) as f32,
        bottom.clamp(0.0, height) as f32,
    ];
    if xyxy[0] >= xyxy[2] || xyxy[1] >= xyxy[3] {
        // Either only its edge touches the image, or it is too thin for single precision.
        let touches = x >= width || y >= height || right <= 0.0 || bottom <= 0.0;
        return if touches {
            BoxCheck::Outside
        } else {
            BoxCheck::ZeroArea
        };
    }
    let overhang = (-x).max(-y).max(right - width).max(bottom - height);
    if overhang > ROUNDING {
        BoxCheck::Overhang(xyxy, overhang)
    } else {
        BoxCheck::Fine(xyxy)
    }
}

/// Boxes seen so far in one image, to find exact duplicates.
#[derive(Default)]
pub(crate) struct Seen(HashSet<(usize, [u64; 4])>);

impl Seen {
    /// Whether the same class and the same four numbers were there before.
    pub fn again(&mut self, class: usize, bbox: [f64; 4]) -> bool {
        !self.0.insert((class, bbox.map(f64::to_bits)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn boxes_are_judged_as_documented() {
        let judge = |bbox| check_box(bbox, 100, 50);
        assert_eq!(
            judge([10.0, 5.0, 20.0, 30.0]),
            BoxCheck::Fine([10.0, 5.0, 30.0, 35.0])
        );
        assert_eq!(
            judge([0.0, 0.0, 100.0, 50.0]),
            BoxCheck::Fine([0.0, 0.0, 100.0, 50.0])
        );
        assert_eq!(
            judge([-0.01, 0.0, 100.015, 50.0]),
            BoxCheck::Fine([0.0, 0.0, 100.0, 50.0])
        );
        assert_eq!(
            judge([90.0, 40.0, 12.0, 13.0]),
            BoxCheck::Overhang([90.0, 40.0, 100.0, 50.0], 3.0)
        );
        assert_eq!(judge([10.0, 5.0, 0.0, 0.0]), BoxCheck::ZeroArea);
        assert_eq!(judge([10.0, 5.0, 0.0, 7.0]), BoxCheck::ZeroArea);
        assert_eq!(judge([100.0, 5.0, 0.0, 7.0]), BoxCheck::ZeroArea);
        assert_eq!(judge([99.0, 5.0, 1e-9, 7.0]), BoxCheck::ZeroArea);
        assert_eq!(judge([100.0, 5.0, 7.0, 7.0]), BoxCheck::Outside);
        assert_eq!(judge([-7.0, 5.0, 7.0, 7.0]), BoxCheck::Outside);
        assert_eq!(judge([200.0, 5.0, 0.0, 0.0]), BoxCheck::Outside);
        assert_eq!(judge([10.0, 5.0, -1.0, 7.0]), BoxCheck::Negative);
        assert_eq!(judge([f64::NAN, 5.0, 1.0, 7.0]), BoxCheck::NotFinite);
        assert_eq!(judge([1.0, 5.0, 1.0, f64::INFINITY]), BoxCheck::NotFinite);
    }

    proptest! {
        #[test]
        fn clipped_boxes_lie_in_the_image_have_area_and_keep_what_was_inside(
            x in -300.0..300.0f64, y in -300.0..300.0f64, w in 0.0..400.0f64, h in 0.0..400.0f64,
            width in 1u32..300, height in 1u32..300,
        ) {
            let check = check_box([x, y, w, h], width, height);
            if let BoxCheck::Fine(b) | BoxCheck::Overhang(b, _) = check {
                prop_assert!(0.0 <= b[0] && b[0] < b[2] && b[2] <= width as f32);
                prop_assert!(0.0 <= b[1] && b[1] < b[3] && b[3] <= height as f32);
                // Clipping is idempotent.
                let [x1, y1, x2, y2] = b.map(f64::from);
                let again = check_box([x1, y1, x2 - x1, y2 - y1], width, height);
                prop_assert!(matches!(again, BoxCheck::Fine(_) | BoxCheck::ZeroArea));
                // Inside, nothing changes beyond single precision.
                let inside = x >= 0.0 && y >= 0.0 && x + w <= width.into() && y + h <= height.into();
                if inside {
                    prop_assert_eq!(b, [x as f32, y as f32, (x + w) as f32, (y + h) as f32]);
                }
            } else {
                let meets = w > 1e-3 && h > 1e-3 && x + w > 1e-3 && y + h > 1e-3
                    && x < f64::from(width) - 1e-3 && y < f64::from(height) - 1e-3;
                prop_assert!(!meets, "{check:?}");
            }
        }
    }
}
