//! Random hue, saturation and value.

/// Pixels of a block; the arithmetic on a block has no branches, so that the compiler can use vector instructions.
const BLOCK: usize = 64;

/// Changes colours in place: the hue by `hue` of the full circle (so a gain of `hsv_h` is `hsv_h * 180` in the 0..180 hue
/// of OpenCV), saturation and value by factors, clipped at their maximum. `pixels` is `[n, 3]` RGB.
///
/// The conversion is the hexagonal one (Smith 1978), in float32, without intermediate rounding.
pub fn shift(pixels: &mut [u8], hue: f64, saturation: f64, value: f64) {
    // Sectors of 60 degrees in [0, 6).
    let hue = (hue.rem_euclid(1.0) * 6.0) as f32;
    let (saturation, value) = (saturation.max(0.0) as f32, value.max(0.0) as f32);
    for block in pixels.chunks_mut(BLOCK * 3) {
        let mut rgb = [[0f32; BLOCK]; 3];
        for (i, pixel) in block.chunks_exact(3).enumerate() {
            for (channel, &byte) in rgb.iter_mut().zip(pixel) {
                channel[i] = f32::from(byte);
            }
        }
        let mut out = [[0u8; BLOCK]; 3];
        for i in 0..BLOCK {
            let (r, g, b) = (rgb[0][i], rgb[1][i], rgb[2][i]);
            let max = maximum(maximum(r, g), b);
            let chroma = max - minimum(minimum(r, g), b);
            // Of greys neither matters; the denominators only have to be harmless.
            let reciprocal = 1.0 / maximum(chroma, 1.0);
            let red_sector = (g - b) * reciprocal;
            let green_sector = (b - r) * reciprocal + 2.0;
            let blue_sector = (r - g) * reciprocal + 4.0;
            let sector = if max == r {
                red_sector
            } else if max == g {
                green_sector
            } else {
                blue_sector
            };
            let sector = sector + hue;
            let new_value = minimum(max * value, 255.0);
            let new_chroma = new_value * minimum(chroma / maximum(max, 1.0) * saturation, 1.0);
            for (channel, offset) in [5.0f32, 3.0, 1.0].into_iter().enumerate() {
                // In [0, 12): the sector is in [-1, 11).
                let k = sector + offset;
                let k = if k >= 12.0 { k - 12.0 } else { k };
                let k = if k >= 6.0 { k - 6.0 } else { k };
                let part = maximum(minimum(minimum(k, 4.0 - k), 1.0), 0.0);
                let x = new_value - new_chroma * part;
                // Rounds to the nearest whole number in the low bits of the mantissa.
                out[channel][i] = (x + 8_388_608.0).to_bits() as u8;
            }
        }
        for (i, pixel) in block.chunks_exact_mut(3).enumerate() {
            for (channel, byte) in out.iter().zip(pixel) {
                *byte = channel[i];
            }
        }
    }
}

/// Plain comparisons: `f32::min` and `max` take extra instructions for NaN, which cannot occur here.
fn minimum(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

fn maximum(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The textbook conversion in float64, by cases.
    fn oracle(rgb: [u8; 3], hue: f64, saturation: f64, value: f64) -> [f64; 3] {
        let [r, g, b] = rgb.map(|v| f64::from(v) / 255.0);
        let (max, min) = (r.max(g).max(b), r.min(g).min(b));
        let c = max - min;
        let h = if c == 0.0 {
            0.0
        } else if max == r {
            60.0 * ((g - b) / c)
        } else if max == g {
            60.0 * ((b - r) / c) + 120.0
        } else {
            60.0 * ((r - g) / c) + 240.0
        };
        let h = (h + hue * 360.0).rem_euclid(360.0);
        let s = if max == 0.0 {
            0.0
        } else {
            (c / max * saturation).min(1.0)
        };
        let v = (max * value).min(1.0);
        let c = v * s;
        let x = c * (1.0 - ((h / 60.0) % 2.0 - 1.0).abs());
        let (r, g, b) = match (h / 60.0) as u32 {
            0 => (c, x, 0.0),
            1 => (x, c, 0.0),
            2 => (0.0, c, x),
            3 => (0.0, x, c),
            4 => (x, 0.0, c),
            _ => (c, 0.0, x),
        };
        [r, g, b].map(|p| (p + v - c) * 255.0)
    }

    #[test]
    fn a_shift_follows_the_textbook() {
        for (hue, saturation, value) in [
            (0.0, 1.0, 1.0),
            (0.015, 1.7, 1.4),
            (-0.015, 0.3, 0.6),
            (0.4, 0.9, 1.1),
            (-0.9, 1.0, 2.0),
        ] {
            let mut pixels = Vec::new();
            for r in (0..=255).step_by(15) {
                for g in (0..=255).step_by(17) {
                    for b in (0..=255).step_by(51) {
                        pixels.extend_from_slice(&[r as u8, g as u8, b as u8]);
                    }
                }
            }
            let before = pixels.clone();
            shift(&mut pixels, hue, saturation, value);
            for (new, old) in pixels.chunks_exact(3).zip(before.chunks_exact(3)) {
                let want = oracle([old[0], old[1], old[2]], hue, saturation, value);
                for (n, w) in new.iter().zip(want) {
                    assert!(
                        (f64::from(*n) - w).abs() < 0.51,
                        "{old:?} -> {new:?}, {want:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn no_shift_changes_nothing() {
        let mut pixels: Vec<u8> = (0..3 * 5000u32).map(|i| (i * 7919 % 256) as u8).collect();
        let before = pixels.clone();
        shift(&mut pixels, 0.0, 1.0, 1.0);
        assert_eq!(pixels, before);
    }
}
