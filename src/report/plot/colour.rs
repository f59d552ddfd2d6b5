//! Colours that people with any colour vision tell apart.

use super::svg::Stroke;

pub const TEXT: &str = "#222222";
pub const FAINT: &str = "#767676";
pub const GRID: &str = "#e3e3e3";
pub const AXIS: &str = "#555555";
pub const BLACK: &str = "#000000";
pub const BLUE: &str = "#0072b2";
pub const VERMILLION: &str = "#d55e00";
pub const GREEN: &str = "#009e73";
pub const PURPLE: &str = "#cc79a7";
pub const SKY: &str = "#56b4e9";
pub const ORANGE: &str = "#e69f00";

/// The palette of Okabe and Ito without its yellow, which is too pale for lines on white, and without black, which is
/// kept for means.
pub const LINES: [&str; 6] = [BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE];

const DASHES: [&str; 4] = ["", "7 3", "2 2", "8 3 2 3"];

/// Lines that differ: colours first, then dashes; 24 before they repeat.
#[must_use]
pub fn nth_line(n: usize, width: f64) -> Stroke {
    Stroke {
        colour: LINES[n % LINES.len()],
        width,
        dash: DASHES[n / LINES.len() % DASHES.len()],
        opacity: 1.0,
    }
}

/// White at 0 to dark blue at 1, one hue, lightness falling evenly: `[red, green, blue]`.
///
/// A straight line of lightness in OKLab (Björn Ottosson, "A perceptual color space for image processing", 2020).
#[must_use]
pub fn heat(share: f64) -> [u8; 3] {
    let t = if share.is_finite() {
        share.clamp(0.0, 1.0)
    } else {
        0.0
    };
    let lightness = 1.0 - 0.7 * t;
    // Colourful in the middle, where the screen has most of this hue.
    let chroma = 0.13 * (t * (2.0 - t)).powf(1.1);
    let hue = 252.0_f64.to_radians();
    oklab_to_srgb(lightness, chroma * hue.cos(), chroma * hue.sin())
}

/// As SVG writes a colour.
#[must_use]
pub fn hex([r, g, b]: [u8; 3]) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// The colour of text that is read on [`heat`] of this share.
#[must_use]
pub fn on_heat(share: f64) -> &'static str {
    if share > 0.575 { "#ffffff" } else { TEXT }
}

fn oklab_to_srgb(l: f64, a: f64, b: f64) -> [u8; 3] {
    let cube = |v: f64| v * v * v;
    let long = cube(l + 0.396_337_777_4 * a + 0.215_803_757_3 * b);
    let middle = cube(l - 0.105_561_345_8 * a - 0.063_854_172_8 * b);
    let short = cube(l - 0.089_484_177_5 * a - 1.291_485_548_0 * b);
    [
        4.076_741_662_1 * long - 3.307_711_591_3 * middle + 0.230_969_929_2 * short,
        -1.268_438_004_6 * long + 2.609_757_401_1 * middle - 0.341_319_396_5 * short,
        -0.004_196_086_3 * long - 0.703_418_614_7 * middle + 1.707_614_701_0 * short,
    ]
    .map(|linear| {
        let v = if linear <= 0.003_130_8 {
            12.92 * linear
        } else {
            1.055 * linear.powf(1.0 / 2.4) - 0.055
        };
        (v.clamp(0.0, 1.0) * 255.0).round() as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance (WCAG 2).
    fn luminance(rgb: [u8; 3]) -> f64 {
        let [r, g, b] = rgb.map(|v| {
            let v = f64::from(v) / 255.0;
            if v <= 0.040_45 {
                v / 12.92
            } else {
                ((v + 0.055) / 1.055).powf(2.4)
            }
        });
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    #[test]
    fn heat_falls_from_white_in_even_steps_of_one_hue() {
        assert_eq!(heat(0.0), [255; 3]);
        assert_eq!(heat(-1.0), heat(0.0));
        assert_eq!(heat(7.0), heat(1.0));
        assert_eq!(heat(f64::NAN), heat(0.0));
        let cube_roots: Vec<f64> = (0..=20)
            .map(|i| luminance(heat(f64::from(i) / 20.0)).cbrt())
            .collect();
        for pair in cube_roots.windows(2) {
            let step = pair[0] - pair[1];
            assert!((0.015..0.065).contains(&step), "{cube_roots:?}");
        }
        for i in 1..=20 {
            let [r, g, b] = heat(f64::from(i) / 20.0);
            assert!(r <= g && g < b, "blue: {r} {g} {b}");
        }
    }

    #[test]
    fn text_on_every_heat_has_enough_contrast() {
        for i in 0..=100 {
            let share = f64::from(i) / 100.0;
            let text = if on_heat(share) == TEXT {
                [0x22; 3]
            } else {
                [255; 3]
            };
            let (a, b) = (luminance(heat(share)), luminance(text));
            let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
            assert!(contrast >= 3.8, "{share}: {contrast}");
        }
    }

    #[test]
    fn the_first_24_lines_all_differ() {
        let lines: Vec<Stroke> = (0..24).map(|n| nth_line(n, 1.0)).collect();
        for (i, a) in lines.iter().enumerate() {
            assert!(lines[..i].iter().all(|b| a != b));
        }
        assert_eq!(nth_line(24, 1.0), lines[0]);
    }
}
