//! Counts over a plane as colours.

use super::axes::SMALL;
use super::colour::{AXIS, heat, hex};
use super::svg::{Anchor, Area, Font, Stroke, Svg};
use super::ticks::{Scale, short_count};

/// A histogram over the square from (0, 0) to (1, 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    bins: usize,
    /// Row by row, x fastest.
    counts: Vec<u64>,
}

impl Grid {
    /// `bins` along each side.
    #[must_use]
    pub fn new(bins: usize) -> Self {
        Self {
            bins,
            counts: vec![0; bins * bins],
        }
    }

    /// Counts a point; what lies outside counts at the edge.
    pub fn add(&mut self, x: f64, y: f64) {
        let bin = |v: f64| ((v * self.bins as f64).max(0.0) as usize).min(self.bins - 1);
        let at = bin(y) * self.bins + bin(x);
        self.counts[at] += 1;
    }

    #[must_use]
    pub fn greatest(&self) -> u64 {
        self.counts.iter().copied().max().unwrap_or(0)
    }

    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Fills `area`; y grows downwards as in images where `down`, else upwards.
    pub fn draw(&self, svg: &mut Svg, area: Area, down: bool) {
        let greatest = self.greatest().max(1);
        let n = self.bins as f64;
        for (i, &count) in self.counts.iter().enumerate().filter(|(_, c)| **c > 0) {
            let column = (i % self.bins) as f64;
            let row = (i / self.bins) as f64;
            let row = if down { row } else { n - 1.0 - row };
            // To the next cell's pixel, so that no white shows between cells.
            let edge = |at: f64, size: f64| (at * size / n).round();
            let (left, top) = (edge(column, area.w), edge(row, area.h));
            let cell = Area::new(
                area.x + left,
                area.y + top,
                edge(column + 1.0, area.w) - left,
                edge(row + 1.0, area.h) - top,
            );
            svg.rect(cell, &hex(heat(share_of(count, greatest))));
        }
    }
}

/// How dark a count is: its square root, so that rare things next to frequent ones are seen.
#[must_use]
pub fn share_of(count: u64, greatest: u64) -> f64 {
    (count as f64 / greatest.max(1) as f64).sqrt()
}

/// The key of a heat map from 0 at the bottom of `area` to `end` at its top. `share` gives the darkness of a value.
pub fn key(svg: &mut Svg, area: Area, end: f64, share: impl Fn(f64) -> f64) {
    const STEPS: usize = 64;
    // As dark as the values that lie there: even in place, which is what the ticks say.
    for i in 0..STEPS {
        let part = |i: usize| i as f64 / STEPS as f64;
        let (top, bottom) = (
            area.bottom() - part(i + 1) * area.h,
            area.bottom() - part(i) * area.h,
        );
        let colour = hex(heat(share((part(i) + part(i + 1)) / 2.0 * end)));
        let (top, bottom) = (top.round(), bottom.round());
        svg.rect(Area::new(area.x, top, area.w, bottom - top), &colour);
    }
    svg.frame(area, &Stroke::solid(AXIS, 1.0));
    let scale = if end > 1.0 {
        Scale::whole(0.0, end, 5)
    } else {
        Scale::linear(0.0, end, 5)
    };
    for (value, text) in &scale.ticks {
        let y = area.bottom() - scale.place(*value) * area.h;
        let text = if end > 1.0 {
            short_count(*value as u64)
        } else {
            text.clone()
        };
        svg.line(
            (area.right(), y),
            (area.right() + 4.0, y),
            &Stroke::solid(AXIS, 1.0),
        );
        let at = (area.right() + 8.0, y + 4.0);
        svg.text(at, &Font::new(SMALL, Anchor::Start), &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_counted_in_their_bins_and_none_is_lost() {
        let mut g = Grid::new(10);
        for (x, y) in [
            (0.05, 0.95),
            (0.0, 1.0),
            (1.0, 0.0),
            (-3.0, 7.0),
            (f64::NAN, 0.5),
        ] {
            g.add(x, y);
        }
        assert_eq!((g.total(), g.greatest()), (5, 3));
        assert_eq!(g.counts[9 * 10], 3);
        assert_eq!(g.counts[9], 1);
    }

    #[test]
    fn cells_cover_the_area_in_either_direction() {
        let mut g = Grid::new(3);
        (0..9).for_each(|i| g.add(f64::from(i % 3) / 3.0 + 0.1, f64::from(i / 3) / 3.0 + 0.1));
        g.add(0.1, 0.1);
        let draw = |down| {
            let mut svg = Svg::new(100, 100);
            g.draw(&mut svg, Area::new(0.0, 0.0, 100.0, 100.0), down);
            let p = svg.finish();
            crate::report::raster::render(&p.svg, 100, 100).unwrap()
        };
        let (down, up) = (draw(true), draw(false));
        let pixel = |p: &crate::report::raster::Rgba, x: usize, y: usize| {
            let at = (y * 100 + x) * 4;
            [p.pixels[at], p.pixels[at + 1], p.pixels[at + 2]]
        };
        let dark = heat(1.0);
        assert_eq!((pixel(&down, 5, 5), pixel(&up, 5, 95)), (dark, dark));
        assert_ne!(pixel(&down, 5, 95), dark);
        let white = |p: &crate::report::raster::Rgba| {
            p.pixels.chunks(4).filter(|c| c[..3] == [255; 3]).count()
        };
        assert_eq!((white(&down), white(&up)), (0, 0));
    }
}
