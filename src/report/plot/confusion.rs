//! The confusion matrix as a picture: columns are true classes, rows predicted ones.

use super::Picture;
use super::axes::{HEAD, MEDIUM, SMALL};
use super::colour::{AXIS, FAINT, heat, hex, on_heat};
use super::heat::{key, share_of};
use super::svg::{Anchor, Area, Font, Stroke, Svg};
use super::ticks::short_count;
use crate::report::raster::{fitted, text_width};
use std::collections::BTreeMap;

/// What is drawn. Row and column `names.len()` are the background: nothing was there, or nothing was found.
#[derive(Debug, Clone, Copy)]
pub struct Confusion<'a> {
    pub names: &'a [String],
    /// Pairs that were counted: (predicted, true).
    pub counts: &'a BTreeMap<(usize, usize), u64>,
    /// Each column's parts instead of its counts.
    pub normalised: bool,
    /// Which detections were counted, in the title: "confidence > 0.25".
    pub at: &'a str,
    /// How, beneath the title.
    pub note: &'a str,
}

/// Cells have numbers for as many classes.
pub const NUMBERED: usize = 30;
/// More rows than this share cells, so that a cell is at least a pixel.
const ROWS: usize = 1100;
const BACKGROUND: &str = "background";

/// Draws the matrix.
#[must_use]
pub fn confusion(matrix: &Confusion<'_>) -> Picture {
    let n = matrix.names.len() + 1;
    let block = n.div_ceil(ROWS);
    let rows = n.div_ceil(block);
    let cell = match rows {
        0..=4 => 110.0,
        5..=31 => (1000.0 / rows as f64).round().clamp(34.0, 90.0),
        _ => (980.0 / rows as f64).clamp(1.0, 30.0),
    };
    // Names smaller than this are not read.
    let named = block == 1 && cell >= 9.5;
    let font = (cell - 0.5).min(SMALL + 1.0);
    let names: Vec<String> = (0..if named { n } else { 0 })
        .map(|i| matrix.names.get(i).map_or(BACKGROUND, String::as_str))
        .map(|name| fitted(name, font as f32, 150.0))
        .collect();
    let widest = names
        .iter()
        .map(|n| f64::from(text_width(n, font as f32)))
        .fold(0.0, f64::max);
    let room = if named { widest + 14.0 } else { 42.0 };

    let side = cell * rows as f64;
    let (left, top) = (44.0 + room, 84.0);
    let width = (left + side + 110.0).max(560.0);
    let height = top + side + room + 44.0;
    let mut svg = Svg::new(width as u32, height as u32);
    let area = Area::new(left, top, side, side);
    heading(&mut svg, matrix, block, width);

    let (cells, greatest) = values(matrix, block);
    for (&(row, column), &(count, value)) in &cells {
        let edge = |i: usize| (i as f64 * cell).round();
        let (x, y) = (edge(column), edge(row));
        let place = Area::new(left + x, top + y, edge(column + 1) - x, edge(row + 1) - y);
        let share = match matrix.normalised {
            true => value.sqrt(),
            false => share_of(count, greatest),
        };
        svg.rect(place, &hex(heat(share)));
        if matrix.names.len() <= NUMBERED {
            let text = match matrix.normalised {
                true => format!("{value:.2}"),
                false => short_count(count),
            };
            let wide = f64::from(text_width(&text, 1.0)).max(2.0);
            let size = ((cell - 6.0) / wide).clamp(8.0, 16.0);
            let at = (
                place.x + place.w / 2.0,
                place.y + place.h / 2.0 + size * 0.36,
            );
            let font = Font::new(size, Anchor::Middle).coloured(on_heat(share));
            svg.text(at, &font, &text);
        }
    }
    frame(&mut svg, area, cell, rows);
    if named {
        for (i, name) in names.iter().enumerate() {
            let middle = (i as f64 + 0.5) * cell;
            let along = Font::new(font, Anchor::End);
            let y = top + middle + font * 0.36;
            svg.text((left - 8.0, y), &along, name);
            let x = left + middle + font * 0.36;
            svg.text((x, top + side + 8.0), &along.turned(-90.0), name);
        }
    } else {
        numbers(&mut svg, area, cell, block, n);
    }
    let middle = Font::new(MEDIUM + 1.0, Anchor::Middle);
    let at = (left + side / 2.0, height - 14.0);
    svg.text(at, &middle, "true class");
    svg.text(
        (24.0, top + side / 2.0),
        &middle.turned(-90.0),
        "predicted class",
    );
    let bar = Area::new(left + side + 22.0, top, 16.0, side.min(420.0));
    match matrix.normalised {
        true => key(&mut svg, bar, 1.0, f64::sqrt),
        false => {
            let end = greatest.max(1) as f64;
            key(&mut svg, bar, end, |v| (v / end).sqrt());
        }
    }
    svg.finish()
}

fn heading(svg: &mut Svg, matrix: &Confusion<'_>, block: usize, width: f64) {
    let title = match matrix.normalised {
        true => "parts of each column",
        false => "counts",
    };
    let title = format!("Confusion matrix, {}: {title}", matrix.at);
    let title = fitted(&title, HEAD as f32, width as f32 - 40.0);
    svg.text((22.0, 32.0), &Font::new(HEAD, Anchor::Start), &title);
    let shared = match block {
        1 => String::new(),
        b => format!("; each cell is the sum of {b} x {b}"),
    };
    let note = format!("{}{shared}", matrix.note);
    let note = fitted(&note, SMALL as f32, width as f32 - 40.0);
    let font = Font::new(SMALL, Anchor::Start).coloured(FAINT);
    svg.text((22.0, 56.0), &font, &note);
}

