//! Arrays in a device's memory: what lies there for a whole run, and views into it.

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device, Shape, Tensor};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use bytemuck::Pod;
use cubecl::server::ServerError;

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
pub fn download<T: Pod>(t: &CubeTensor) -> Result<Vec<T>, ServerError> {
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
