//! Bilinear resampling of an 8-bit RGB image under a [`Homography`], in fixed point.

use super::decode::Rgb;
use super::geometry::Homography;

/// The grey of everything outside an image.
pub const FILL: u8 = 114;

/// Positions carry 32 fractional bits, so that adding a step along a row stays exact to 1e-6 pixels.
const FRACTION: u32 = 32;
/// Farther out than any image, near enough for the fixed point.
const FAR: f64 = 1e8;

/// `output(p) = source(forward^-1 p)`, bilinear between pixel centres with 8-bit weights, [`FILL`] outside the source.
/// Returns `[height, width, 3]`. The identity reproduces the source to the bit.
pub fn warp(source: &Rgb, forward: &Homography, width: usize, height: usize) -> Vec<u8> {
    let mut output = vec![FILL; width * height * 3];
    let Some(inverse) = forward.inverse() else {
        return output;
    };
    if source.width == 0 || source.height == 0 {
        return output;
    }
    let m = inverse.0;
    let affine = forward.is_affine();
    for (y, row) in output.chunks_exact_mut((width * 3).max(1)).enumerate() {
        let v = y as f64 + 0.5;
        // Source position of the centre of output pixel 0, less half a pixel: integer where a source centre is.
        let start =
            std::array::from_fn::<f64, 3, _>(|r| m[3 * r] * 0.5 + m[3 * r + 1] * v + m[3 * r + 2]);
        if affine {
            let mut x_fixed = fixed(start[0] - 0.5);
            let mut y_fixed = fixed(start[1] - 0.5);
            let (dx, dy) = (fixed(m[0]), fixed(m[3]));
            for pixel in row.chunks_exact_mut(3) {
                sample(source, x_fixed, y_fixed, pixel);
                x_fixed += dx;
                y_fixed += dy;
            }
        } else {
            for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
                let at = |r: usize| start[r] + m[3 * r] * x as f64;
                let w = at(2);
                // W is the reciprocal of the forward map's; negative means behind the viewer.
                if w > 0.0 {
                    sample(
                        source,
                        fixed(at(0) / w - 0.5),
                        fixed(at(1) / w - 0.5),
                        pixel,
                    );
                }
            }
        }
    }
    output
}

fn fixed(value: f64) -> i64 {
    (value.clamp(-FAR, FAR) * (1u64 << FRACTION) as f64).round() as i64
}

