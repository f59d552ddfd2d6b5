//! Convolutions through cuDNN, NHWC, as far as it takes them; what it refuses, the kernels beside it compute.
//!
//! **How a call reaches the GPU.** Every runtime of CubeCL lives on a thread of its own, which alone talks to the driver.
//! `Client::get_resource` would give a raw pointer, but waits for that thread, once for each tensor. Here one closure is
//! handed over instead (`DeviceHandle::submit`), which runs on that thread in its turn among the launches, resolves all
//! buffers and calls cuDNN: one hand-over, no wait. Only the first call of a shape waits, for the choice of an algorithm.
//!
//! **On which stream.** CubeCL's `CUstream` is private, and a stream of our own would have to be ordered against it by
//! events of the whole context, which also wait for NCCL's stream: reductions would no longer overlap with the backward
//! pass. `CudaServer` tells which places of its pool have streams, though, and prints these, in the same order, with
//! `{:?}` (CubeCL's version is pinned). Should that fail, `Side` in `cudnn_stream.rs` orders a stream of our own by
//! events. Memory is reused in the order of the stream, so a buffer may be dropped as soon as the call is enqueued.

use super::conv::Sizes;
use super::cudnn_stream::{Lib, Refused, with_lib};
use super::launch::{T, empty};
use super::precision;
use crate::gpu::place::Library;
use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_std::stream::StreamId;
use cubecl::cuda::CudaRuntime;
use cubecl::device_handle::DeviceHandle;
use cubecl::server::{BufferBinding, ServerStorage};
use cudarc::cudnn::{result as cudnn, sys};
use std::any::TypeId;
use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

pub(super) type Server = <CudaRuntime as cubecl::__private::Runtime>::Server;

/// The most bytes of scratch memory that an algorithm may ask for.
const WORKSPACE: usize = 256 << 20;

/// Which of a convolution's three products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Op {
    Forward,
    /// Forward, and a bias is added to each output. (Of activations the fused call knows ReLU, not SiLU.)
    Biased,
    Data,
    Weight,
}

/// What an algorithm is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    op: Op,
    sizes: Sizes,
    dtype: DType,
    tf32: bool,
    deterministic: bool,
    device: usize,
}

/// A chosen algorithm, by its number in cuDNN's enumeration of the operation's algorithms.
#[derive(Clone, Copy, Debug)]
struct Plan {
    algorithm: u32,
    workspace: usize,
    math: sys::cudnnMathType_t,
}

/// What was chosen; `None`: cuDNN refuses it.
fn plans() -> std::sync::MutexGuard<'static, HashMap<Key, Option<Plan>>> {
    static PLANS: OnceLock<Mutex<HashMap<Key, Option<Plan>>>> = OnceLock::new();
    let plans = PLANS.get_or_init(Mutex::default);
    plans.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the library is on this machine: cudarc panics where one that is missing is called.
pub fn is_present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // one that lies in a wheel is found by its name once it is loaded
    let loaded = || crate::gpu::cuda::library(Library::Cudnn).is_ok();
    // SAFETY: it opens a library by name and closes it again.
    *PRESENT.get_or_init(|| loaded() && unsafe { sys::is_culib_present() })
}

/// The number of a tensor's GPU, where CubeCL's own CUDA server holds it.
fn cuda_index(t: &T) -> Option<usize> {
    let own = t.client.service_id().service == TypeId::of::<Server>();
    match &t.device {
        CubeDevice::Cuda(d) if own => Some(d.index),
        _ => None,
    }
}

/// Whether cuDNN may compute on such a tensor.
pub(super) fn applies(x: &T) -> bool {
    let types = [DType::F32, DType::F16, DType::BF16];
    cuda_index(x).is_some() && types.contains(&x.dtype) && precision::cudnn() && is_present()
}

