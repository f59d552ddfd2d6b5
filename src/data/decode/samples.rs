//! Samples of every type to 8-bit RGB.

use image::ColorType;

/// Packed 8-bit RGB: grey becomes three equal samples, alpha is dropped, 16-bit samples (in the machine's
/// byte order) keep their high byte. `None` for samples of another type (floating point).
pub(super) fn to_rgb(color: ColorType, samples: Vec<u8>) -> Option<Vec<u8>> {
    Some(match color {
        ColorType::Rgb8 => samples,
        ColorType::L8 => spread(&samples, 1, |p| [p[0]; 3]),
        ColorType::La8 => spread(&samples, 2, |p| [p[0]; 3]),
        ColorType::Rgba8 => spread(&samples, 4, |p| [p[0], p[1], p[2]]),
        ColorType::L16 => spread(&samples, 2, |p| [high(p, 0); 3]),
        ColorType::La16 => spread(&samples, 4, |p| [high(p, 0); 3]),
        ColorType::Rgb16 => spread(&samples, 6, |p| [high(p, 0), high(p, 1), high(p, 2)]),
        ColorType::Rgba16 => spread(&samples, 8, |p| [high(p, 0), high(p, 1), high(p, 2)]),
        _ => return None,
    })
}

/// RGB of each group of `width` samples.
pub(super) fn spread(samples: &[u8], width: usize, rgb: impl Fn(&[u8]) -> [u8; 3]) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(samples.len() / width * 3);
    for group in samples.chunks_exact(width) {
        pixels.extend_from_slice(&rgb(group));
    }
    pixels
}

fn high(samples: &[u8], index: usize) -> u8 {
    (u16::from_ne_bytes([samples[2 * index], samples[2 * index + 1]]) >> 8) as u8
}

/// Ink to light: each colour is what its ink and black let through.
pub(super) fn cmyk_to_rgb(cmyk: &[u8]) -> [u8; 3] {
    let through = |ink: u8| {
        let product = u32::from(255 - ink) * u32::from(255 - cmyk[3]);
        ((product + 127) / 255) as u8
    };
    [through(cmyk[0]), through(cmyk[1]), through(cmyk[2])]
}

/// Full-range Y, Cb, Cr to RGB (ITU-T T.871, section 7).
pub(super) fn ycbcr_to_rgb(p: &[u8]) -> [u8; 3] {
    let (y, cb, cr) = (
        f32::from(p[0]),
        f32::from(p[1]) - 128.0,
        f32::from(p[2]) - 128.0,
    );
    let clip = |value: f32| value.round().clamp(0.0, 255.0) as u8;
    [
        clip(y + 1.402 * cr),
        clip(y - 0.344_136 * cb - 0.714_136 * cr),
        clip(y + 1.772 * cb),
    ]
}
