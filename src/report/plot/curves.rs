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
    let line = |svg: &mut Svg, curve: &Curve, stroke: &Stroke| {
        let values = family.x.iter().zip(&curve.values);
        panel.series(svg, values.map(|(x, y)| (*x, Some(*y))), stroke);
    };
    let each = format!("each of {} classes", family.classes.len());
    let many = Stroke {
        opacity: (20.0 / family.classes.len().max(1) as f64).clamp(0.2, 0.6),
        ..Stroke::solid("#6f8fa8", 1.0)
    };
    if family.classes.len() <= NAMED {
        for (i, class) in family.classes.iter().enumerate() {
            let stroke = nth_line(i, 1.3);
            line(&mut svg, class, &stroke);
            entries.push(Entry {
                name: &class.name,
                stroke,
            });
        }
    } else {
        for class in &family.classes {
            line(&mut svg, class, &many);
        }
        entries.push(Entry {
            name: &each,
            stroke: many,
        });
    }
    line(&mut svg, &family.mean, &entries[0].stroke);
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
            assert_eq!(texts.contains(&format!("each of {n} classes")), n > 20);
            assert_eq!(picture.svg.matches("<polyline").count() > n, true);
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