/// Runs an operation on contiguous `x` `[n, h, w, ci]`, `w` `[co, k, k, ci/groups]`, `y` `[n, h, w, co]`, of which the
/// operation's result is overwritten, and for [`Op::Biased`] `[co]`, of one type. `false`: cuDNN is absent or refuses,
/// nothing was done.
pub(super) fn run(op: Op, [x, w, y]: [&T; 3], bias: Option<&T>, sizes: &Sizes) -> bool {
    let Some(device) = cuda_index(x).filter(|_| sizes.n > 0 && applies(x)) else {
        return false;
    };
    let key = Key {
        op,
        sizes: *sizes,
        dtype: x.dtype,
        tf32: precision::tf32(),
        deterministic: precision::deterministic(),
        device,
    };
    let handle = DeviceHandle::<Server>::new(x.client.service_id().device);
    let all = || [x, w, y].into_iter().chain(bias);
    let buffers = || all().map(|t| t.handle.clone().binding()).collect();
    let known = plans().get(&key).copied();
    let plan = known.unwrap_or_else(|| {
        let (buffers, scratch) = (buffers(), empty(x, [WORKSPACE], DType::U8));
        let scratch = scratch.handle.binding();
        let found = handle.submit_blocking(move |server: &mut Server| {
            guarded(|| Job { key, buffers }.search(server, scratch))
        });
        let plan = found.ok().flatten();
        plans().insert(key, plan);
        plan
    });
    let Some(plan) = plan else { return false };
    let buffers = buffers();
    let scratch =
        (plan.workspace > 0).then(|| empty(x, [plan.workspace], DType::U8).handle.binding());
    handle.submit(move |server: &mut Server| {
        let job = Job { key, buffers };
        // it worked when it was measured; a result that is missing must not pass for one
        job.enqueue(server, scratch, plan)
            .unwrap_or_else(|e| panic!("cuDNN: {key:?}: {e}"));
    });
    true
}

/// `None` also where a function is missing in an older or newer library, for which cudarc panics.
fn guarded<R>(f: impl FnOnce() -> Option<R>) -> Option<R> {
    catch_unwind(AssertUnwindSafe(f)).ok().flatten()
}

/// What cuDNN is told of a convolution. They live as long as the thread.
#[derive(Clone, Copy)]
pub(super) struct Descriptors {
    x: sys::cudnnTensorDescriptor_t,
    w: sys::cudnnFilterDescriptor_t,
    y: sys::cudnnTensorDescriptor_t,
    conv: sys::cudnnConvolutionDescriptor_t,
    bias: sys::cudnnTensorDescriptor_t,
    /// None.
    activation: sys::cudnnActivationDescriptor_t,
}

impl Descriptors {
    fn new(key: &Key) -> Result<Self, Refused> {
        let s = key.sizes;
        let ty = match key.dtype {
            DType::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
            DType::BF16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
            _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
        };
        let nhwc = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC;
        let i = |v: usize| v as i32;
        let d = Self {
            x: cudnn::create_tensor_descriptor()?,
            w: cudnn::create_filter_descriptor()?,
            y: cudnn::create_tensor_descriptor()?,
            conv: cudnn::create_convolution_descriptor()?,
            bias: cudnn::create_tensor_descriptor()?,
            activation: cudnn::create_activation_descriptor()?,
        };
        // SAFETY: the descriptors were just created.
        unsafe {
            cudnn::set_tensor4d_descriptor(d.bias, nhwc, ty, [1, i(s.co), 1, 1])?;
            cudnn::set_activation_descriptor(
                d.activation,
                sys::cudnnActivationMode_t::CUDNN_ACTIVATION_IDENTITY,
                sys::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN,
                0.0,
            )?;
            let x = [i(s.n), i(s.ci), i(s.h), i(s.w)];
            let y = [i(s.n), i(s.co), i(s.out_h()), i(s.out_w())];
            cudnn::set_tensor4d_descriptor(d.x, nhwc, ty, x)?;
            cudnn::set_tensor4d_descriptor(d.y, nhwc, ty, y)?;
            let w = [i(s.co), i(s.ci / s.groups), i(s.k), i(s.k)];
            cudnn::set_filter4d_descriptor(d.w, ty, nhwc, w)?;
            cudnn::set_convolution2d_descriptor(
                d.conv,
                i(s.pad()),
                i(s.pad()),
                i(s.stride),
                i(s.stride),
                1,
                1,
                sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
                sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
            )?;
            cudnn::set_convolution_group_count(d.conv, i(s.groups))?;
            cudnn::set_convolution_math_type(d.conv, key.math())?;
        }
        Ok(d)
    }
}

