//! A canvas of linear colours on which figures are painted with smooth edges.

use super::super::random::Draws;
use super::super::trig::sin_cos;
use super::form::Form;

pub type Colour = [f32; 3];

/// `[height, width]` pixels, colours in 0..=255.
pub struct Canvas {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<Colour>,
}

/// Where and how large a figure lies.
#[derive(Debug, Clone)]
pub struct Pose {
    pub centre: [f64; 2],
    pub radius: f64,
    /// Factor along the figure's own x axis; the y axis has its reciprocal.
    pub stretch: f64,
    /// Radians.
    pub angle: f64,
}

/// Which part of each pixel a figure covers.
pub struct Mask {
    pub left: i64,
    pub top: i64,
    pub width: usize,
    pub height: usize,
    /// In sixteenths.
    pub coverage: Vec<u8>,
    /// The inner part of figures with an outline, in sixteenths; empty without one.
    pub inner: Vec<u8>,
}

/// A pixel belongs to a figure that covers at least half of it.
pub const HALF: u8 = 8;

impl Mask {
    /// Sixteen points per pixel. `outline` is the outline's share of the radius, 0 for none.
    pub fn render(form: &Form, pose: &Pose, outline: f64) -> Mask {
        let (sin, cos) = sin_cos(pose.angle);
        let reach = pose.radius * form.reach() * pose.stretch.max(1.0 / pose.stretch) + 1.0;
        let left = (pose.centre[0] - reach).floor() as i64;
        let top = (pose.centre[1] - reach).floor() as i64;
        let width = ((pose.centre[0] + reach).ceil() as i64 - left) as usize;
        let height = ((pose.centre[1] + reach).ceil() as i64 - top) as usize;
        let mut coverage = vec![0u8; width * height];
        let mut inner = vec![0u8; if outline > 0.0 { width * height } else { 0 }];
        // To the figure's own axes and size.
        let to_x = 1.0 / (pose.radius * pose.stretch);
        let to_y = pose.stretch / pose.radius;
        let grow = 1.0 / (1.0 - outline);
        let limit = form.reach() * form.reach();
        for y in 0..height {
            for x in 0..width {
                let dx = (left + x as i64) as f64 - pose.centre[0];
                let dy = (top + y as i64) as f64 - pose.centre[1];
                let own =
                    |dx: f64, dy: f64| ((cos * dx + sin * dy) * to_x, (cos * dy - sin * dx) * to_y);
                let (u, v) = own(dx + 0.5, dy + 0.5);
                // More than a pixel beyond the reach: nothing to see.
                let slack = to_x.max(to_y);
                if u * u + v * v > limit + 2.0 * slack * form.reach() + slack * slack {
                    continue;
                }
                let count = |grow: f64| {
                    let inside = |fx: f64, fy: f64| {
                        let (u, v) = own(dx + fx, dy + fy);
                        form.contains(u * grow, v * grow)
                    };
                    // Where centre and corners agree, so does (all but) every point.
                    let first = inside(0.5, 0.5);
                    let corners = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)];
                    if corners.iter().all(|&(fx, fy)| inside(fx, fy) == first) {
                        return if first { 16 } else { 0 };
                    }
                    let sub = |i: i32| (f64::from(i) + 0.5) * 0.25;
                    (0..16)
                        .map(|k| u8::from(inside(sub(k % 4), sub(k / 4))))
                        .sum()
                };
                coverage[y * width + x] = count(1.0);
                if outline > 0.0 {
                    inner[y * width + x] = count(grow);
                }
            }
        }
        Mask {
            left,
            top,
            width,
            height,
            coverage,
            inner,
        }
    }

    /// Pixels of the figure, wherever they lie.
    pub fn area(&self) -> usize {
        self.coverage.iter().filter(|&&c| c >= HALF).count()
    }

    /// Calls `f(index of the pixel on the canvas, index in the mask)` for every pixel of the mask on a canvas.
    pub fn for_each_on(
        &self,
        canvas_width: usize,
        canvas_height: usize,
        mut f: impl FnMut(usize, usize),
    ) {
        for y in 0..self.height {
            let cy = self.top + y as i64;
            if cy < 0 || cy >= canvas_height as i64 {
                continue;
            }
            for x in 0..self.width {
                let cx = self.left + x as i64;
                if cx >= 0 && cx < canvas_width as i64 {
                    f(cy as usize * canvas_width + cx as usize, y * self.width + x);
                }
            }
        }
    }

    /// Corners of the smallest box around the figure's pixels on a canvas, and their number.
    pub fn bounds(&self, width: usize, height: usize) -> Option<([usize; 4], usize)> {
        let mut bounds = [width, height, 0, 0];
        let mut count = 0;
        self.for_each_on(width, height, |pixel, index| {
            if self.coverage[index] >= HALF {
                let (x, y) = (pixel % width, pixel / width);
                bounds = [
                    bounds[0].min(x),
                    bounds[1].min(y),
                    bounds[2].max(x + 1),
                    bounds[3].max(y + 1),
                ];
                count += 1;
            }
        });
        (count > 0).then_some((bounds, count))
    }
}

