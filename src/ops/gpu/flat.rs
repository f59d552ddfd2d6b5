//! Arrays in a device's memory: what lies there for a whole run, and views into it.

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device, Shape, Tensor};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use bytemuck::Pod;

use crate::ops::DeviceFailure;

/// Elements that a view's place in an array is a multiple of: bindings of 256 bytes also of 16-bit numbers, which every
/// device accepts.
pub const ALIGN: usize = 128;

/// The device behind Burn's, where it is a GPU.
#[must_use]
pub fn cube_device(device: &Device) -> Option<CubeDevice> {
    match device.clone().inner().as_dispatch() {
        DispatchDevice::Cube(d) => Some(d.clone()),
        _ => None,
    }
}

/// Memory of whatever content.
#[must_use]
pub fn empty(device: &CubeDevice, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    let (client, shape) = (device.client(), shape.into());
    let handle = client.empty((shape.num_elements() * dtype.size()).max(4));
    CubeTensor::new_contiguous(client, device.clone(), shape, handle, dtype)
}

/// Memory of whatever content, like that of `t`.
#[must_use]
pub fn empty_like(t: &CubeTensor) -> CubeTensor {
    empty(&t.device, t.meta.shape().clone(), t.dtype)
}

/// A copy of `values` on the device.
///
/// # Panics
/// If the number of values is not the shape's.
#[must_use]
pub fn upload<T: Pod>(
    device: &CubeDevice,
    values: &[T],
    shape: impl Into<Shape>,
    dtype: DType,
) -> CubeTensor {
    let (client, shape) = (device.client(), shape.into());
    assert_eq!(values.len(), shape.num_elements(), "values of {shape:?}");
    assert_eq!(size_of::<T>(), dtype.size(), "bytes of {dtype:?}");
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let handle = client.create_from_slice(if bytes.is_empty() { &[0; 4] } else { bytes });
    CubeTensor::new_contiguous(client, device.clone(), shape, handle, dtype)
}

/// The elements of a contiguous tensor; waits until they are there.
///
/// # Errors
/// The device failed.
pub fn download<T: Pod>(t: &CubeTensor) -> Result<Vec<T>, DeviceFailure> {
    let bytes = t.client.read_one(t.handle.clone())?;
    let len = t.meta.num_elements() * size_of::<T>();
    Ok(bytemuck::pod_collect_to_vec(&bytes[..len]))
}

/// Writes into a contiguous tensor's own memory.
///
/// # Panics
/// If the number of values is not the tensor's.
pub fn write<T: Pod>(t: &CubeTensor, values: &[T]) {
    assert_eq!(values.len(), t.meta.num_elements(), "values of a tensor");
    let bytes = bytemuck::cast_slice(values).to_vec();
    t.client
        .write(&t.handle, burn::tensor::Bytes::from_bytes_vec(bytes));
}

/// `shape` elements of a contiguous array from `offset` on: the same memory.
#[must_use]
pub fn view(array: &CubeTensor, offset: usize, shape: impl Into<Shape>) -> CubeTensor {
    let shape = shape.into();
    let (size, total) = (array.dtype.size(), array.handle.size_in_used() as usize);
    let (start, len) = (offset * size, shape.num_elements() * size);
    assert!(
        start + len <= total,
        "{len} bytes at {start} of an array of {total}"
    );
    let handle = array.handle.clone();
    let handle = handle
        .offset_start(start as u64)
        .offset_end((total - start - len) as u64);
    CubeTensor::new_contiguous(
        array.client.clone(),
        array.device.clone(),
        shape,
        handle,
        array.dtype,
    )
}

/// `[len]` of float32.
#[must_use]
pub fn upload_f32(device: &CubeDevice, values: &[f32]) -> CubeTensor {
    upload(device, values, [values.len()], DType::F32)
}

/// `[len]` of u32.
#[must_use]
pub fn upload_u32(device: &CubeDevice, values: &[u32]) -> CubeTensor {
    upload(device, values, [values.len()], DType::U32)
}

/// As a tensor of the library, outside any graph.
#[must_use]
pub fn tensor<const D: usize>(t: CubeTensor) -> Tensor<D> {
    Tensor::from_primitive::<CubeBackend>(t)
}

/// The memory of a tensor outside any graph that lies on a GPU.
#[must_use]
pub fn primitive<const D: usize>(t: Tensor<D>) -> Option<CubeTensor> {
    t.try_into_primitive::<CubeBackend>().ok()
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
        let shape = Shape::from(shape.to_vec());
        let t = upload(device, values, shape, DType::F32);
        burn_cubecl::kernel::cast(t, dtype)
    }

    /// The values of a contiguous tensor as float32.
    pub(crate) fn read(t: &CubeTensor) -> Vec<f32> {
        let n = t.meta.shape().iter().product();
        // what the tensor library makes may have gaps between rows
        let t =
            burn_cubecl::kernel::into_contiguous(burn_cubecl::kernel::cast(t.clone(), DType::F32));
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