impl Key {
    /// float32 products keep their digits unless TF32 is allowed.
    fn math(&self) -> sys::cudnnMathType_t {
        match (self.dtype, self.tf32) {
            (DType::F32, false) => sys::cudnnMathType_t::CUDNN_FMA_MATH,
            _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
        }
    }
}

/// An operation on buffers.
struct Job {
    key: Key,
    /// Of x, w, y and, where there is one, the bias.
    buffers: Vec<BufferBinding>,
}

/// Where they are, null without a bias.
type Pointers = [*mut c_void; 4];

const ONE: f32 = 1.0;
const ZERO: f32 = 0.0;

fn scalar(v: &f32) -> *const c_void {
    std::ptr::from_ref(v).cast()
}

/// The quickest deterministic algorithm of those that were measured and fit.
macro_rules! quickest {
    ($perf:expr, $count:expr, $key:expr) => {
        $perf[..$count as usize]
            .iter()
            .find(|p| {
                p.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS
                    // the others add with atomics
                    && p.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC
                    && p.memory <= WORKSPACE
                    // float32 without TF32 must not come back with tensor operations
                    && ($key.dtype != DType::F32
                        || $key.tf32
                        || p.mathType == sys::cudnnMathType_t::CUDNN_FMA_MATH
                        || p.mathType == sys::cudnnMathType_t::CUDNN_DEFAULT_MATH)
            })
            .map(|p| Plan {
                algorithm: p.algo as u32,
                workspace: p.memory,
                math: if $key.dtype == DType::F32 && !$key.tf32 {
                    sys::cudnnMathType_t::CUDNN_FMA_MATH
                } else {
                    p.mathType
                },
            })
    };
}

use sys::cudnnConvolutionBwdDataAlgo_t as DataAlgorithm;
use sys::cudnnConvolutionBwdFilterAlgo_t as WeightAlgorithm;
use sys::cudnnConvolutionFwdAlgo_t as ForwardAlgorithm;

const FORWARD: [ForwardAlgorithm; 8] = [
    ForwardAlgorithm::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
    ForwardAlgorithm::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
    ForwardAlgorithm::CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
    ForwardAlgorithm::CUDNN_CONVOLUTION_FWD_ALGO_DIRECT,
    ForwardAlgorithm::CUDNN_CONVOLUTION_FWD_ALGO_FFT,
    ForwardAlgorithm::CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING,
    ForwardAlgorithm::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD,
    ForwardAlgorithm::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
];
const DATA: [DataAlgorithm; 6] = [
    DataAlgorithm::CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
    DataAlgorithm::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
    DataAlgorithm::CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT,
    DataAlgorithm::CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING,
    DataAlgorithm::CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD,
    DataAlgorithm::CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED,
];
const WEIGHT: [WeightAlgorithm; 7] = [
    WeightAlgorithm::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
    WeightAlgorithm::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
    WeightAlgorithm::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT,
    WeightAlgorithm::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3,
    WeightAlgorithm::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD,
    WeightAlgorithm::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED,
    WeightAlgorithm::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING,
];
/// Deterministic in each of the three, and implicit products: those of NHWC. With a bias and no activation cuDNN has no
/// other.
const FIXED: u32 = 1;

