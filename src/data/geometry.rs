//! Plane transformations of images and boxes, and the rule by which a transformed box is kept.
//!
//! Coordinates are continuous: pixel i covers [i, i + 1), its centre is i + 1/2.

use super::LabelBox;
use super::trig::sin_cos_degrees;

/// A projective map of the plane, row-major 3x3: (x, y) -> (X / W, Y / W) with (X, Y, W) = m (x, y, 1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Homography(pub [f64; 9]);

/// Points whose W is below this lie behind the viewer (or at infinity) and are not seen.
const HORIZON: f64 = 1e-3;

impl Homography {
    pub const IDENTITY: Homography = Homography([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);

    pub fn translation(x: f64, y: f64) -> Self {
        Homography([1.0, 0.0, x, 0.0, 1.0, y, 0.0, 0.0, 1.0])
    }

    pub fn scaling(x: f64, y: f64) -> Self {
        Homography([x, 0.0, 0.0, 0.0, y, 0.0, 0.0, 0.0, 1.0])
    }

    /// `next` after `self`.
    pub fn then(&self, next: &Homography) -> Homography {
        let (a, b) = (&next.0, &self.0);
        Homography(std::array::from_fn(|i| {
            let (row, column) = (i / 3 * 3, i % 3);
            a[row] * b[column] + a[row + 1] * b[3 + column] + a[row + 2] * b[6 + column]
        }))
    }

    /// The exact inverse (adjugate over determinant, so W of a point and of its image are reciprocal),
    /// or `None` for a map that flattens the plane.
    pub fn inverse(&self) -> Option<Homography> {
        let [a, b, c, d, e, f, g, h, i] = self.0;
        let minors = [
            e * i - f * h,
            c * h - b * i,
            b * f - c * e,
            f * g - d * i,
            a * i - c * g,
            c * d - a * f,
            d * h - e * g,
            b * g - a * h,
            a * e - b * d,
        ];
        let determinant = a * minors[0] + b * minors[3] + c * minors[6];
        (determinant.is_finite() && determinant.abs() > 1e-12)
            .then(|| Homography(minors.map(|m| m / determinant)))
    }

    pub fn is_affine(&self) -> bool {
        self.0[6] == 0.0 && self.0[7] == 0.0 && self.0[8] == 1.0
    }

    fn homogeneous(&self, x: f64, y: f64) -> [f64; 3] {
        std::array::from_fn(|r| self.0[3 * r] * x + self.0[3 * r + 1] * y + self.0[3 * r + 2])
    }

    /// Image of a point, `None` where it lies behind the viewer.
    pub fn apply(&self, x: f64, y: f64) -> Option<(f64, f64)> {
        let [u, v, w] = self.homogeneous(x, y);
        (w >= HORIZON).then(|| (u / w, v / w))
    }

    /// Bounding box of the images of a box's four corners. Where a side passes behind the viewer the quadrilateral
    /// is cut there; `None` where nothing of it is seen.
    pub fn transform_box(&self, xyxy: [f64; 4]) -> Option<[f64; 4]> {
        let [x1, y1, x2, y2] = xyxy;
        let corners = [(x1, y1), (x2, y1), (x2, y2), (x1, y2)].map(|(x, y)| self.homogeneous(x, y));
        let mut bounds: Option<[f64; 4]> = None;
        let mut include = |p: [f64; 3]| {
            let (x, y) = (p[0] / p[2], p[1] / p[2]);
            bounds = Some(match bounds {
                None => [x, y, x, y],
                Some([a, b, c, d]) => [a.min(x), b.min(y), c.max(x), d.max(y)],
            });
        };
        for (i, &from) in corners.iter().enumerate() {
            let to = corners[(i + 1) % 4];
            if from[2] >= HORIZON {
                include(from);
            }
            if (from[2] >= HORIZON) != (to[2] >= HORIZON) {
                let t = (HORIZON - from[2]) / (to[2] - from[2]);
                let mut cut: [f64; 3] = std::array::from_fn(|k| from[k] + t * (to[k] - from[k]));
                cut[2] = HORIZON;
                include(cut);
            }
        }
        bounds
    }
}

/// The numbers of one random affine (or perspective) transformation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AffineDraw {
    pub degrees: f64,
    pub scale: f64,
    /// Degrees, per axis.
    pub shear: [f64; 2],
    /// Where the canvas's centre comes to lie, as a fraction of the output's sides.
    pub centre: [f64; 2],
    /// Per pixel of the canvas, per axis.
    pub perspective: [f64; 2],
}

