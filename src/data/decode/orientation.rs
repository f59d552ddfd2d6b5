//! EXIF orientation.

use super::Rgb;

/// Applies an EXIF orientation to packed RGB pixels.
pub(super) fn turn_upright(width: usize, height: usize, pixels: Vec<u8>, orientation: u8) -> Rgb {
    if orientation <= 1 {
        return Rgb {
            width,
            height,
            pixels,
        };
    }
    let (out_width, out_height) = if orientation >= 5 {
        (height, width)
    } else {
        (width, height)
    };
    let (right, bottom) = (width - 1, height - 1);
    let mut turned = Vec::with_capacity(pixels.len());
    for y in 0..out_height {
        for x in 0..out_width {
            // Where the upright pixel (x, y) is stored; EXIF 2.3, tag 0x0112.
            let (from_x, from_y) = match orientation {
                2 => (right - x, y),
                3 => (right - x, bottom - y),
                4 => (x, bottom - y),
                5 => (y, x),
                6 => (y, bottom - x),
                7 => (right - y, bottom - x),
                _ => (right - y, x),
            };
            let from = (from_y * width + from_x) * 3;
            turned.extend_from_slice(&pixels[from..from + 3]);
        }
    }
    Rgb {
        width: out_width,
        height: out_height,
        pixels: turned,
    }
}
