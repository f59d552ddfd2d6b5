//! Bilinear resizing of pixels, as a network's input is scaled between batches.

/// Pixels `[n, h, w, c]` of 0..=255 as values of 0..1 of `to` (rows, columns): half-pixel centres, edges repeated, no
/// antialiasing, as PyTorch's `interpolate(mode="bilinear", align_corners=False)`.
#[must_use]
pub fn bilinear(pixels: &[u8], [n, h, w, c]: [usize; 4], to: [usize; 2]) -> Vec<f32> {
    let source = |i: usize, ratio: f32, size: usize| {
        let at = (i as f32 + 0.5).mul_add(ratio, -0.5).max(0.0);
        let first = (at as usize).min(size - 1);
        (first, (first + 1).min(size - 1), at - first as f32)
    };
    let (ratio_y, ratio_x) = (h as f32 / to[0] as f32, w as f32 / to[1] as f32);
    let mut out = Vec::with_capacity(n * to[0] * to[1] * c);
    let value =
        |row: usize, x: usize, c_at: usize| f32::from(pixels[(row * w + x) * c + c_at]) / 255.0;
    let mix = |a: f32, b: f32, t: f32| (b - a).mul_add(t, a);
    for image in 0..n {
        for i in 0..to[0] {
            let (y, below, ty) = source(i, ratio_y, h);
            for j in 0..to[1] {
                let (x, behind, tx) = source(j, ratio_x, w);
                for k in 0..c {
                    let row = |y: usize| {
                        let row = image * h + y;
                        mix(value(row, x, k), value(row, behind, k), tx)
                    };
                    out.push(mix(row(y), row(below), ty));
                }
            }
        }
    }
    out
}
