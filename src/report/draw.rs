//! Boxes with names, drawn into the pixels of an image.
//!
//! Lines and names have one colour per class, out of a set that colour-blind people can tell apart; widths follow the size of
//! the image. The same boxes on the same image give the same bytes on every machine.

mod colours;
mod text;

pub use colours::{class_colour, ink_on};
pub use text::Lettering;

use image::ImageEncoder;
use image::codecs::jpeg::JpegEncoder;
use std::io;
use text::Mask;

/// Red, green, blue.
pub type Colour = [u8; 3];

const DARK: Colour = [24, 24, 24];
const WHITE: Colour = [255, 255, 255];

/// Quality of the JPEG files that are written, from 1 to 100.
pub const JPEG_QUALITY: u8 = 95;

/// An image that is drawn on: `pixels` is `[height, width, 3]`, RGB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canvas {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<u8>,
}

/// A box to draw.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// Corners in pixels of the canvas; what lies outside is cut off.
    pub xyxy: [f32; 4],
    pub class: usize,
    /// The class's name; not shown where empty.
    pub name: String,
    pub score: Option<f32>,
}

/// Sizes of what is drawn, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pen {
    /// Width of a box's lines.
    pub line: usize,
    /// Font size.
    pub font: u32,
}

impl Pen {
    /// For an image of `width` x `height` pixels: 2 pixel lines and 12 pixel letters at 640 x 640, in proportion to the
    /// geometric mean of the sides, and never too small to read.
    #[must_use]
    pub fn for_image(width: usize, height: usize) -> Self {
        let side = ((width * height) as f64).sqrt();
        let thinnest = if side < 128.0 { 1 } else { 2 };
        Self {
            line: ((side / 320.0).round() as usize).clamp(thinnest, 40),
            font: ((side / 50.0).round() as u32).clamp(10, 200),
        }
    }

    /// With lines of `line` pixels, and letters in proportion.
    #[must_use]
    pub fn with_line(line: usize) -> Self {
        let line = line.clamp(1, 200);
        Self {
            line,
            font: (line as u32 * 6).clamp(10, 600),
        }
    }
}

/// Part of a canvas: from `x0`, `y0` to before `x1`, `y1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Area {
    x0: usize,
    y0: usize,
    x1: usize,
    y1: usize,
}

impl Canvas {
    /// Filled with one colour.
    #[must_use]
    pub fn new(width: usize, height: usize, colour: Colour) -> Self {
        Self {
            width,
            height,
            pixels: colour.repeat(width * height),
        }
    }

    /// Draws the boxes, then their names, the first of `marks` on top: marks in the order of their scores, best first, leave
    /// the best ones readable. A box with a number that is not finite is left out.
    pub fn mark(&mut self, marks: &[Mark], pen: Pen, lettering: &Lettering) {
        let placed: Vec<(&Mark, Area)> = marks
            .iter()
            .filter_map(|m| Some((m, self.outer(m.xyxy, pen.line)?)))
            .collect();
        for (mark, outer) in placed.iter().rev() {
            self.outline(*outer, pen.line, class_colour(mark.class));
        }
        for (mark, outer) in placed.iter().rev() {
            self.label(mark, *outer, pen, lettering);
        }
    }

    /// A name in the top left corner of a part of the canvas that begins at `x`, `y` and is `room` pixels wide.
    pub fn title(
        &mut self,
        text: &str,
        (x, y): (usize, usize),
        room: usize,
        font: u32,
        lettering: &Lettering,
    ) {
        let mask = lettering.line(text, font, room.saturating_sub(2 * pad(font)));
        self.tag(&[&mask], (x, y), font, DARK, WHITE);
    }

    /// Copies a smaller picture to `x`, `y`; what lies outside is cut off.
    pub fn paste(&mut self, picture: &Canvas, (x, y): (usize, usize)) {
        let visible = picture.width.min(self.width.saturating_sub(x)) * 3;
        for row in 0..picture.height.min(self.height.saturating_sub(y)) {
            let to = ((y + row) * self.width + x) * 3;
            let from = row * picture.width * 3;
            self.pixels[to..to + visible].copy_from_slice(&picture.pixels[from..from + visible]);
        }
    }

    /// The part of the canvas in a box, rounded outwards; `None` where they have no pixel in common.
    #[must_use]
    pub fn cut(&self, xyxy: [f32; 4]) -> Option<Canvas> {
        let a = self.clipped(xyxy)?;
        let mut pixels = Vec::with_capacity((a.x1 - a.x0) * (a.y1 - a.y0) * 3);
        for y in a.y0..a.y1 {
            let row = y * self.width;
            pixels.extend_from_slice(&self.pixels[(row + a.x0) * 3..(row + a.x1) * 3]);
        }
        Some(Canvas {
            width: a.x1 - a.x0,
            height: a.y1 - a.y0,
            pixels,
        })
    }

    /// A JPEG file of quality [`JPEG_QUALITY`].
    ///
    /// # Errors
    /// Sides above 65535 pixels, which JPEG cannot hold.
    pub fn to_jpeg(&self) -> io::Result<Vec<u8>> {
        let mut file = Vec::with_capacity(self.pixels.len() / 4);
        let (width, height) = (self.width as u32, self.height as u32);
        JpegEncoder::new_with_quality(&mut file, JPEG_QUALITY)
            .write_image(&self.pixels, width, height, image::ExtendedColorType::Rgb8)
            .map_err(|e| {
                io::Error::other(format!("cannot encode {width} x {height} pixels: {e}"))
            })?;
        Ok(file)
    }