/// Bilinear sample at a fixed-point position, in which whole numbers are pixel centres.
#[inline(always)]
fn sample(source: &Rgb, x: i64, y: i64, pixel: &mut [u8]) {
    // Nearest 1/256.
    const HALF_STEP: i64 = 1 << (FRACTION - 9);
    let (x, y) = (x + HALF_STEP, y + HALF_STEP);
    let (ix, iy) = (x >> FRACTION, y >> FRACTION);
    let fx = ((x >> (FRACTION - 8)) & 0xff) as u32;
    let fy = ((y >> (FRACTION - 8)) & 0xff) as u32;
    let weights = [
        (256 - fx) * (256 - fy),
        fx * (256 - fy),
        (256 - fx) * fy,
        fx * fy,
    ];
    let stride = source.width * 3;
    let inside =
        (ix as u64) < (source.width - 1) as u64 && (iy as u64) < (source.height - 1) as u64;
    if inside {
        let offset = iy as usize * stride + ix as usize * 3;
        let top = &source.pixels[offset..offset + 6];
        let bottom = &source.pixels[offset + stride..offset + stride + 6];
        for (channel, value) in pixel.iter_mut().enumerate() {
            let sum = u32::from(top[channel]) * weights[0]
                + u32::from(top[channel + 3]) * weights[1]
                + u32::from(bottom[channel]) * weights[2]
                + u32::from(bottom[channel + 3]) * weights[3];
            *value = ((sum + (1 << 15)) >> 16) as u8;
        }
    } else if ix >= -1 && iy >= -1 && ix < source.width as i64 && iy < source.height as i64 {
        let mut sum = [1u32 << 15; 3];
        for (corner, weight) in weights.iter().enumerate() {
            let (cx, cy) = (ix + (corner & 1) as i64, iy + (corner >> 1) as i64);
            let seen = (cx as u64) < source.width as u64 && (cy as u64) < source.height as u64;
            for (channel, total) in sum.iter_mut().enumerate() {
                let value = if seen {
                    source.pixels[cy as usize * stride + cx as usize * 3 + channel]
                } else {
                    FILL
                };
                *total += u32::from(value) * weight;
            }
        }
        for (value, total) in pixel.iter_mut().zip(sum) {
            *value = (total >> 16) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::LabelBox;
    use crate::data::geometry::{AffineDraw, transform_labels};
    use crate::data::random::{Draws, Stream, rng};
    use proptest::prelude::*;
    use rand::RngCore;

    fn noise(width: usize, height: usize) -> Rgb {
        let mut random = rng(1, 0, 0, Stream::Texture);
        let pixels = (0..width * height * 3)
            .map(|_| random.next_u64() as u8)
            .collect();
        Rgb {
            width,
            height,
            pixels,
        }
    }

    /// Straight from the definition, in float64.
    fn oracle(source: &Rgb, forward: &Homography, width: usize, height: usize) -> Vec<f64> {
        let inverse = forward.inverse().expect("invertible");
        let at = |x: i64, y: i64, c: usize| {
            let seen =
                (0..source.width as i64).contains(&x) && (0..source.height as i64).contains(&y);
            if seen {
                f64::from(source.pixels[(y as usize * source.width + x as usize) * 3 + c])
            } else {
                f64::from(FILL)
            }
        };
        let mut output = Vec::new();
        for y in 0..height {
            for x in 0..width {
                let m = inverse.0;
                let (u, v) = (x as f64 + 0.5, y as f64 + 0.5);
                let w = m[6] * u + m[7] * v + m[8];
                let sx = (m[0] * u + m[1] * v + m[2]) / w - 0.5;
                let sy = (m[3] * u + m[4] * v + m[5]) / w - 0.5;
                let (fx, fy) = (sx - sx.floor(), sy - sy.floor());
                let (ix, iy) = (sx.floor() as i64, sy.floor() as i64);
                for c in 0..3 {
                    output.push(
                        at(ix, iy, c) * (1.0 - fx) * (1.0 - fy)
                            + at(ix + 1, iy, c) * fx * (1.0 - fy)
                            + at(ix, iy + 1, c) * (1.0 - fx) * fy
                            + at(ix + 1, iy + 1, c) * fx * fy,
                    );
                }
            }
        }
        output
    }

    #[test]
    fn the_identity_reproduces_the_image() {
        let source = noise(37, 23);
        assert_eq!(warp(&source, &Homography::IDENTITY, 37, 23), source.pixels);
    }

    #[test]
    fn a_whole_shift_moves_pixels_and_fills_with_grey() {
        let source = noise(8, 6);
        let out = warp(&source, &Homography::translation(2.0, 1.0), 8, 6);
        assert!(out[..8 * 3].iter().all(|&v| v == FILL));
        assert_eq!(&out[(8 + 2) * 3..(8 + 8) * 3], &source.pixels[..6 * 3]);
    }

    #[test]
    fn a_warp_follows_its_definition() {
        let source = noise(40, 30);
        let mut random = rng(2, 0, 0, Stream::Affine);
        for case in 0..30 {
            let bend = if case % 2 == 0 { 0.0 } else { 0.004 };
            let draw = AffineDraw {
                degrees: random.uniform(-180.0, 180.0),
                scale: random.uniform(0.5, 1.5),
                shear: [random.uniform(-10.0, 10.0), random.uniform(-10.0, 10.0)],
                centre: [random.uniform(0.4, 0.6), random.uniform(0.4, 0.6)],
                perspective: [random.uniform(-bend, bend), random.uniform(-bend, bend)],
            };
            let map = draw.matrix(40.0, 32.0);
            let got = warp(&source, &map, 32, 32);
            // 1/512 pixel of rounding per axis times the largest difference of neighbours, plus rounding.
            for (g, want) in got.iter().zip(oracle(&source, &map, 32, 32)) {
                assert!((f64::from(*g) - want).abs() < 1.8, "{g} {want}");
            }
        }
    }

    /// Bounding box of the pixels that are nearer to white than to black.
    fn bright_bounds(pixels: &[u8], width: usize) -> Option<[usize; 4]> {
        let mut bounds: Option<[usize; 4]> = None;
        for (i, pixel) in pixels.chunks_exact(3).enumerate() {
            if pixel[0] >= 128 {
                let (x, y) = (i % width, i / width);
                let [a, b, c, d] = bounds.unwrap_or([x, y, x, y]);
                bounds = Some([a.min(x), b.min(y), c.max(x + 1), d.max(y + 1)]);
            }
        }
        bounds
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_transformed_box_is_the_bounding_box_of_its_rendered_pixels(
            // Right angles keep the corners of a rectangle filled; any other angle rounds them off by less.
            quarter in 0u32..4, scale in 0.6..1.4f64, centre in [0.3..0.7f64, 0.3..0.7f64],
            tilt in -8.0..8.0f64, shear in -8.0..8.0f64, bend in -0.0008..0.0008f64,
            x in 10usize..70, y in 10usize..70, w in 16usize..50, h in 16usize..50,
        ) {
            let mut source = Rgb { width: 128, height: 128, pixels: vec![0; 128 * 128 * 3] };
            for row in y..y + h {
                source.pixels[(row * 128 + x) * 3..(row * 128 + x + w) * 3].fill(255);
            }
            let draw = AffineDraw {
                degrees: f64::from(quarter) * 90.0 + tilt, scale, shear: [shear, 0.0], centre, perspective: [bend, -bend],
            };
            let map = draw.matrix(128.0, 96.0);
            let label = LabelBox { class: 0, xyxy: [x as f32, y as f32, (x + w) as f32, (y + h) as f32] };
            let boxes = transform_labels(&[label], &map, scale, 96.0);
            let pixels = warp(&source, &map, 96, 96);
            if let (Some(kept), Some(seen)) = (boxes.first(), bright_bounds(&pixels, 96)) {
                let clear = kept.xyxy.iter().all(|&v| v > 2.0 && v < 94.0);
                for (a, b) in kept.xyxy.iter().zip(seen) {
                    // A corner that the frame cuts off may lie where the rectangle does not reach.
                    if clear { prop_assert!((a - b as f32).abs() <= 1.5, "{:?} {:?}", kept, seen); }
                }
            }
        }
    }
}