/// Cells that are not empty, (row, column), with their count and their part of the column; and the greatest count.
#[allow(clippy::type_complexity)]
fn values(matrix: &Confusion<'_>, block: usize) -> (BTreeMap<(usize, usize), (u64, f64)>, u64) {
    let mut cells: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    let mut columns: BTreeMap<usize, u64> = BTreeMap::new();
    for (&(row, column), &count) in matrix.counts.iter().filter(|(_, c)| **c > 0) {
        *cells.entry((row / block, column / block)).or_default() += count;
        *columns.entry(column / block).or_default() += count;
    }
    let greatest = cells.values().copied().max().unwrap_or(0);
    let with_part = |(at, count): ((usize, usize), u64)| {
        let part = count as f64 / columns[&at.1] as f64;
        (at, (count, part))
    };
    (cells.into_iter().map(with_part).collect(), greatest)
}

/// Lines around the matrix and before the background's row and column; between cells where they are large.
fn frame(svg: &mut Svg, area: Area, cell: f64, rows: usize) {
    let thin = Stroke::solid("#d9dfe5", 1.0);
    let line = Stroke::solid(AXIS, 1.0);
    let across = |svg: &mut Svg, at: f64, stroke: &Stroke| {
        let (x, y) = ((area.x + at).round() + 0.5, (area.y + at).round() + 0.5);
        svg.line((x, area.y), (x, area.bottom()), stroke);
        svg.line((area.x, y), (area.right(), y), stroke);
    };
    if cell >= 9.5 {
        for i in 1..rows {
            across(svg, i as f64 * cell, &thin);
        }
        across(svg, (rows - 1) as f64 * cell, &line);
    }
    let snapped = Area::new(area.x.round() + 0.5, area.y.round() + 0.5, area.w, area.h);
    svg.frame(snapped, &line);
}

/// Numbers of classes instead of their names.
fn numbers(svg: &mut Svg, area: Area, cell: f64, block: usize, n: usize) {
    let classes = super::ticks::Scale::whole(0.0, (n - 1) as f64, 10);
    let line = Stroke::solid(AXIS, 1.0);
    for (value, text) in &classes.ticks {
        let at = (value / block as f64 + 0.5) * cell;
        svg.line((area.x - 5.0, area.y + at), (area.x, area.y + at), &line);
        let left = (area.x - 8.0, area.y + at + 4.0);
        svg.text(left, &Font::new(SMALL, Anchor::End), text);
        let x = area.x + at;
        svg.line((x, area.bottom()), (x, area.bottom() + 5.0), &line);
        let below = (x, area.bottom() + 18.0);
        svg.text(below, &Font::new(SMALL, Anchor::Middle), text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_drawn, nasty_names, texts};
    use super::*;

    fn counts(n: usize) -> BTreeMap<(usize, usize), u64> {
        let mut counts = BTreeMap::new();
        for i in 0..=n {
            if i < n {
                counts.insert((i, i), 100 + i as u64);
            }
            counts.insert(((i * 7 + 1) % (n + 1), i), 3);
        }
        counts
    }

    fn draw(names: &[String], normalised: bool) -> Picture {
        confusion(&Confusion {
            names,
            counts: &counts(names.len()),
            normalised,
            at: "confidence > 0.25",
            note: "matched at IoU > 0.45",
        })
    }

    #[test]
    fn one_to_a_thousand_classes_are_readable() {
        for n in [1, 2, 3, 10, 30, 31, 80, 200, 1000] {
            let names: Vec<String> = (0..n).map(|i| format!("name {i}")).collect();
            for normalised in [false, true] {
                let picture = draw(&names, normalised);
                assert!(picture.width <= 1400 && picture.height <= 1400, "{n}");
                assert_drawn(&picture, 0.004);
                let texts = texts(&picture);
                let named = texts.iter().filter(|t| t.starts_with("name ")).count();
                assert_eq!(named, if n <= 80 { 2 * n } else { 0 }, "{n}");
                let numbers = texts.iter().filter(|t| *t == "3" || *t == "0.03").count();
                assert_eq!(numbers > 0, n <= NUMBERED, "{n} {texts:?}");
            }
        }
    }

    #[test]
    fn parts_of_a_column_sum_to_one_and_blocks_keep_the_counts() {
        let names: Vec<String> = (0..2000).map(|i| i.to_string()).collect();
        let matrix = Confusion {
            names: &names,
            counts: &counts(2000),
            normalised: true,
            at: "",
            note: "",
        };
        for block in [1, 3] {
            let (cells, greatest) = values(&matrix, block);
            let total: u64 = cells.values().map(|v| v.0).sum();
            assert_eq!(total, matrix.counts.values().sum::<u64>());
            assert!(greatest >= 2099);
            let mut columns: BTreeMap<usize, f64> = BTreeMap::new();
            for (&(_, column), &(_, part)) in &cells {
                *columns.entry(column).or_default() += part;
            }
            assert!(columns.values().all(|sum| (sum - 1.0).abs() < 1e-9));
        }
        assert_drawn(&confusion(&matrix), 0.001);
    }

    #[test]
    fn nasty_names_and_an_empty_matrix_are_drawn() {
        assert_drawn(&draw(&nasty_names(), false), 0.02);
        let empty = Confusion {
            names: &nasty_names(),
            counts: &BTreeMap::new(),
            normalised: true,
            at: "",
            note: "",
        };
        assert_drawn(&confusion(&empty), 0.005);
        let none = Confusion {
            names: &[],
            ..empty
        };
        assert_drawn(&confusion(&none), 0.002);
    }
}
