//! The outlines that are drawn: the eight classes and what only distracts.

use super::super::random::Draws;
use super::super::trig::sin_cos;
use std::f64::consts::PI;

/// The classes, in the order of their numbers.
pub const CLASSES: [&str; 8] = [
    "circle", "square", "triangle", "star", "ring", "cross", "hexagon", "crescent",
];

/// A plane figure around the origin, about as large as the unit disc.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    Disc,
    /// Inner radius.
    Ring(f64),
    /// Half of the arms' width.
    Cross(f64),
    /// Radius and distance of the disc that is taken away.
    Crescent(f64, f64),
    /// Corners in order.
    Polygon(Vec<[f64; 2]>),
    /// A thick line: half of its width.
    Stroke(f64),
    /// Part of a thin ring above a height: inner radius, height.
    Arc(f64, f64),
    /// Where the influence of some points (x, y, strength) passes 1.
    Blob(Vec<[f64; 3]>),
    /// A disc without what lies below.
    HalfDisc,
}

impl Form {
    /// The figure of a class, with its random proportions.
    pub fn of_class<R: Draws + ?Sized>(class: usize, random: &mut R) -> Form {
        match class {
            0 => Form::Disc,
            1 => Form::Polygon(vec![
                [-0.85, -0.85],
                [0.85, -0.85],
                [0.85, 0.85],
                [-0.85, 0.85],
            ]),
            2 => regular(3, 1.15, 1.15),
            3 => regular(5, 1.1, random.uniform(0.42, 0.52)),
            4 => Form::Ring(random.uniform(0.45, 0.68)),
            5 => Form::Cross(random.uniform(0.24, 0.38)),
            6 => regular(6, 1.0, 1.0),
            _ => Form::Crescent(random.uniform(0.8, 0.95), random.uniform(0.4, 0.6)),
        }
    }

    /// A figure that is of no class: longer, open, irregular, or cut in half.
    pub fn distractor<R: Draws + ?Sized>(random: &mut R) -> Form {
        match random.index(6) {
            0 => Form::Stroke(random.uniform(0.04, 0.2)),
            1 => {
                let half = random.uniform(0.12, 0.3);
                Form::Polygon(vec![[-1.0, -half], [1.0, -half], [1.0, half], [-1.0, half]])
            }
            2 => Form::Arc(random.uniform(0.75, 0.9), random.uniform(-0.3, 0.4)),
            3 => Form::Blob(
                (0..4)
                    .map(|_| {
                        [
                            random.uniform(-0.7, 0.7),
                            random.uniform(-0.7, 0.7),
                            random.uniform(0.05, 0.12),
                        ]
                    })
                    .collect(),
            ),
            4 => Form::HalfDisc,
            _ => {
                let w = random.uniform(0.2, 0.35);
                Form::Polygon(vec![
                    [-0.8, -0.9],
                    [w - 0.8, -0.9],
                    [w - 0.8, 0.9 - w],
                    [0.8, 0.9 - w],
                    [0.8, 0.9],
                    [-0.8, 0.9],
                ])
            }
        }
    }

    /// Whether a point belongs to the figure.
    pub fn contains(&self, x: f64, y: f64) -> bool {
        let square = x * x + y * y;
        match self {
            Form::Disc => square <= 1.0,
            Form::Ring(inner) => square <= 1.0 && square >= inner * inner,
            Form::Cross(half) => {
                let (a, b) = (x.abs(), y.abs());
                a.max(b) <= 1.0 && a.min(b) <= *half
            }
            Form::Crescent(radius, distance) => {
                let dx = x - distance;
                square <= 1.0 && dx * dx + y * y > radius * radius
            }
            Form::Polygon(corners) => inside_polygon(corners, x, y),
            Form::Stroke(half) => {
                let dx = (x.abs() - 1.0 + half).max(0.0);
                dx * dx + y * y <= half * half
            }
            Form::Arc(inner, height) => square <= 1.0 && square >= inner * inner && y >= *height,
            Form::Blob(points) => {
                let influence: f64 = points
                    .iter()
                    .map(|[px, py, strength]| {
                        let (dx, dy) = (x - px, y - py);
                        strength / (dx * dx + dy * dy + 1e-6)
                    })
                    .sum();
                influence >= 1.0
            }
            Form::HalfDisc => square <= 1.0 && y >= 0.0,
        }
    }

    /// No point of the figure is farther from the origin.
    pub fn reach(&self) -> f64 {
        match self {
            Form::Polygon(_) => 1.25,
            Form::Cross(_) => 1.07,
            Form::Blob(_) => 2.0,
            _ => 1.0,
        }
    }

    /// Whether a smaller copy of the figure lies inside it, so that the difference is an outline.
    pub fn has_outline(&self) -> bool {
        matches!(self, Form::Disc | Form::Cross(_) | Form::Polygon(_))
    }
}

/// A polygon with `points` outer corners at radius `outer` and, where `inner` differs, as many inner ones between them.
fn regular(points: usize, outer: f64, inner: f64) -> Form {
    let mut corners = Vec::new();
    let mut push = |half_steps: usize, radius: f64| {
        let (sin, cos) = sin_cos(half_steps as f64 * PI / points as f64);
        corners.push([radius * sin, -radius * cos]);
    };
    for i in 0..points {
        push(2 * i, outer);
        if inner != outer {
            push(2 * i + 1, inner);
        }
    }
    Form::Polygon(corners)
}

/// Even-odd rule.
fn inside_polygon(corners: &[[f64; 2]], x: f64, y: f64) -> bool {
    let mut inside = false;
    let mut previous = corners[corners.len() - 1];
    for &corner in corners {
        if (corner[1] > y) != (previous[1] > y) {
            let t = (y - corner[1]) / (previous[1] - corner[1]);
            if x < corner[0] + t * (previous[0] - corner[0]) {
                inside = !inside;
            }
        }
        previous = corner;
    }
    inside
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::random::{Stream, rng};

    #[test]
    fn figures_stay_within_their_reach_and_cover_a_fair_part_of_it() {
        let mut random = rng(0, 0, 0, Stream::Shapes);
        for round in 0..200 {
            let form = if round % 2 == 0 {
                Form::of_class(round / 2 % 8, &mut random)
            } else {
                Form::distractor(&mut random)
            };
            let (mut within, mut n) = (0, 0);
            for i in -100..100 {
                for j in -100..100 {
                    let (x, y) = (f64::from(i) * 0.03, f64::from(j) * 0.03);
                    if form.contains(x, y) {
                        n += 1;
                        within += i32::from(x * x + y * y <= form.reach() * form.reach() + 1e-9);
                    }
                }
            }
            assert_eq!(within, n, "{form:?}");
            // The unit disc has 3491 of these points.
            assert!(n > 80, "{form:?} {n}");
        }
    }

    #[test]
    fn areas_of_discs_polygons_and_stars_are_right() {
        let area = |form: &Form| {
            let mut n = 0;
            for i in -300..300 {
                for j in -300..300 {
                    n += u32::from(form.contains(f64::from(i) * 0.005, f64::from(j) * 0.005));
                }
            }
            f64::from(n) * 0.005 * 0.005
        };
        assert!((area(&Form::Disc) - PI).abs() < 0.02);
        assert!((area(&regular(6, 1.0, 1.0)) - 2.598).abs() < 0.02);
        assert!((area(&regular(3, 1.15, 1.15)) - 1.718).abs() < 0.02);
        // Five kites of outer and inner radius: 5 R r sin 36 degrees.
        assert!((area(&regular(5, 1.1, 0.45)) - 5.0 * 1.1 * 0.45 * 0.5878).abs() < 0.02);
    }
}
