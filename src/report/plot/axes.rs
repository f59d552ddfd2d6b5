//! A panel: axes with ticks, a grid, titles, and what is drawn in it.

use super::colour::{AXIS, FAINT, GRID};
use super::svg::{Anchor, Area, Font, Stroke, Svg};
use super::ticks::Scale;
use crate::report::raster::{fitted, text_width};

/// Font sizes in pixels.
pub const SMALL: f64 = 12.0;
pub const MEDIUM: f64 = 13.0;
pub const LARGE: f64 = 15.0;
/// The head line of a picture of several panels.
pub const HEAD: f64 = 18.0;

/// Room around the area that lines are drawn in.
pub const LEFT: f64 = 66.0;
pub const RIGHT: f64 = 18.0;
pub const TOP: f64 = 48.0;
pub const BOTTOM: f64 = 50.0;

/// A rectangle with two scales.
pub struct Panel {
    /// Where values are drawn: within the axes.
    pub area: Area,
    pub x: Scale,
    pub y: Scale,
}

/// Texts of a panel; empty ones take no ink.
#[derive(Clone, Copy, Default)]
pub struct Titles<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
}

/// An entry of a legend.
pub struct Entry<'a> {
    pub name: &'a str,
    pub stroke: Stroke,
}

impl Panel {
    /// A panel whose axes, ticks and titles fill `outer`.
    pub fn within(outer: Area, x: Scale, y: Scale) -> Self {
        let area = Area::new(
            outer.x + LEFT,
            outer.y + TOP,
            (outer.w - LEFT - RIGHT).max(1.0),
            (outer.h - TOP - BOTTOM).max(1.0),
        );
        Self { area, x, y }
    }

    /// Where a pair of values lies.
    pub fn place(&self, x: f64, y: f64) -> (f64, f64) {
        (
            self.area.x + self.x.place(x) * self.area.w,
            self.area.bottom() - self.y.place(y) * self.area.h,
        )
    }

    /// Grid and titles; [`axes`](Self::axes) come after the data.
    pub fn background(&self, svg: &mut Svg, titles: Titles<'_>) {
        let Area { x, y, w, h } = self.area;
        let grid = Stroke::solid(GRID, 1.0);
        for &(v, _) in &self.x.ticks {
            let at = (x + self.x.place(v) * w).round() + 0.5;
            svg.line((at, y), (at, y + h), &grid);
        }
        for &(v, _) in &self.y.ticks {
            let at = (y + h - self.y.place(v) * h).round() + 0.5;
            svg.line((x, at), (x + w, at), &grid);
        }
        self.titles(svg, titles);
    }

    pub fn titles(&self, svg: &mut Svg, titles: Titles<'_>) {
        let Area { x, y, w, h } = self.area;
        let middle = x + w / 2.0;
        let room = w + LEFT + RIGHT - 8.0;
        let title = fitted(titles.title, LARGE as f32, room as f32);
        svg.text(
            (middle, y - 24.0),
            &Font::new(LARGE, Anchor::Middle),
            &title,
        );
        svg.text(
            (middle, y + h + 40.0),
            &Font::new(MEDIUM, Anchor::Middle),
            titles.x,
        );
        let left = (x - LEFT + 16.0, y + h / 2.0);
        let turned = Font::new(MEDIUM, Anchor::Middle).turned(-90.0);
        svg.text(left, &turned, titles.y);
    }

    /// The frame and the ticks with their texts.
    pub fn axes(&self, svg: &mut Svg) {
        self.x_ticks(svg);
        self.y_ticks(svg);
        self.frame(svg);
    }

    pub fn frame(&self, svg: &mut Svg) {
        let Area { x, y, w, h } = self.area;
        let snapped = Area::new(x.round() + 0.5, y.round() + 0.5, w.round(), h.round());
        svg.frame(snapped, &Stroke::solid(AXIS, 1.0));
    }

    pub fn x_ticks(&self, svg: &mut Svg) {
        let Area { x, y, w, h } = self.area;
        let line = Stroke::solid(AXIS, 1.0);
        let font = Font::new(SMALL, Anchor::Middle);
        for (v, text) in &self.x.ticks {
            let at = (x + self.x.place(*v) * w).round() + 0.5;
            svg.line((at, y + h), (at, y + h + 5.0), &line);
            svg.text((at, y + h + 19.0), &font, text);
        }
    }

    pub fn y_ticks(&self, svg: &mut Svg) {
        let Area { x, y, h, .. } = self.area;
        let line = Stroke::solid(AXIS, 1.0);
        let font = Font::new(SMALL, Anchor::End);
        for (v, text) in &self.y.ticks {
            let at = (y + h - self.y.place(*v) * h).round() + 0.5;
            svg.line((x - 5.0, at), (x, at), &line);
            svg.text((x - 8.0, at + 4.0), &font, text);
        }
    }

    /// Lines through the points that are there; a gap ends a line, and a point alone becomes a dot.
    pub fn series(
        &self,
        svg: &mut Svg,
        points: impl IntoIterator<Item = (f64, Option<f64>)>,
        stroke: &Stroke,
    ) {
        let mut run: Vec<(f64, f64)> = Vec::new();
        let ends = std::iter::once((0.0, None));
        for (x, y) in points.into_iter().chain(ends) {
            match y.filter(|y| y.is_finite()) {
                Some(y) => run.push(self.place(x, y)),
                None => {
                    match run.as_slice() {
                        [] => {}
                        [alone] => svg.dot(*alone, stroke.width.max(2.5), stroke.colour),
                        many => svg.polyline(many.iter().copied(), stroke),
                    }
                    run.clear();
                }
            }
        }
    }

    /// Words in the middle of a panel that has nothing to show.
    pub fn nothing(&self, svg: &mut Svg, words: &str) {
        let Area { x, y, w, h } = self.area;
        let font = Font::new(MEDIUM, Anchor::Middle).coloured(FAINT);
        svg.text((x + w / 2.0, y + h / 2.0), &font, words);
    }

    /// Names of lines in one row above the panel, from the right.
    pub fn legend_above(&self, svg: &mut Svg, entries: &[Entry<'_>]) {
        let mut right = self.area.right();
        let y = self.area.y - 7.0;
        for entry in entries.iter().rev() {
            let width = f64::from(text_width(entry.name, SMALL as f32));
            svg.text(
                (right - width, y),
                &Font::new(SMALL, Anchor::Start),
                entry.name,
            );
            let line = right - width - 5.0;
            svg.line((line - 18.0, y - 4.0), (line, y - 4.0), &entry.stroke);
            right = line - 18.0 - 14.0;
        }
    }
}

/// Names of lines one beneath the other, from `(x, y)`, each at most `width` wide.
pub fn legend_beside(svg: &mut Svg, (x, y): (f64, f64), width: f64, entries: &[Entry<'_>]) {
    for (i, entry) in entries.iter().enumerate() {
        let y = y + 20.0 * i as f64;
        svg.line((x, y - 4.0), (x + 26.0, y - 4.0), &entry.stroke);
        let name = fitted(entry.name, SMALL as f32, (width - 34.0) as f32);
        svg.text((x + 34.0, y), &Font::new(SMALL, Anchor::Start), &name);
    }
}