/// How a figure is filled.
#[derive(Debug, Clone)]
pub struct Paint {
    pub colours: [Colour; 2],
    pub pattern: Pattern,
    pub outline: Option<Colour>,
    pub opacity: f32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pattern {
    Flat,
    /// From one colour to the other along a direction.
    Gradient([f64; 2]),
    /// Brighter towards the light.
    Shaded([f64; 2]),
    /// Direction and period in pixels.
    Stripes([f64; 2], f64),
    /// Period in pixels.
    Checks(f64),
    /// Cell in pixels: see [`Field`].
    Mottled,
}

/// A random field of the whole canvas, for mottled figures.
pub struct Field<'a>(pub &'a [f32]);

impl Canvas {
    /// Paints a figure.
    pub fn paint(&mut self, mask: &Mask, pose: &Pose, paint: &Paint, field: &Field) {
        let (width, height) = (self.width, self.height);
        let pixels = &mut self.pixels;
        mask.for_each_on(width, height, |pixel, index| {
            if mask.coverage[index] == 0 {
                return;
            }
            let position = [
                (pixel % width) as f64 + 0.5 - pose.centre[0],
                (pixel / width) as f64 + 0.5 - pose.centre[1],
            ];
            let along = |d: [f64; 2]| position[0] * d[0] + position[1] * d[1];
            let [first, second] = paint.colours;
            let share = match paint.pattern {
                Pattern::Flat => 0.0,
                Pattern::Gradient(d) => (along(d) / pose.radius * 0.5 + 0.5).clamp(0.0, 1.0),
                Pattern::Shaded(_) => 0.0,
                Pattern::Stripes(d, period) => wave(along(d) / period),
                Pattern::Checks(period) => {
                    let odd = |v: f64| (v / period).floor() as i64 & 1;
                    (odd(position[0]) ^ odd(position[1])) as f64
                }
                Pattern::Mottled => f64::from(field.0[pixel] * 0.8 + 0.5).clamp(0.0, 1.0),
            } as f32;
            let mut colour = mixed(first, second, share);
            if let Pattern::Shaded(d) = paint.pattern {
                let light = (along(d) / pose.radius * 0.4 + 1.0) as f32;
                colour = colour.map(|c| c * light);
            }
            if let (Some(line), false) = (paint.outline, mask.inner.is_empty()) {
                let part = f32::from(mask.inner[index]) / f32::from(mask.coverage[index]);
                colour = mixed(line, colour, part.min(1.0));
            }
            let alpha = f32::from(mask.coverage[index]) / 16.0 * paint.opacity;
            pixels[pixel] = mixed(pixels[pixel], colour, alpha);
        });
    }

