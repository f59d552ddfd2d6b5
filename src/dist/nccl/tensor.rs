//! From a tensor to the values behind it, in the GPU's memory.

use std::sync::atomic::{AtomicU64, Ordering};

use burn::backend::Cube;
use burn::tensor::{DType, Tensor};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeDevice, kernel::into_contiguous};
use cubecl::client::Client;
use cubecl::cuda::CudaRuntime;
use cubecl_runtime::runtime::Runtime;

use crate::dist::device::{After, DeviceBuffer, DeviceType, Mark};
use crate::dist::error::DistError;

/// The CUDA runtime's type of servers, which has no name that can be written elsewhere.
type Server = <CudaRuntime as Runtime>::Server;

/// The values of a tensor of a CUDA GPU. They are contiguous in memory, and stay there as long as the buffer lives; a
/// collective changes them in place, for all tensors that share them. What was called before on this thread, and on others that
/// have written the tensor, comes before the collective.
///
/// # Errors
/// [`DistError::System`]: another device or type, strides, or what the runtime met before.
pub fn buffer_of(tensor: &CubeTensor) -> Result<DeviceBuffer, DistError> {
    let cannot = |reason: String| DistError::System {
        what: "find a tensor's values on the GPU".into(),
        reason,
    };
    if !matches!(tensor.device, CubeDevice::Cuda(_)) {
        return Err(cannot(format!("it lies on {:?}", tensor.device)));
    }
    if !tensor.is_contiguous() {
        return Err(cannot("its values are not contiguous".into()));
    }
    let dtype = match tensor.dtype {
        DType::F32 => DeviceType::F32,
        DType::F64 => DeviceType::F64,
        DType::F16 => DeviceType::F16,
        DType::BF16 => DeviceType::Bf16,
        DType::I32 => DeviceType::I32,
        DType::U32 => DeviceType::U32,
        DType::I64 => DeviceType::I64,
        DType::U64 => DeviceType::U64,
        DType::U8 => DeviceType::U8,
        other => return Err(cannot(format!("no collective is for {other:?}"))),
    };
    // When this returns, everything that this thread has called is handed to the driver, and its stream waits (on the GPU)
    // for the one that wrote the tensor.
    let resource = tensor
        .client
        .get_resource::<Server>(tensor.handle.clone())
        .map_err(|e| cannot(e.to_string()))?;
    let address = resource.resource().ptr;
    let elements = tensor.meta.shape().num_elements();
    // SAFETY: the runtime says where the tensor's memory is, which is neither freed nor moved while the handle is held.
    // That nobody else uses it is the caller's promise, which the runtime's own order of streams keeps after `join_stream`.
    let keep = Box::new(tensor.handle.clone());
    let buffer = unsafe { DeviceBuffer::new(address, elements, dtype, After::Everything, keep) };
    let client = tensor.client.clone();
    Ok(buffer.with_marker(Box::new(move || mark(&client))))
}

/// A word that the runtime writes on this thread's stream, after all that this thread has called.
fn mark(client: &Client) -> Result<Mark, DistError> {
    // what stands in the word before is no value of this counter that is still to come
    static NEXT: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
    let value = NEXT.fetch_add(1, Ordering::Relaxed);
    let word = client.create_from_slice(&value.to_le_bytes());
    let resource = client.get_resource::<Server>(word.clone());
    let resource = resource.map_err(|e| DistError::system("mark a place on a stream", e))?;
    Ok(Mark {
        address: resource.resource().ptr,
        value,
        keep: Box::new(word),
    })
}

/// The tensor itself where its values are contiguous, otherwise a copy.
#[must_use]
pub fn contiguous(tensor: CubeTensor) -> CubeTensor {
    into_contiguous(tensor)
}

/// The values of a tensor of a CUDA GPU, outside the graph; see [`buffer_of`].
///
/// # Errors
/// As [`buffer_of`].
pub fn values<const D: usize>(tensor: &Tensor<D>) -> Result<DeviceBuffer, DistError> {
    let cube = tensor.clone().try_into_primitive::<Cube>();
    let cube = cube.map_err(|_| DistError::System {
        what: "find a tensor's values on the GPU".into(),
        reason: format!("it lies on {:?}", tensor.device()),
    })?;
    buffer_of(&cube)
}
