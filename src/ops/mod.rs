//! The detector's differentiable operations on NHWC activations (`[batch, height, width, channel]`).
//!
//! Each is kernels of `cpu/` in float32 on the CPU and of `gpu/` on GPUs; elsewhere (float64) it is plain operations of
//! the tensor library, the reference. The network calls nothing else.

mod autodiff;
mod conv;
pub mod cpu;
mod extension;
mod failure;
mod flex;
#[cfg(feature = "gpu")]
pub mod gpu;
mod group;
mod memory;
mod norm;
pub mod ranks;
mod reference;
mod shape;

pub use conv::{conv, conv_bias};
pub use failure::DeviceFailure;
pub use memory::trim;
pub use norm::{BatchStats, ConvNorm, NORM_EPS, Norm, conv_norm_act, conv_norm_act_each, norm_act};
pub use reference::HAS_REFERENCE;
pub(crate) use reference::NO_REFERENCE;
pub use shape::{add, attend, concat, join, max_pool5, part, shared, split_channels, upsample2};

use burn::backend::Dispatch;
use burn::backend::flex::Flex;
use burn::tensor::{DType, Device, Tensor, TensorData};
use extension::Kernels;
use std::sync::{Arc, OnceLock};

/// The instruction set of the kernels: `YOLO_TRAIN_ISA`, otherwise the machine's best. Whoever starts a run asks
/// [`cpu::isa::Isa::detect`] first, which says what is wrong with the variable.
pub fn isa() -> cpu::isa::Isa {
    static ISA: OnceLock<cpu::isa::Isa> = OnceLock::new();
    *ISA.get_or_init(|| cpu::isa::Isa::detect().unwrap_or_else(|_| cpu::isa::Isa::best()))
}

/// Whether the CPU's kernels apply to this tensor: float32 on the CPU.
pub fn kernels_apply<const D: usize>(x: &Tensor<D>) -> bool {
    extension::available(x) && !on_gpu(x)
}

/// Whether a tensor lies on a device of CubeCL's: CUDA, Vulkan, Metal.
pub fn on_gpu<const D: usize>(x: &Tensor<D>) -> bool {
    is_gpu(&x.device())
}

#[cfg(feature = "gpu")]
use gpu::is_gpu;

#[cfg(not(feature = "gpu"))]
fn is_gpu(_: &Device) -> bool {
    false
}

/// What [`on_slices`] runs: values of two tensors, and where values of the same sizes go (all of them are written).
pub type SliceFn = Arc<dyn Fn(&[f32], &[f32], &mut [f32], &mut [f32]) + Send + Sync>;

/// Runs `f` on the values of two tensors on which the kernels apply, outside the graph; the results have their shapes.
pub fn on_slices(a: Tensor<3>, b: Tensor<3>, f: SliceFn) -> (Tensor<3>, Tensor<3>) {
    let (a, b) = (a.inner().into_dispatch(), b.inner().into_dispatch());
    let (x, y) = <Dispatch as Kernels>::on_slices(a, b, extension::Slices(f));
    (Tensor::from_dispatch(x), Tensor::from_dispatch(y))
}

/// Pixels `[n, h, w, 3]` of 0..=255 as an activation of 0..1, resized to `to` (rows, columns) where that is another size:
/// bilinear, half-pixel centres, no antialiasing. Of type `dtype`: float32, on GPUs, where bytes travel as they are, also
/// float16 and bfloat16.
pub fn image(
    pixels: &[u8],
    shape: [usize; 4],
    to: [usize; 2],
    device: &Device,
    dtype: DType,
) -> Tensor<4> {
    let same = [shape[1], shape[2]] == to;
    #[cfg(feature = "gpu")]
    if is_gpu(device) {
        return gpu::image(pixels, shape, to, device, dtype);
    }
    let flex = *device == Device::flex() || *device == Device::flex().autodiff();
    if flex && same && dtype == DType::F32 {
        let inner = Tensor::from_primitive::<Flex>(flex::image(pixels, shape));
        return if device.is_autodiff() {
            Tensor::from_inner(inner)
        } else {
            inner
        };
    }
    let values: Vec<f32> = if same {
        pixels.iter().map(|&p| f32::from(p) / 255.0).collect()
    } else {
        cpu::resize::bilinear(pixels, shape, to)
    };
    let data = TensorData::new(values, [shape[0], to[0], to[1], shape[3]]);
    Tensor::from_data(data.convert_dtype(dtype), (device, dtype))
}

/// The values of a float32 tensor outside any graph, on the host; waits for them.
///
/// # Errors
/// The device failed.
pub fn values<const D: usize>(t: Tensor<D>) -> Result<Vec<f32>, DeviceFailure> {
    #[cfg(feature = "gpu")]
    if on_gpu(&t) {
        return gpu::values(t);
    }
    let values = t.into_data().try_to_vec::<f32>();
    Ok(values.expect("what is read is float32"))
}

/// `[1]` zero whose backward pass gives `x` the gradient `gradient`, computed outside the graph. It must be the end of
/// the graph, alone or as a summand.
pub fn with_gradient<const D: usize>(x: Tensor<D>, gradient: Tensor<D>) -> Tensor<1> {
    Tensor::from_dispatch(<Dispatch as Kernels>::injected(
        x.into_dispatch(),
        gradient.into_dispatch(),
    ))
}

/// What follows a batch norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
    Identity,
}
