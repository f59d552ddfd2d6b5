//! Arrays on the device: allocation, upload, and how many cubes a launch has.

use super::flat;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_std::Metadata;
use cubecl::client::Client;
use cubecl::prelude::{CubeCount, VectorSize};

/// Most cubes of a dimension that every runtime takes.
const MOST_CUBES: u32 = 65_535;

/// Uninitialised, contiguous.
pub(crate) fn empty(device: &CubeDevice, shape: &[usize], dtype: DType) -> CubeTensor {
    flat::empty(device, Shape::from(shape.to_vec()), dtype)
}

/// `[len]` of float32.
pub(crate) fn upload_f32(device: &CubeDevice, values: &[f32]) -> CubeTensor {
    flat::upload(device, values, [values.len()], DType::F32)
}

/// `[len]` of u32.
pub(crate) fn upload_u32(device: &CubeDevice, values: &[u32]) -> CubeTensor {
    flat::upload(device, values, [values.len()], DType::U32)
}

/// Shape and strides of an array row by row.
pub(crate) fn row_major(shape: &[usize]) -> Metadata {
    let stride = |i: usize| shape[i + 1..].iter().product::<usize>();
    let strides: Vec<usize> = (0..shape.len()).map(stride).collect();
    Metadata::new(Shape::from(shape.to_vec()), strides.as_slice())
}

/// The same values, row by row.
pub(crate) fn rows(t: CubeTensor) -> CubeTensor {
    into_contiguous(t)
}

/// `n` cubes, which kernels count by `CUBE_POS`; those from `n` on have nothing to do.
pub(crate) fn cubes(n: usize) -> CubeCount {
    let n = u32::try_from(n).unwrap_or(u32::MAX).max(1);
    let y = n.div_ceil(MOST_CUBES);
    CubeCount::Static(n.div_ceil(y), y, 1)
}

/// The most elements that the device reads at once of a type of `size` bytes, which divide `len`.
pub(crate) fn vector_size(client: &Client, size: usize, len: usize) -> VectorSize {
    client
        .io_optimized_vector_sizes(size)
        .filter(|v| len.is_multiple_of(*v))
        .max()
        .unwrap_or(1)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub(crate) use super::super::testing::cube_device as device;

    /// `values` as `dtype`, of this shape.
    pub(crate) fn tensor(
        device: &CubeDevice,
        values: &[f32],
        shape: &[usize],
        dtype: DType,
    ) -> CubeTensor {
        let mut t = upload_f32(device, values);
        *t.meta = row_major(shape);
        burn_cubecl::kernel::cast(t, dtype)
    }

    /// The values of a contiguous tensor as float32.
    pub(crate) fn read(t: &CubeTensor) -> Vec<f32> {
        let n = t.meta.shape().iter().product();
        // what the tensor library makes may have gaps between rows
        let t = rows(burn_cubecl::kernel::cast(t.clone(), DType::F32));
        let bytes = t.client.read_one(t.handle).expect("the device answers");
        bytemuck::pod_collect_to_vec::<u8, f32>(&bytes)[..n].to_vec()
    }

    /// As [`read`], of u32.
    pub(crate) fn read_u32(t: &CubeTensor) -> Vec<u32> {
        let n = t.meta.shape().iter().product();
        let bytes = t
            .client
            .read_one(t.handle.clone())
            .expect("the device answers");
        bytemuck::pod_collect_to_vec::<u8, u32>(&bytes)[..n].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{device, read_u32};
    use super::*;
    use cubecl::prelude::*;

    #[cube(launch)]
    fn numbers_kernel(out: &mut [u32], n: u32) {
        if CUBE_POS < n as usize {
            out[CUBE_POS] = CUBE_POS as u32;
        }
    }

    #[test]
    fn more_cubes_than_a_dimension_takes_are_counted_through() {
        let Some(device) = device() else { return };
        let n = MOST_CUBES as usize + 4_466;
        let out = empty(&device, &[n], DType::U32);
        let (client, dim) = (device.client(), CubeDim::new_1d(1));
        let arg = out.clone().into_buffer_arg();
        numbers_kernel::launch(&client, cubes(n), dim, arg, n as u32);
        let got = read_u32(&out);
        assert!(got.iter().enumerate().all(|(i, &v)| i == v as usize));
    }
}
