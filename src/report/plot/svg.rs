//! A writer of the few SVG elements that charts need.

use super::Picture;
use crate::report::raster::escape;
use std::fmt::Write;

/// A rectangle: left, top, width, height.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Area {
    pub x: f64,
    pub y: f64,
    pub w: f64,
    pub h: f64,
}

impl Area {
    #[must_use]
    pub fn new(x: f64, y: f64, w: f64, h: f64) -> Self {
        Self { x, y, w, h }
    }

    #[must_use]
    pub fn right(&self) -> f64 {
        self.x + self.w
    }

    #[must_use]
    pub fn bottom(&self) -> f64 {
        self.y + self.h
    }
}

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stroke {
    /// `#rrggbb`.
    pub colour: &'static str,
    pub width: f64,
    /// SVG's dash array; empty: solid.
    pub dash: &'static str,
    pub opacity: f64,
}

impl Stroke {
    #[must_use]
    pub fn solid(colour: &'static str, width: f64) -> Self {
        Self {
            colour,
            width,
            dash: "",
            opacity: 1.0,
        }
    }

    fn attributes(&self) -> String {
        let Self {
            colour,
            width,
            dash,
            opacity,
        } = self;
        let mut out = format!(r#"fill="none" stroke="{colour}" stroke-width="{width}""#);
        if !dash.is_empty() {
            let _ = write!(out, r#" stroke-dasharray="{dash}""#);
        }
        if *opacity < 1.0 {
            let _ = write!(out, r#" stroke-opacity="{opacity}""#);
        }
        out
    }
}

/// Which point of a text lies at the position given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Font {
    pub size: f64,
    pub anchor: Anchor,
    pub colour: &'static str,
    /// Degrees clockwise around the position.
    pub turn: f64,
}

impl Font {
    #[must_use]
    pub fn new(size: f64, anchor: Anchor) -> Self {
        Self {
            size,
            anchor,
            colour: super::colour::TEXT,
            turn: 0.0,
        }
    }

    #[must_use]
    pub fn turned(self, turn: f64) -> Self {
        Self { turn, ..self }
    }

    #[must_use]
    pub fn coloured(self, colour: &'static str) -> Self {
        Self { colour, ..self }
    }
}

/// An SVG being written, on white.
#[derive(Debug, Clone)]
pub struct Svg {
    width: u32,
    height: u32,
    body: String,
}

impl Svg {
    #[must_use]
    pub fn new(width: u32, height: u32) -> Self {
        let mut svg = Self {
            width,
            height,
            body: String::new(),
        };
        let all = Area::new(0.0, 0.0, f64::from(width), f64::from(height));
        svg.rect(all, "#ffffff");
        svg
    }

    pub fn rect(&mut self, area: Area, fill: &str) {
        let [x, y, w, h] = [area.x, area.y, area.w, area.h].map(pixels);
        self.element(format_args!(
            r#"<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="{fill}"/>"#
        ));
    }

    /// The four sides of a rectangle.
    pub fn frame(&mut self, area: Area, stroke: &Stroke) {
        let [x, y, w, h] = [area.x, area.y, area.w, area.h].map(pixels);
        let stroke = stroke.attributes();
        self.element(format_args!(
            r#"<rect x="{x}" y="{y}" width="{w}" height="{h}" {stroke}/>"#
        ));
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &Stroke) {
        self.polyline([from, to], stroke);
    }

    /// One line through all points.
    pub fn polyline(&mut self, points: impl IntoIterator<Item = (f64, f64)>, stroke: &Stroke) {
        let mut list = String::new();
        for (x, y) in points {
            let _ = write!(list, "{},{} ", pixels(x), pixels(y));
        }
        let stroke = stroke.attributes();
        self.element(format_args!(
            r#"<polyline points="{}" stroke-linejoin="round" {stroke}/>"#,
            list.trim_end()
        ));
    }

    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, fill: &str) {
        let (x, y) = (pixels(x), pixels(y));
        self.element(format_args!(
            r#"<circle cx="{x}" cy="{y}" r="{radius}" fill="{fill}"/>"#
        ));
    }

    /// One line of text with its base line at `y`.
    pub fn text(&mut self, (x, y): (f64, f64), font: &Font, text: &str) {
        if text.trim().is_empty() {
            return;
        }
        let anchor = match font.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y) = (pixels(x), pixels(y));
        let mut turn = String::new();
        if font.turn != 0.0 {
            turn = format!(r#" transform="rotate({} {x} {y})""#, font.turn);
        }
        let (size, colour) = (font.size, font.colour);
        let text = escape(text);
        self.element(format_args!(
            r#"<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{turn}>{text}</text>"#
        ));
    }

    #[must_use]
    pub fn finish(self) -> Picture {
        let Self {
            width,
            height,
            body,
        } = self;
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"DejaVu Sans\" xml:space=\"preserve\">\n{body}</svg>\n"
        );
        Picture { svg, width, height }
    }

    fn element(&mut self, element: std::fmt::Arguments<'_>) {
        self.body
            .write_fmt(element)
            .expect("writing to a string does not fail");
        self.body.push('\n');
    }
}

/// A hundredth of a pixel is as fine as anybody sees; what is not a number becomes 0, since XML has no word for it that
/// renderers read.
fn pixels(value: f64) -> f64 {
    if value.is_finite() {
        (value * 100.0).round() / 100.0
    } else {
        0.0
    }
}
