//! One random scene: background, distractors, objects, light, and the boxes of what can be seen.

use rand_pcg::Pcg64;

use super::super::random::{Draws, Stream, rng};
use super::super::trig::sin_cos;
use super::canvas::{Canvas, Colour, Field, HALF, Mask, Paint, Pattern, Pose, mixed, wave};
use super::form::{CLASSES, Form};
use super::noise;
use std::f64::consts::PI;

/// Everything in the set follows from this number.
const SEED: u64 = 20_26;

/// Width and height of images.
const SIZES: [(usize, usize); 7] = [
    (480, 360),
    (480, 360),
    (360, 480),
    (512, 384),
    (416, 416),
    (480, 320),
    (400, 300),
];

/// An object hidden by more than this share of its pixels has no box.
const MAX_HIDDEN: f64 = 0.85;

/// A labelled object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    pub class: usize,
    /// Corners in whole pixels around the part inside the image, before anything is put on top.
    pub bounds: [usize; 4],
    /// Pixels of that part.
    pub area: usize,
}

/// A finished image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scene {
    pub width: usize,
    pub height: usize,
    /// `[height, width, 3]`, RGB.
    pub pixels: Vec<u8>,
    pub objects: Vec<Object>,
    /// Of the JPEG file.
    pub quality: u8,
}

/// What is painted over the background, with its pixels on the canvas.
struct Layer {
    class: Option<usize>,
    bounds: [usize; 4],
    area: usize,
    visible: usize,
}

struct Painter {
    random: Pcg64,
    canvas: Canvas,
    /// Smooth noise for mottled figures.
    field: Vec<f32>,
    /// Number of the topmost layer at each pixel, from 1.
    top: Vec<u16>,
    layers: Vec<Layer>,
    /// Unit vector towards the light.
    light: [f64; 2],
    shadow: f32,
}

impl Scene {
    /// The image with a number in a split (0: training, 1: validation).
    pub fn draw(split: u64, number: usize) -> Scene {
        let mut random = rng(SEED, split, number as u64, Stream::Shapes);
        let (width, height) = SIZES[random.index(SIZES.len())];
        let canvas = background(width, height, &mut random);
        let field = noise::octaves(width, height, 16, 0.6, &mut random);
        let light = direction(&mut random);
        let shadow = if random.coin(0.5) {
            random.uniform(0.2, 0.5) as f32
        } else {
            0.0
        };
        let mut painter = Painter {
            random,
            canvas,
            field,
            top: vec![0; width * height],
            layers: Vec::new(),
            light,
            shadow,
        };
        painter.populate();
        painter.finish()
    }
}

impl Painter {
    /// Distractors and objects, large ones first.
    fn populate(&mut self) {
        let random = &mut self.random;
        let objects = if random.coin(0.08) {
            0
        } else {
            let u = random.unit();
            1 + (u * u * 28.0) as usize
        };
        let distractors = 3 + random.index(16);
        let shorter = self.canvas.width.min(self.canvas.height) as f64;
        let mut plan: Vec<(f64, bool)> = Vec::new();
        for i in 0..objects + distractors {
            plan.push((diameter(random, shorter), i < objects));
        }
        plan.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (diameter, is_object) in plan {
            self.place(diameter / 2.0, is_object);
        }
    }

    /// Finds a place for a figure and paints it; gives up where it would hide too much.
    fn place(&mut self, radius: f64, is_object: bool) {
        let (width, height) = (self.canvas.width, self.canvas.height);
        let random = &mut self.random;
        let class = is_object.then(|| random.index(CLASSES.len()));
        let form = match class {
            Some(class) => Form::of_class(class, random),
            None => Form::distractor(random),
        };
        let outline = if form.has_outline() && radius > 10.0 && random.coin(0.3) {
            random.uniform(0.1, 0.22)
        } else {
            0.0
        };
        for _ in 0..10 {
            let random = &mut self.random;
            let margin = 0.3 * radius;
            let pose = Pose {
                centre: [
                    random.uniform(-margin, width as f64 + margin),
                    random.uniform(-margin, height as f64 + margin),
                ],
                radius,
                stretch: random.uniform(0.87, 1.15),
                angle: random.uniform(0.0, 2.0 * PI),
            };
            let mask = Mask::render(&form, &pose, outline);
            let Some((bounds, area)) = mask.bounds(width, height) else {
                continue;
            };
            let small = bounds[2] - bounds[0] < 6 || bounds[3] - bounds[1] < 6;
            let mostly_outside = (area as f64) < 0.35 * mask.area() as f64;
            if is_object && (small || mostly_outside) || self.hides_too_much(&mask) {
                continue;
            }
            let paint = self.paint(&pose, outline > 0.0, is_object);
            if self.shadow > 0.0 {
                let reach = -(radius * 0.15).clamp(1.0, 6.0);
                let offset = self.light.map(|l| (l * reach).round() as i64);
                self.canvas.shade(&mask, offset, self.shadow);
            }
            self.canvas.paint(&mask, &pose, &paint, &Field(&self.field));
            self.record(&mask, class, bounds, area);
            return;
        }
    }