impl Job {
    fn pointers(&self, server: &mut Server) -> Result<Pointers, Refused> {
        let mut out = [null_mut(); 4];
        for (out, buffer) in out.iter_mut().zip(&self.buffers) {
            *out = pointer(server, buffer.clone())?;
        }
        Ok(out)
    }

    /// Chooses an algorithm: by measurement, or the fixed one where runs have to repeat their bits.
    fn search(&self, server: &mut Server, scratch: BufferBinding) -> Option<Plan> {
        let mut plan = None;
        let result = self.prepared(server, Some(scratch), |lib, d, pointers, scratch| {
            plan = match self.key.op {
                Op::Biased => {
                    let fixed = self.fixed(lib, d)?;
                    // whether it is refused shows when it is called
                    if fixed.workspace <= WORKSPACE {
                        self.call(lib, d, pointers, scratch, fixed)?;
                    }
                    Some(fixed)
                }
                _ if self.key.deterministic => Some(self.fixed(lib, d)?),
                _ => self.measured(lib, d, pointers, scratch)?,
            };
            Ok(())
        });
        let plan = result.ok().and(plan)?;
        (plan.workspace <= WORKSPACE).then_some(plan)
    }

    fn measured(
        &self,
        lib: &Lib,
        d: Descriptors,
        [x, w, y, _]: Pointers,
        scratch: *mut c_void,
    ) -> Result<Option<Plan>, Refused> {
        let (key, mut count) = (&self.key, 0);
        // SAFETY: buffers are of the sizes that the descriptors tell, and the scratch buffer of `WORKSPACE` bytes; the
        // results are written before they are read.
        unsafe {
            Ok(match key.op {
                Op::Forward | Op::Biased => {
                    let mut perf: [sys::cudnnConvolutionFwdAlgoPerf_t; 8] = std::mem::zeroed();
                    sys::cudnnFindConvolutionForwardAlgorithmEx(
                        lib.handle,
                        d.x,
                        x,
                        d.w,
                        w,
                        d.conv,
                        d.y,
                        y,
                        8,
                        &mut count,
                        perf.as_mut_ptr(),
                        scratch,
                        WORKSPACE,
                    )
                    .result()?;
                    quickest!(perf, count, key)
                }
                Op::Data => {
                    let mut perf: [sys::cudnnConvolutionBwdDataAlgoPerf_t; 6] = std::mem::zeroed();
                    sys::cudnnFindConvolutionBackwardDataAlgorithmEx(
                        lib.handle,
                        d.w,
                        w,
                        d.y,
                        y,
                        d.conv,
                        d.x,
                        x,
                        6,
                        &mut count,
                        perf.as_mut_ptr(),
                        scratch,
                        WORKSPACE,
                    )
                    .result()?;
                    quickest!(perf, count, key)
                }
                Op::Weight => {
                    let mut perf: [sys::cudnnConvolutionBwdFilterAlgoPerf_t; 7] =
                        std::mem::zeroed();
                    sys::cudnnFindConvolutionBackwardFilterAlgorithmEx(
                        lib.handle,
                        d.x,
                        x,
                        d.y,
                        y,
                        d.conv,
                        d.w,
                        w,
                        7,
                        &mut count,
                        perf.as_mut_ptr(),
                        scratch,
                        WORKSPACE,
                    )
                    .result()?;
                    quickest!(perf, count, key)
                }
            })
        }
    }

    fn fixed(&self, lib: &Lib, d: Descriptors) -> Result<Plan, Refused> {
        let at = FIXED as usize;
        // SAFETY: the descriptors are alive.
        let workspace = unsafe {
            match self.key.op {
                Op::Forward | Op::Biased => cudnn::get_convolution_forward_workspace_size(
                    lib.handle,
                    d.x,
                    d.w,
                    d.conv,
                    d.y,
                    FORWARD[at],
                )?,
                Op::Data => cudnn::get_convolution_backward_data_workspace_size(
                    lib.handle, d.w, d.y, d.conv, d.x, DATA[at],
                )?,
                Op::Weight => cudnn::get_convolution_backward_filter_workspace_size(
                    lib.handle, d.x, d.y, d.conv, d.w, WEIGHT[at],
                )?,
            }
        };
        Ok(Plan {
            algorithm: FIXED,
            workspace,
            math: self.key.math(),
        })
    }