impl AffineDraw {
    pub const NEUTRAL: AffineDraw = AffineDraw {
        degrees: 0.0,
        scale: 1.0,
        shear: [0.0, 0.0],
        centre: [0.5, 0.5],
        perspective: [0.0, 0.0],
    };

    /// The map from a square canvas with side `canvas` to a square output with side `output`: the canvas's centre to
    /// the origin, perspective, rotation with scale, shear, then the origin to `centre` of the output.
    pub fn matrix(&self, canvas: f64, output: f64) -> Homography {
        let perspective = Homography([
            1.0,
            0.0,
            0.0,
            0.0,
            1.0,
            0.0,
            self.perspective[0],
            self.perspective[1],
            1.0,
        ]);
        let (sin, cos) = sin_cos_degrees(self.degrees);
        let (s, c) = (sin * self.scale, cos * self.scale);
        let rotation = Homography([c, s, 0.0, -s, c, 0.0, 0.0, 0.0, 1.0]);
        let tangent = |degrees: f64| {
            let (sin, cos) = sin_cos_degrees(degrees);
            sin / cos
        };
        let shear = Homography([
            1.0,
            tangent(self.shear[0]),
            0.0,
            tangent(self.shear[1]),
            1.0,
            0.0,
            0.0,
            0.0,
            1.0,
        ]);
        Homography::translation(-canvas / 2.0, -canvas / 2.0)
            .then(&perspective)
            .then(&rotation)
            .then(&shear)
            .then(&Homography::translation(
                self.centre[0] * output,
                self.centre[1] * output,
            ))
    }
}

/// A transformed box is dropped below this width or height in pixels,
pub const MIN_SIDE: f64 = 2.0;
/// below this share of the area that it would have uncut,
pub const MIN_AREA: f64 = 0.1;
/// and above this ratio of its sides.
pub const MAX_ASPECT: f64 = 100.0;

/// Clips corners to `0..width`, `0..height`.
pub fn clip(xyxy: [f64; 4], width: f64, height: f64) -> [f64; 4] {
    let limit = [width, height];
    std::array::from_fn(|i| xyxy[i].clamp(0.0, limit[i % 2]))
}

/// Area of a box, 0 for an inverted one.
pub fn area(xyxy: [f64; 4]) -> f64 {
    (xyxy[2] - xyxy[0]).max(0.0) * (xyxy[3] - xyxy[1]).max(0.0)
}

/// Whether a clipped box is worth keeping; `full` is the area that the whole object has at its new scale.
pub fn survives(clipped: [f64; 4], full: f64) -> bool {
    let (w, h) = (clipped[2] - clipped[0], clipped[3] - clipped[1]);
    w >= MIN_SIDE
        && h >= MIN_SIDE
        && area(clipped) >= MIN_AREA * full
        && (w / h).max(h / w) <= MAX_ASPECT
}

