//! Smooth random fields.

use super::super::random::Draws;

/// Value noise: random numbers in [-1, 1] on a grid of `cell` pixels, interpolated smoothly between.
/// Adds `amplitude` times the field to `field`, which is `[height, width]`.
pub fn add<R: Draws + ?Sized>(
    field: &mut [f32],
    width: usize,
    cell: usize,
    amplitude: f32,
    random: &mut R,
) {
    let height = field.len() / width;
    let (columns, rows) = (width / cell + 2, height / cell + 2);
    let grid: Vec<f32> = (0..columns * rows)
        .map(|_| random.uniform(-1.0, 1.0) as f32)
        .collect();
    let smooth: Vec<f32> = (0..cell)
        .map(|i| {
            let t = i as f32 / cell as f32;
            t * t * (3.0 - 2.0 * t)
        })
        .collect();
    let mut line = vec![0f32; columns];
    for (y, row) in field.chunks_exact_mut(width).enumerate() {
        let (upper, t) = (y / cell * columns, smooth[y % cell]);
        for (x, value) in line.iter_mut().enumerate() {
            let (a, b) = (grid[upper + x], grid[upper + columns + x]);
            *value = (a + (b - a) * t) * amplitude;
        }
        for (x, values) in row.chunks_mut(cell).enumerate() {
            let (a, b) = (line[x], line[x + 1]);
            for (value, t) in values.iter_mut().zip(&smooth) {
                *value += a + (b - a) * t;
            }
        }
    }
}

/// Several octaves, each with half the cell and `decay` times the amplitude of the one before.
pub fn octaves<R: Draws + ?Sized>(
    width: usize,
    height: usize,
    cell: usize,
    decay: f32,
    random: &mut R,
) -> Vec<f32> {
    let mut field = vec![0f32; width * height];
    let (mut cell, mut amplitude) = (cell, 1.0);
    while cell >= 2 && amplitude > 0.05 {
        add(&mut field, width, cell, amplitude, random);
        cell /= 2;
        amplitude *= decay;
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::random::{Stream, rng};

    #[test]
    fn a_field_is_bounded_smooth_and_not_flat() {
        let mut random = rng(0, 0, 0, Stream::Texture);
        let mut field = vec![0f32; 61 * 47];
        add(&mut field, 61, 8, 2.0, &mut random);
        assert!(field.iter().all(|v| v.abs() <= 2.0));
        for row in field.chunks_exact(61) {
            // Steepest: amplitude times 2 times 3/2 per cell.
            assert!(row.windows(2).all(|w| (w[0] - w[1]).abs() <= 0.76));
        }
        let high = field.iter().filter(|v| **v > 0.5).count();
        assert!(high > 100 && high < 2000);
    }
}
