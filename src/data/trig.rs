//! Sine and cosine from additions and multiplications alone.
//!
//! The system's mathematical library differs in the last bit between platforms; drawn images and augmentation
//! must not.

use std::f64::consts::{FRAC_PI_2, PI};

/// (sin, cos) of an angle in radians, |angle| up to a few thousand, within 1e-14.
pub fn sin_cos(radians: f64) -> (f64, f64) {
    let quarter = (radians / FRAC_PI_2).round();
    let x = radians - quarter * FRAC_PI_2;
    let square = x * x;
    // Taylor series on [-pi/4, pi/4]; the first term left out is below 1e-16.
    let mut sin = 1.0;
    let mut cos = 1.0;
    for k in (1..=8).rev() {
        let k = f64::from(k);
        sin = 1.0 - sin * square / ((2.0 * k) * (2.0 * k + 1.0));
        cos = 1.0 - cos * square / ((2.0 * k - 1.0) * (2.0 * k));
    }
    let sin = x * sin;
    match (quarter as i64).rem_euclid(4) {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// (sin, cos) of an angle in degrees.
pub fn sin_cos_degrees(degrees: f64) -> (f64, f64) {
    sin_cos(degrees * (PI / 180.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sine_and_cosine_agree_with_the_library() {
        for i in -4000..4000 {
            let x = f64::from(i) * 0.01037;
            let (sin, cos) = sin_cos(x);
            assert!((sin - x.sin()).abs() < 1e-14, "sin {x}");
            assert!((cos - x.cos()).abs() < 1e-14, "cos {x}");
        }
    }
}
