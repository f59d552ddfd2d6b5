//! Sums over lanes on a device.

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use std::ops::Range;

use super::flat;
use crate::ops::cpu::lanes::half;

/// `sum += x`, and `x` becomes 0.
#[cube(launch)]
fn take_into(sum: &mut Tensor<f32>, x: &mut Tensor<f32>) {
    if ABSOLUTE_POS < sum.len() {
        sum[ABSOLUTE_POS] += x[ABSOLUTE_POS];
        x[ABSOLUTE_POS] = 0.0f32;
    }
}

/// Pairs of rows that are added, in an order in which the lanes' tree is formed.
fn pairs(range: Range<usize>, out: &mut Vec<(usize, usize)>) {
    if range.len() < 2 {
        return;
    }
    let middle = half(&range);
    pairs(range.start..middle, out);
    pairs(middle..range.end, out);
    out.push((range.start, middle));
}

/// Sums the rows of `[lanes, len]` in the lanes' tree (`ops::cpu::lanes::tree`): the first row becomes the sum, the others
/// become 0.
pub fn tree_sum(rows: &CubeTensor) {
    let shape = rows.shape();
    let (lanes, len) = (shape[0], shape[1]);
    if len == 0 {
        return;
    }
    let mut order = vec![];
    pairs(0..lanes, &mut order);
    for (to, from) in order {
        let [sum, x] = [to, from].map(|row| flat::view(rows, row * len, [len]));
        let dim = CubeDim::new(&rows.client, len);
        let count = calculate_cube_count_elemwise(&rows.client, len, dim);
        take_into::launch(
            &rows.client,
            count,
            dim,
            sum.into_tensor_arg(),
            x.into_tensor_arg(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::lanes::tree_sum as on_host;
    use crate::ops::gpu::testing::gpu;
    use burn::tensor::DType;

    #[test]
    fn the_tree_is_that_of_the_host() {
        let Some(device) = gpu() else { return };
        for lanes in 1..8 {
            let len = 300;
            let values: Vec<f32> = (0..lanes * len)
                .map(|i| ((i * 7919 % 1013) as f32).sqrt() - 13.0)
                .collect();
            let parts: Vec<Option<&[f32]>> = values.chunks_exact(len).map(Some).collect();
            let mut want = vec![0.0; len];
            on_host(&parts, &mut want);
            // rows begin where a binding may
            let wide = len.next_multiple_of(flat::ALIGN);
            let mut padded = vec![0.0; lanes * wide];
            for (to, from) in padded.chunks_exact_mut(wide).zip(values.chunks_exact(len)) {
                to[..len].copy_from_slice(from);
            }
            let rows = flat::upload(&device, &padded, [lanes, wide], DType::F32);
            tree_sum(&rows);
            let got: Vec<f32> = flat::download(&rows).unwrap();
            assert_eq!(got[..len], want[..], "{lanes} lanes");
            assert!(got[wide..].iter().all(|&v| v == 0.0));
        }
    }
}