    /// Whether an object would be left with less than 45 % of its pixels.
    fn hides_too_much(&self, mask: &Mask) -> bool {
        let mut hidden = vec![0usize; self.layers.len()];
        mask.for_each_on(self.canvas.width, self.canvas.height, |pixel, index| {
            if mask.coverage[index] >= HALF && self.top[pixel] > 0 {
                hidden[usize::from(self.top[pixel]) - 1] += 1;
            }
        });
        self.layers.iter().zip(hidden).any(|(layer, hidden)| {
            layer.class.is_some() && ((layer.visible - hidden) as f64) < 0.45 * layer.area as f64
        })
    }

    fn record(&mut self, mask: &Mask, class: Option<usize>, bounds: [usize; 4], area: usize) {
        let number = self.layers.len() as u16 + 1;
        let (top, layers) = (&mut self.top, &mut self.layers);
        mask.for_each_on(self.canvas.width, self.canvas.height, |pixel, index| {
            if mask.coverage[index] >= HALF {
                if top[pixel] > 0 {
                    layers[usize::from(top[pixel]) - 1].visible -= 1;
                }
                top[pixel] = number;
            }
        });
        self.layers.push(Layer {
            class,
            bounds,
            area,
            visible: area,
        });
    }

    /// Random colours that differ from what is behind.
    fn paint(&mut self, pose: &Pose, outlined: bool, is_object: bool) -> Paint {
        let behind = self.canvas.mean_around(pose.centre, pose.radius);
        let random = &mut self.random;
        let contrast = random.uniform(35.0, 110.0) as f32;
        let mut first = colour(random);
        for _ in 0..12 {
            if difference(first, behind) >= contrast {
                break;
            }
            first = colour(random);
        }
        let mut second = colour(random);
        for _ in 0..12 {
            if difference(second, behind) >= 35.0 {
                break;
            }
            second = colour(random);
        }
        // Near enough to the first that the figure remains one thing.
        second = mixed(first, second, random.uniform(0.3, 0.8) as f32);
        let d = direction(random);
        let pattern = if pose.radius < 7.0 {
            Pattern::Flat
        } else {
            match random.index(7) {
                0 | 1 => Pattern::Flat,
                2 => Pattern::Gradient(d),
                3 => Pattern::Shaded(self.light),
                4 => Pattern::Stripes(d, random.uniform(5.0, 16.0)),
                5 => Pattern::Checks(random.uniform(4.0, 12.0)),
                _ => Pattern::Mottled,
            }
        };
        Paint {
            colours: [first, second],
            pattern,
            outline: outlined.then(|| colour(random)),
            opacity: if is_object {
                random.uniform(0.8, 1.0)
            } else {
                random.uniform(0.4, 1.0)
            } as f32,
        }
    }

