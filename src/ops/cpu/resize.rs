//! Bilinear resizing of pixels, as a network's input is scaled between batches.

use rayon::prelude::*;

/// Of each output index the first source index, the one behind it, and the weight of that one.
fn table(size: usize, to: usize) -> Vec<(usize, usize, f32)> {
    let ratio = size as f32 / to as f32;
    (0..to)
        .map(|i| {
            let at = ((i as f32 + 0.5) * ratio - 0.5).max(0.0);
            let first = (at as usize).min(size - 1);
            (first, (first + 1).min(size - 1), at - first as f32)
        })
        .collect()
}

/// Pixels `[n, h, w, c]` of 0..=255 as values of 0..1 of `to` (rows, columns): half-pixel centres, edges repeated, no
/// antialiasing, as PyTorch's `interpolate(mode="bilinear", align_corners=False)`.
#[must_use]
pub fn bilinear(pixels: &[u8], [n, h, w, c]: [usize; 4], to: [usize; 2]) -> Vec<f32> {
    let row = to[1] * c;
    let mut out = vec![0.0; n * to[0] * row];
    if out.is_empty() {
        return out;
    }
    let (rows, columns) = (table(h, to[0]), table(w, to[1]));
    out.par_chunks_mut(row).enumerate().for_each(|(i, out)| {
        let (y, below, ty) = rows[i % to[0]];
        let image = &pixels[i / to[0] * h * w * c..][..h * w * c];
        let (top, bottom) = (
            &image[y * w * c..][..w * c],
            &image[below * w * c..][..w * c],
        );
        for (out, &(x, behind, tx)) in out.chunks_exact_mut(c).zip(&columns) {
            for (k, out) in out.iter_mut().enumerate() {
                let mix = |a: f32, b: f32, t: f32| a + (b - a) * t;
                let across = |row: &[u8]| {
                    mix(
                        f32::from(row[x * c + k]),
                        f32::from(row[behind * c + k]),
                        tx,
                    )
                };
                *out = mix(across(top), across(bottom), ty) / 255.0;
            }
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of PyTorch 2.15: `F.interpolate(torch.arange(12.).reshape(1, 1, 3, 4) * 20 / 255, size=(4, 6),
    /// mode="bilinear", align_corners=False) * 255 / 20`.
    #[test]
    fn values_are_those_of_the_reference_op() {
        let pixels: Vec<u8> = (0..12).map(|i| i * 20).collect();
        let got = bilinear(&pixels, [1, 3, 4, 1], [4, 6]);
        let want = [
            0.0, 0.5, 1.16667, 1.83333, 2.5, 3.0, 2.5, 3.0, 3.66667, 4.33333, 5.0, 5.5, 5.5, 6.0,
            6.66667, 7.33333, 8.0, 8.5, 8.0, 8.5, 9.16667, 9.83333, 10.5, 11.0,
        ];
        assert_eq!(got.len(), want.len());
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            assert!((g * 255.0 / 20.0 - w).abs() < 1e-4, "{i}: {g} {w}");
        }
    }
}
