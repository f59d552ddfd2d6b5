//! Running statistics of several ranks where every rank normalises by its own images: they move towards the statistics of
//! all of them.

use super::flat;
use super::launch::{arg, units};
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Where a norm's statistics lie in the flat array, and how many elements of a channel an image has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormPlace {
    pub mean: usize,
    pub var: usize,
    pub channels: usize,
    pub rows: u32,
}

/// The places of all channels on a device: made once for a size of images.
pub struct Channels {
    table: CubeTensor,
    count: usize,
}

impl Channels {
    /// Of these norms.
    #[must_use]
    pub fn new(norms: &[NormPlace], device: &CubeDevice) -> Self {
        let channels = |n: &NormPlace| {
            let NormPlace {
                mean, var, rows, ..
            } = *n;
            (0..n.channels).flat_map(move |c| [(mean + c) as u32, (var + c) as u32, rows])
        };
        let table: Vec<u32> = norms.iter().flat_map(channels).collect();
        let count = table.len() / 3;
        let table = if count == 0 { vec![0; 3] } else { table };
        Self {
            table: flat::upload_u32(device, &table),
            count,
        }
    }
}

/// A unit for each channel. The differences are to the first rank that has images, so that equal statistics stay as they are.
#[cube(launch_unchecked)]
fn merge_kernel(
    all: &[f32],
    ranks: &[u32],
    table: &[u32],
    running: &mut [f32],
    count: usize,
    size: usize,
    len: usize,
    momentum: f32,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let mean_at = table[3 * ABSOLUTE_POS] as usize;
    let var_at = table[3 * ABSOLUTE_POS + 1] as usize;
    let rows = table[3 * ABSOLUTE_POS + 2];
    let one = f32::new(1.0f32);
    let mut n = f32::new(0.0f32);
    let mut mean = f32::new(0.0f32);
    let mut square = f32::new(0.0f32);
    for r in 0..size {
        let images = ranks[2 * r];
        if images > 0 {
            let row = ranks[2 * r + 1] as usize * len;
            let more = f32::cast_from(images * rows);
            let d = all[row + mean_at] - mean;
            // Chan et al. 1983
            let total = n + more;
            square += all[row + var_at] * max(more - one, one) + d * d * n * more / total;
            mean += d * more / total;
            n = total;
        }
    }
    if n > f32::new(0.0f32) {
        let keep = one - momentum;
        running[mean_at] = fma(keep, running[mean_at], momentum * mean);
        let unbiased = square / max(n - one, one);
        running[var_at] = fma(keep, running[var_at], momentum * unbiased);
    }
}

/// `running = (1 - momentum) running + momentum batch`, of the channels in `channels`. `all` `[rows, len]` has statistics of
/// batches, the variance unbiased, in the order of `running` `[len]`; `ranks` says of each rank how many images they are of
/// and in which row they are.
pub fn merge(
    all: &CubeTensor,
    ranks: &[(usize, usize)],
    channels: &Channels,
    running: &CubeTensor,
    momentum: f64,
) {
    if channels.count == 0 {
        return;
    }
    let device = &running.device;
    let table: Vec<u32> = ranks
        .iter()
        .flat_map(|&(images, row)| [images as u32, row as u32])
        .collect();
    let table = flat::upload_u32(device, &table);
    let (count, dim) = units(channels.count);
    // SAFETY: places are those of the flat array, rows those of `all`.
    unsafe {
        merge_kernel::launch_unchecked(
            &running.client,
            count,
            dim,
            arg(all, 1),
            arg(&table, 1),
            arg(&channels.table, 1),
            arg(running, 1),
            channels.count,
            ranks.len(),
            running.meta.num_elements(),
            momentum as f32,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gpu::testing::cube_device;
    use burn::tensor::DType;

    #[test]
    fn statistics_of_ranks_are_merged_to_those_of_all_their_images() {
        let Some(device) = cube_device() else { return };
        // two channels of 2 elements an image; ranks of 3, 0 and 1 images
        let values: [[&[f32]; 3]; 2] = [
            [&[1.0, 4.0, 2.5, -3.0, 0.5, 7.0], &[], &[10.0, -2.0]],
            [
                &[100.0, 101.0, 99.0, 100.5, 98.0, 102.0],
                &[],
                &[90.0, 95.0],
            ],
        ];
        let moments = |v: &[f32]| {
            let n = v.len() as f32;
            let mean = v.iter().sum::<f32>() / n;
            let square: f32 = v.iter().map(|x| (x - mean).powi(2)).sum();
            [mean, square / (n - 1.0)]
        };
        // a row for each rank: two means, two variances
        let mut all = vec![];
        for rank in 0..3 {
            let of = |c: usize| match values[c][rank].is_empty() {
                true => [f32::NAN; 2],
                false => moments(values[c][rank]),
            };
            let (a, b) = (of(0), of(1));
            all.extend([a[0], b[0], a[1], b[1]]);
        }
        let all = flat::upload(&device, &all, [3, 4], DType::F32);
        let before = [1.0f32, 2.0, 3.0, 4.0];
        let running = flat::upload_f32(&device, &before);
        let norm = NormPlace {
            mean: 0,
            var: 2,
            channels: 2,
            rows: 2,
        };
        let channels = Channels::new(&[norm], &device);
        merge(&all, &[(3, 0), (0, 1), (1, 2)], &channels, &running, 0.25);
        let got: Vec<f32> = flat::download(&running).unwrap();
        for c in 0..2 {
            let [mean, var] = moments(&values[c].concat());
            let want = [
                0.75 * before[c] + 0.25 * mean,
                0.75 * before[2 + c] + 0.25 * var,
            ];
            for (g, w) in [got[c], got[2 + c]].iter().zip(want) {
                assert!((g - w).abs() < 1e-4 * w.abs(), "{got:?}: {w}");
            }
        }
    }
}