    /// Light, lens and sensor.
    fn finish(mut self) -> Scene {
        let (width, height) = (self.canvas.width, self.canvas.height);
        let random = &mut self.random;
        let d = direction(random);
        let level = random.uniform(0.75, 1.15);
        let slope = random.uniform(0.0, 0.45);
        let vignette = random.uniform(0.0, 0.35);
        let grey = random.coin(0.05);
        let diagonal = (width * width + height * height) as f64;
        for (i, pixel) in self.canvas.pixels.iter_mut().enumerate() {
            let x = (i % width) as f64 - width as f64 / 2.0;
            let y = (i / width) as f64 - height as f64 / 2.0;
            let along = (x * d[0] + y * d[1]) * 2.0 / (width + height) as f64;
            let away = (x * x + y * y) * 4.0 / diagonal;
            let light = (level * (1.0 + slope * along) * (1.0 - vignette * away)) as f32;
            *pixel = pixel.map(|c| c * light);
            if grey {
                *pixel = [0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]; 3];
            }
        }
        if random.coin(0.3) {
            self.canvas.blur();
            if random.coin(0.3) {
                self.canvas.blur();
            }
        }
        let deviation = random.uniform(0.0, 9.0) as f32;
        let quality = 78 + random.index(15) as u8;
        let pixels = self.canvas.to_rgb(deviation, random);
        let objects = self
            .layers
            .iter()
            .filter(|layer| layer.visible as f64 >= (1.0 - MAX_HIDDEN) * layer.area as f64)
            .filter_map(|layer| {
                layer.class.map(|class| Object {
                    class,
                    bounds: layer.bounds,
                    area: layer.area,
                })
            })
            .collect();
        Scene {
            width,
            height,
            pixels,
            objects,
            quality,
        }
    }
}

/// Diameter in pixels, from 8 to three quarters of the shorter side; each doubling has its weight.
fn diameter<R: Draws + ?Sized>(random: &mut R, shorter: f64) -> f64 {
    let u = random.unit();
    let octave = [0.14, 0.38, 0.66, 0.88]
        .iter()
        .filter(|&&bound| u >= bound)
        .count();
    let low = 8.0 * f64::from(1u32 << octave);
    random.uniform(low, 2.0 * low).min(0.75 * shorter)
}

fn direction<R: Draws + ?Sized>(random: &mut R) -> [f64; 2] {
    let (sin, cos) = sin_cos(random.uniform(0.0, 2.0 * PI));
    [cos, sin]
}

fn colour<R: Draws + ?Sized>(random: &mut R) -> Colour {
    std::array::from_fn(|_| random.uniform(10.0, 245.0) as f32)
}

fn difference(a: Colour, b: Colour) -> f32 {
    (0..3).map(|c| (a[c] - b[c]).abs()).fold(0.0, f32::max)
}

/// A gradient of two muted colours with smooth noise, sometimes a pattern.
fn background(width: usize, height: usize, random: &mut Pcg64) -> Canvas {
    let muted = |random: &mut Pcg64| {
        let grey = [random.uniform(40.0, 215.0) as f32; 3];
        mixed(grey, colour(random), random.uniform(0.1, 0.6) as f32)
    };
    let (first, second, third) = (muted(random), muted(random), muted(random));
    let (d, e) = (direction(random), direction(random));
    let cell = [96, 64, 32, 16][random.index(4)];
    let rough = random.uniform(0.35, 0.75) as f32;
    let field = noise::octaves(width, height, cell, rough, random);
    let amplitude = random.uniform(8.0, 45.0) as f32;
    let kind = random.index(6);
    let period = random.uniform(10.0, 60.0);
    let strength = random.uniform(0.15, 0.7) as f32;
    let span = (width + height) as f64 / 2.0;
    let pixels = (0..width * height)
        .map(|i| {
            let (x, y) = ((i % width) as f64, (i / width) as f64);
            let along = |d: [f64; 2]| x * d[0] + y * d[1];
            let share = (along(d) / span + 0.5).clamp(0.0, 1.0) as f32;
            let n = field[i];
            let pattern = match kind {
                // Stripes, bent by the noise.
                0 => wave((along(e) + f64::from(n) * 6.0) / period) as f32,
                // Tiles with joints.
                1 => {
                    let f = along(e) / period;
                    let g = along([-e[1], e[0]]) / period;
                    let joint = |v: f64| (v - v.floor()) < 2.0 / period;
                    f32::from(u8::from(joint(f) || joint(g)))
                }
                // Patches.
                2 => (n * 4.0 + 0.5).clamp(0.0, 1.0),
                // Veins.
                3 => (1.0 - n.abs() * 8.0).clamp(0.0, 1.0),
                _ => 0.0,
            };
            let base = mixed(mixed(first, second, share), third, pattern * strength);
            base.map(|c| c + n * amplitude)
        })
        .collect();
    Canvas {
        width,
        height,
        pixels,
    }
}

#[cfg(test)]
#[path = "scene_tests.rs"]
mod tests;
