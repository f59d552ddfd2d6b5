//! Sums over lanes on a device.

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use std::ops::Range;

use super::flat;
use super::launch::{len, units};
use crate::ops::cpu::lanes::half;

/// `sum += x`, and `x` becomes 0.
#[cube(launch)]
fn take_into(sum: &mut Tensor<f32>, x: &mut Tensor<f32>) {
    if ABSOLUTE_POS < sum.len() {
        sum[ABSOLUTE_POS] += x[ABSOLUTE_POS];
        x[ABSOLUTE_POS] = 0.0f32;
    }
}

#[cube(launch)]
fn clear_kernel(x: &mut Tensor<f32>) {
    if ABSOLUTE_POS < x.len() {
        x[ABSOLUTE_POS] = 0.0f32;
    }
}

#[cube(launch)]
fn copy_kernel(from: &Tensor<f32>, to: &mut Tensor<f32>) {
    if ABSOLUTE_POS < to.len() {
        to[ABSOLUTE_POS] = from[ABSOLUTE_POS];
    }
}

/// Writes zeros into a tensor's own memory.
pub fn clear(t: &CubeTensor) {
    if t.meta.num_elements() > 0 {
        let (count, dim) = units(len(t));
        clear_kernel::launch(&t.client, count, dim, t.clone().into_tensor_arg());
    }
}

/// Writes `from` into the memory of `to`, which is as long.
pub fn copy_into(to: &CubeTensor, from: &CubeTensor) {
    if to.meta.num_elements() > 0 {
        let (count, dim) = units(len(to));
        let (from, into) = (from.clone().into_tensor_arg(), to.clone().into_tensor_arg());
        copy_kernel::launch(&to.client, count, dim, from, into);
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
    tree_sum_of(rows, 0..shape[0], 0..shape[1]);
}

/// As [`tree_sum`], of some rows and of some elements of each: the first of these rows gets the sum.
pub fn tree_sum_of(rows: &CubeTensor, which: Range<usize>, elements: Range<usize>) {
    if elements.is_empty() {
        return;
    }
    let width = rows.shape()[1];
    let mut order = vec![];
    pairs(which, &mut order);
    for (to, from) in order {
        let at = |row: usize| flat::view(rows, row * width + elements.start, [elements.len()]);
        let (sum, x) = (at(to), at(from));
        let (count, dim) = units(len(&sum));
        let (sum, x) = (sum.into_tensor_arg(), x.into_tensor_arg());
        take_into::launch(&rows.client, count, dim, sum, x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::lanes::tree_sum as on_host;
    use crate::ops::gpu::testing::cube_device;
    use burn::tensor::DType;

    #[test]
    fn the_tree_is_that_of_the_host() {
        let Some(device) = cube_device() else { return };
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