/// Boxes under a transformation to an output of `side` x `side`: the bounding box of the four corners' images, clipped;
/// those that do not [`survive`](survives) are left out. `scale` is the transformation's scale without shear and
/// perspective.
pub fn transform_labels(
    labels: &[LabelBox],
    map: &Homography,
    scale: f64,
    side: f64,
) -> Vec<LabelBox> {
    labels
        .iter()
        .filter_map(|label| {
            let before = label.xyxy.map(f64::from);
            let clipped = clip(map.transform_box(before)?, side, side);
            survives(clipped, area(before) * scale * scale).then(|| LabelBox {
                class: label.class,
                xyxy: clipped.map(|v| v as f32),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn draw() -> impl Strategy<Value = AffineDraw> {
        (
            -180.0..180.0f64,
            0.3..2.0f64,
            [-30.0..30.0f64, -30.0..30.0f64],
            [0.2..0.8f64, 0.2..0.8f64],
            [-0.0005..0.0005f64, -0.0005..0.0005f64],
        )
            .prop_map(|(degrees, scale, shear, centre, perspective)| AffineDraw {
                degrees,
                scale,
                shear,
                centre,
                perspective,
            })
    }

    #[test]
    fn the_neutral_draw_is_the_identity_and_crops_the_middle_of_a_larger_canvas() {
        assert_eq!(AffineDraw::NEUTRAL.matrix(64.0, 64.0), Homography::IDENTITY);
        assert_eq!(
            AffineDraw::NEUTRAL.matrix(128.0, 64.0),
            Homography::translation(-32.0, -32.0)
        );
        let label = LabelBox {
            class: 3,
            xyxy: [10.0, 11.0, 30.5, 40.25],
        };
        assert_eq!(
            transform_labels(&[label], &Homography::IDENTITY, 1.0, 64.0),
            vec![label]
        );
    }

    #[test]
    fn small_thin_and_mostly_hidden_boxes_are_dropped() {
        assert!(survives([0.0, 0.0, 2.0, 2.0], 4.0));
        assert!(!survives([0.0, 0.0, 1.9, 20.0], 38.0));
        assert!(!survives([0.0, 0.0, 9.0, 9.0], 811.0));
        assert!(survives([0.0, 0.0, 9.0, 9.0], 809.0));
        assert!(!survives([0.0, 0.0, 300.0, 2.9], 870.0));
    }

    #[test]
    fn a_box_that_reaches_behind_the_viewer_is_cut_at_the_horizon() {
        // W = 1 - x / 100: everything right of x = 100 is behind.
        let map = Homography([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, -0.01, 0.0, 1.0]);
        assert!(map.transform_box([120.0, 0.0, 130.0, 10.0]).is_none());
        let seen = map
            .transform_box([50.0, 10.0, 130.0, 20.0])
            .expect("partly seen");
        assert_eq!(seen[0], 100.0);
        assert!(seen[2] > 10_000.0);
    }

    proptest! {
        #[test]
        fn a_map_and_its_inverse_cancel(d in draw(), x in 0.0..640.0f64, y in 0.0..640.0f64) {
            let map = d.matrix(640.0, 320.0);
            let inverse = map.inverse().expect("invertible");
            let (u, v) = map.apply(x, y).expect("in front");
            let (back_x, back_y) = inverse.apply(u, v).expect("in front");
            prop_assert!((back_x - x).abs() < 1e-6 && (back_y - y).abs() < 1e-6);
        }

        #[test]
        fn kept_boxes_lie_inside_and_hold_the_visible_points_of_the_object(
            d in draw(), x in 0.0..600.0f32, y in 0.0..600.0f32, w in 1.0..200.0f32, h in 1.0..200.0f32,
            at in [0.0..1.0f64, 0.0..1.0f64],
        ) {
            let map = d.matrix(640.0, 320.0);
            let label = LabelBox { class: 1, xyxy: [x, y, x + w, y + h] };
            for kept in transform_labels(&[label], &map, d.scale, 320.0) {
                let [x1, y1, x2, y2] = kept.xyxy;
                prop_assert!(0.0 <= x1 && x1 < x2 && x2 <= 320.0 && 0.0 <= y1 && y1 < y2 && y2 <= 320.0);
                let (u, v) = map
                    .apply(f64::from(x) + at[0] * f64::from(w), f64::from(y) + at[1] * f64::from(h))
                    .expect("in front");
                if (0.0..320.0).contains(&u) && (0.0..320.0).contains(&v) {
                    prop_assert!(f64::from(x1) - 0.01 <= u && u <= f64::from(x2) + 0.01);
                    prop_assert!(f64::from(y1) - 0.01 <= v && v <= f64::from(y2) + 0.01);
                }
            }
        }
    }
}