    /// Darkens what a figure's shadow covers.
    pub fn shade(&mut self, mask: &Mask, offset: [i64; 2], strength: f32) {
        let shifted = Mask {
            left: mask.left + offset[0],
            top: mask.top + offset[1],
            width: mask.width,
            height: mask.height,
            coverage: Vec::new(),
            inner: Vec::new(),
        };
        let pixels = &mut self.pixels;
        shifted.for_each_on(self.width, self.height, |pixel, index| {
            let keep = 1.0 - strength * f32::from(mask.coverage[index]) / 16.0;
            pixels[pixel] = pixels[pixel].map(|c| c * keep);
        });
    }

    /// Mean colour around a point.
    pub fn mean_around(&self, centre: [f64; 2], radius: f64) -> Colour {
        let span = |c: f64, limit: usize| {
            let low = (c - radius).clamp(0.0, limit as f64 - 1.0) as usize;
            let high = (c + radius).clamp(0.0, limit as f64 - 1.0) as usize;
            (low, high)
        };
        let (left, right) = span(centre[0], self.width);
        let (top, bottom) = span(centre[1], self.height);
        let step = (((right - left) / 8).max(1), ((bottom - top) / 8).max(1));
        let (mut sum, mut count) = ([0f32; 3], 0f32);
        for y in (top..=bottom).step_by(step.1) {
            for x in (left..=right).step_by(step.0) {
                let pixel = self.pixels[y * self.width + x];
                sum = std::array::from_fn(|c| sum[c] + pixel[c]);
                count += 1.0;
            }
        }
        sum.map(|s| s / count)
    }

    /// Mean of 3 x 3 pixels.
    pub fn blur(&mut self) {
        let (width, height) = (self.width, self.height);
        let mean = |a: Colour, b: Colour, c: Colour| -> Colour {
            std::array::from_fn(|k| (a[k] + b[k] + c[k]) * (1.0 / 3.0))
        };
        let mut rows = self.pixels.clone();
        for (from, to) in self
            .pixels
            .chunks_exact(width)
            .zip(rows.chunks_exact_mut(width))
        {
            for x in 0..width {
                to[x] = mean(
                    from[x.saturating_sub(1)],
                    from[x],
                    from[(x + 1).min(width - 1)],
                );
            }
        }
        for y in 0..height {
            let (above, below) = (y.saturating_sub(1), (y + 1).min(height - 1));
            for x in 0..width {
                self.pixels[y * width + x] = mean(
                    rows[above * width + x],
                    rows[y * width + x],
                    rows[below * width + x],
                );
            }
        }
    }

    /// Rounds to bytes after adding noise of about normal distribution with the given standard deviation.
    pub fn to_rgb<R: Draws + ?Sized>(&self, deviation: f32, random: &mut R) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.pixels.len() * 3);
        for pixel in &self.pixels {
            // Four numbers of sixteen bits: one for all channels, one for each.
            let bits = random.next_u64();
            let part = |k: u32| ((bits >> (16 * k)) & 0xffff) as f32 * (1.0 / 65535.0) - 0.5;
            for (c, value) in (0..3).zip(pixel) {
                // The variance of the sum of two uniform numbers is 1/6.
                let noise = (part(3) + part(c)) * 2.449_49 * deviation;
                bytes.push((value + noise + 0.5).clamp(0.0, 255.0) as u8);
            }
        }
        bytes
    }
}

/// `a` with a share of `b`.
pub fn mixed(a: Colour, b: Colour, share: f32) -> Colour {
    std::array::from_fn(|c| a[c] + (b[c] - a[c]) * share)
}

/// A trapezoid wave of period 1 between 0 and 1.
pub fn wave(x: f64) -> f64 {
    let t = (x - x.floor()) * 2.0 - 1.0;
    ((t.abs() - 0.5) * 6.0 + 0.5).clamp(0.0, 1.0)
}