    fn enqueue(
        &self,
        server: &mut Server,
        scratch: Option<BufferBinding>,
        plan: Plan,
    ) -> Result<(), Refused> {
        self.prepared(server, scratch, |lib, d, pointers, scratch| {
            self.call(lib, d, pointers, scratch, plan)
        })
    }

    fn call(
        &self,
        lib: &Lib,
        d: Descriptors,
        [x, w, y, bias]: Pointers,
        scratch: *mut c_void,
        plan: Plan,
    ) -> Result<(), Refused> {
        let (one, zero, at) = (scalar(&ONE), scalar(&ZERO), plan.algorithm as usize);
        // SAFETY: buffers are of the sizes that the descriptors tell, the scratch buffer of those that the algorithm
        // asked for.
        unsafe {
            cudnn::set_convolution_math_type(d.conv, plan.math)?;
            match self.key.op {
                Op::Forward => cudnn::convolution_forward(
                    lib.handle,
                    one,
                    d.x,
                    x,
                    d.w,
                    w,
                    d.conv,
                    FORWARD[at],
                    scratch,
                    plan.workspace,
                    zero,
                    d.y,
                    y,
                )?,
                Op::Data => cudnn::convolution_backward_data(
                    lib.handle,
                    one,
                    d.w,
                    w,
                    d.y,
                    y,
                    d.conv,
                    DATA[at],
                    scratch,
                    plan.workspace,
                    zero,
                    d.x,
                    x,
                )?,
                Op::Weight => cudnn::convolution_backward_filter(
                    lib.handle,
                    one,
                    d.x,
                    x,
                    d.y,
                    y,
                    d.conv,
                    WEIGHT[at],
                    scratch,
                    plan.workspace,
                    zero,
                    d.w,
                    w,
                )?,
                Op::Biased => cudnn::convolution_bias_activation_forward(
                    lib.handle,
                    one,
                    d.x,
                    x,
                    d.w,
                    w,
                    d.conv,
                    FORWARD[at],
                    scratch,
                    plan.workspace,
                    zero,
                    d.y,
                    y,
                    d.bias,
                    bias,
                    d.activation,
                    d.y,
                    y,
                )?,
            }
        }
        Ok(())
    }

    /// Calls `f` with everything resolved, on a stream in order with the runtime's.
    fn prepared(
        &self,
        server: &mut Server,
        scratch: Option<BufferBinding>,
        f: impl FnOnce(&Lib, Descriptors, Pointers, *mut c_void) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let pointers = self.pointers(server)?;
        let scratch = match scratch {
            Some(b) => pointer(server, b)?,
            None => null_mut(),
        };
        with_lib(|lib| {
            let d = match lib.descriptors.get(&self.key) {
                Some(d) => *d,
                None => {
                    let d = Descriptors::new(&self.key)?;
                    lib.descriptors.insert(self.key, d);
                    d
                }
            };
            lib.ordered(server, |lib| f(lib, d, pointers, scratch))
        })
    }
}

/// Where a buffer lies on the GPU. Its memory stays as long as the job holds it.
fn pointer(server: &mut Server, buffer: BufferBinding) -> Result<*mut c_void, Refused> {
    let resource = server
        .get_resource(buffer, StreamId::current())
        .map_err(|e| Refused::Memory(e.to_string()))?;
    Ok(resource.resource().ptr as *mut c_void)
}

#[cfg(test)]
#[path = "cudnn_tests.rs"]
mod tests;
