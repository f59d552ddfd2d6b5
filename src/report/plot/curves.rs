//! Precision, recall and F1 as curves: one thin line for each class, a thick one for their mean.

use super::Picture;
use super::axes::{Entry, Panel, Titles, legend_beside};
use super::colour::{BLACK, FAINT, nth_line};
use super::svg::{Area, Stroke, Svg};
use super::ticks::Scale;

/// A line of a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// In the legend, with the figure that sums the line up.
    pub name: String,
    /// One value from 0 to 1 for each of [`Family::x`].
    pub values: Vec<f64>,
}

/// What one picture shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    pub title: String,
    pub x_label: String,
    pub y_label: String,
    /// From 0 to 1.
    pub x: Vec<f64>,
    pub classes: Vec<Curve>,
    pub mean: Curve,
    /// A place on the x axis that is marked, with its entry in the legend.
    pub mark: Option<(f64, String)>,
}

/// As many classes have their own colours and names.
pub const NAMED: usize = 20;

/// More unnamed lines than this, or more points on them, show nothing more; they are spread over all classes.
const LINES: usize = 200;
const POINTS: usize = 250;

const SIZE: (f64, f64) = (1040.0, 640.0);
const LEGEND: f64 = 330.0;

/// Draws the curves.
#[must_use]
pub fn curves(family: &Family) -> Picture {
    let mut svg = Svg::new(SIZE.0 as u32, SIZE.1 as u32);
    let outer = Area::new(4.0, 4.0, SIZE.0 - LEGEND, SIZE.1 - 12.0);
    let unit = || Scale::linear(0.0, 1.0, 5);
    let panel = Panel::within(outer, unit(), unit());
    panel.background(
        &mut svg,
        Titles {
            title: &family.title,
            x: &family.x_label,
            y: &family.y_label,
        },
    );
    let mut entries = vec![Entry {
        name: &family.mean.name,
        stroke: Stroke::solid(BLACK, 3.0),
    }];
    let marked = Stroke {
        dash: "4 4",
        ..Stroke::solid(FAINT, 1.3)
    };
    if let Some((at, name)) = &family.mark {
        let (x, _) = panel.place(*at, 0.0);
        svg.line((x, panel.area.y), (x, panel.area.bottom()), &marked);
        entries.push(Entry {
            name,
            stroke: marked,
        });
    }
    let line = |svg: &mut Svg, curve: &Curve, stroke: &Stroke, every: usize| {
        let values = family.x.iter().zip(&curve.values).step_by(every);
        panel.series(svg, values.map(|(x, y)| (*x, Some(*y))), stroke);
    };
    let n = family.classes.len();
    let apart = n.div_ceil(LINES).max(1);
    let shown = n.div_ceil(apart);
    let each = match shown == n {
        true => format!("each of {n} classes"),
        false => format!("{shown} of the {n} classes"),
    };
    let many = Stroke {
        opacity: (20.0 / shown.max(1) as f64).clamp(0.2, 0.6),
        ..Stroke::solid("#5f84a2", 1.0)
    };
    if n <= NAMED {
        for (i, class) in family.classes.iter().enumerate() {
            let stroke = nth_line(i, 1.3);
            line(&mut svg, class, &stroke, 1);
            entries.push(Entry {
                name: &class.name,
                stroke,
            });
        }
    } else {
        let every = family.x.len().div_ceil(POINTS).max(1);
        for class in family.classes.iter().step_by(apart) {
            line(&mut svg, class, &many, every);
        }
        entries.push(Entry {
            name: &each,
            stroke: Stroke {
                opacity: 1.0,
                ..many
            },
        });
    }
    line(&mut svg, &family.mean, &entries[0].stroke, 1);
    panel.axes(&mut svg);
    let beside = (outer.right() + 6.0, panel.area.y + 12.0);
    legend_beside(&mut svg, beside, LEGEND - 24.0, &entries);
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_drawn, nasty_names, texts};
    use super::*;

    fn family(names: Vec<String>) -> Family {
        let x: Vec<f64> = (0..=100).map(|i| f64::from(i) / 100.0).collect();
        let curve = |name: String, power: f64| Curve {
            name,
            values: x.iter().map(|x| 1.0 - x.powf(power)).collect(),
        };
        let named = names.into_iter().enumerate();
        Family {
            title: "Precision against recall".into(),
            x_label: "recall".into(),
            y_label: "precision".into(),
            classes: named.map(|(i, n)| curve(n, 1.0 + i as f64)).collect(),
            mean: curve("all classes".into(), 2.0),
            mark: Some((0.4, "best".into())),
            x,
        }
    }

    #[test]
    fn up_to_twenty_classes_are_named_and_more_are_one_entry() {
        let names = |n: usize| (0..n).map(|i| format!("class {i}")).collect();
        for (n, named) in [(0, 0), (1, 1), (20, 20), (21, 0), (400, 0)] {
            let picture = curves(&family(names(n)));
            let texts = texts(&picture);
            let found = texts.iter().filter(|t| t.starts_with("class ")).count();
            assert_eq!(found, named);
            let many = match n {
                400 => "200 of the 400 classes".to_string(),
                n => format!("each of {n} classes"),
            };
            assert_eq!(texts.contains(&many), n > 20, "{texts:?}");
            assert!(picture.svg.matches("<polyline").count() > n.min(LINES));
            assert_drawn(&picture, 0.005);
        }
    }

    #[test]
    fn nasty_names_are_drawn_and_long_ones_cut() {
        let picture = curves(&family(nasty_names()));
        assert_drawn(&picture, 0.005);
        let long: Vec<String> = texts(&picture)
            .into_iter()
            .filter(|t| t.starts_with("long"))
            .collect();
        assert!(
            long.len() == 1 && long[0].ends_with('…') && long[0].len() < 80,
            "{long:?}"
        );
    }
}