    /// The box's pixels within the canvas, rounded outwards.
    fn clipped(&self, xyxy: [f32; 4]) -> Option<Area> {
        if !xyxy.iter().all(|v| v.is_finite()) {
            return None;
        }
        // `as` saturates, so that no coordinate is too far away
        let low = |v: f32| v.floor().max(0.0) as usize;
        let high = |v: f32, end: usize| (v.ceil().max(0.0) as usize).min(end);
        let area = Area {
            x0: low(xyxy[0]),
            y0: low(xyxy[1]),
            x1: high(xyxy[2], self.width),
            y1: high(xyxy[3], self.height),
        };
        (area.x0 < area.x1 && area.y0 < area.y1).then_some(area)
    }

    /// Where the lines of a box end outside: half a line beyond its edges, but within the canvas, and never smaller than two
    /// lines, so that every box shows.
    fn outer(&self, xyxy: [f32; 4], line: usize) -> Option<Area> {
        if !xyxy.iter().all(|v| v.is_finite()) || self.width == 0 || self.height == 0 {
            return None;
        }
        let side = |low: f32, high: f32, end: usize| {
            let half = line as f32 / 2.0;
            let last = end as f32;
            let from = (low.min(high) - half).round().clamp(0.0, last) as usize;
            let to = (low.max(high) + half).round().clamp(0.0, last) as usize;
            let least = (2 * line).min(end);
            let to = to.max(from + least).min(end);
            (from.min(to - least), to)
        };
        let (x0, x1) = side(xyxy[0], xyxy[2], self.width);
        let (y0, y1) = side(xyxy[1], xyxy[3], self.height);
        Some(Area { x0, y0, x1, y1 })
    }

    fn outline(&mut self, outer: Area, line: usize, colour: Colour) {
        let Area { x0, y0, x1, y1 } = outer;
        let (inner_x, inner_y) = (line.min(x1 - x0), line.min(y1 - y0));
        let bands = [
            Area {
                y1: y0 + inner_y,
                ..outer
            },
            Area {
                y0: y1 - inner_y,
                ..outer
            },
            Area {
                x1: x0 + inner_x,
                ..outer
            },
            Area {
                x0: x1 - inner_x,
                ..outer
            },
        ];
        for band in bands {
            self.fill(band, colour);
        }
    }

    fn fill(&mut self, area: Area, colour: Colour) {
        for y in area.y0..area.y1.min(self.height) {
            let row = y * self.width;
            let x1 = area.x1.min(self.width);
            for pixel in
                self.pixels[(row + area.x0.min(x1)) * 3..(row + x1) * 3].chunks_exact_mut(3)
            {
                pixel.copy_from_slice(&colour);
            }
        }
    }

    /// Name and score above the box, or inside where the canvas ends; moved to the left where it would leave the canvas.
    fn label(&mut self, mark: &Mark, outer: Area, pen: Pen, lettering: &Lettering) {
        let mut parts = Vec::new();
        let mut room = self.width.saturating_sub(2 * pad(pen.font));
        let score = mark.score.map(|s| lettering.score(s, pen.font));
        if let Some(score) = &score {
            room = room.saturating_sub(score.iter().map(|m| m.advance).sum::<usize>());
        }
        let name = (!mark.name.is_empty()).then(|| lettering.name(&mark.name, pen.font, room));
        parts.extend(name.as_deref());
        if let Some(score) = &score {
            parts.extend(score.iter().map(|m| &**m).skip(usize::from(name.is_none())));
        }
        if parts.is_empty() {
            return;
        }
        let width = parts.iter().map(|m| m.advance).sum::<usize>() + 2 * pad(pen.font);
        let height = Lettering::height(pen.font);
        let x = outer.x0.min(self.width.saturating_sub(width));
        let y = if outer.y0 >= height {
            outer.y0 - height
        } else {
            outer.y0
        };
        let y = y.min(self.height.saturating_sub(height));
        let colour = class_colour(mark.class);
        self.tag(&parts, (x, y), pen.font, colour, ink_on(colour));
    }

    /// Letters on a filled rectangle.
    fn tag(
        &mut self,
        parts: &[&Mask],
        (x, y): (usize, usize),
        font: u32,
        ground: Colour,
        ink: Colour,
    ) {
        let width = parts.iter().map(|m| m.advance).sum::<usize>() + 2 * pad(font);
        let area = Area {
            x0: x,
            y0: y,
            x1: x + width,
            y1: y + Lettering::height(font),
        };
        self.fill(area, ground);
        let mut at = x + pad(font);
        for mask in parts {
            self.stamp(mask, (at, y), ink);
            at += mask.advance;
        }
    }

    fn stamp(&mut self, mask: &Mask, (x, y): (usize, usize), ink: Colour) {
        // the mask has a margin on its left, for letters that begin before their place
        let cut = Mask::MARGIN.saturating_sub(x);
        let left = x.saturating_sub(Mask::MARGIN);
        for row in 0..mask.height.min(self.height.saturating_sub(y)) {
            let from = &mask.alpha[row * mask.width..(row + 1) * mask.width];
            let start = (y + row) * self.width;
            let to = &mut self.pixels[(start + left.min(self.width)) * 3..(start + self.width) * 3];
            for (pixel, &alpha) in to.chunks_exact_mut(3).zip(&from[cut.min(from.len())..]) {
                if alpha > 0 {
                    blend(pixel, ink, alpha);
                }
            }
        }
    }
}

/// Space on either side of a label.
fn pad(font: u32) -> usize {
    (font as usize / 5).max(2)
}

fn blend(pixel: &mut [u8], ink: Colour, alpha: u8) {
    let alpha = u32::from(alpha);
    for (p, i) in pixel.iter_mut().zip(ink) {
        *p = ((u32::from(i) * alpha + u32::from(*p) * (255 - alpha) + 127) / 255) as u8;
    }
}

#[cfg(test)]
#[path = "draw/tests.rs"]
mod tests;
