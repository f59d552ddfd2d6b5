//! cuDNN's convolutions, NHWC, of float32 and bfloat16: plain loops on the stream that was set. What a caller may get wrong is
//! refused: sizes that do not fit, another layout, an algorithm that was not offered, scratch memory that is missing.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use crate::OK;
use crate::stream::{self, Stream};

const BAD_PARAM: c_int = 2000;
const NOT_SUPPORTED: c_int = 3000;

const FLOAT: c_int = 0;
const BFLOAT16: c_int = 9;
const NHWC: c_int = 1;
const CROSS_CORRELATION: c_int = 1;
const FMA_MATH: c_int = 3;
const IDENTITY: c_int = 5;

/// The algorithm that works, its scratch memory, and the others' that are offered: too large, with tensor operations, with
/// atomics, failing.
const ALGORITHM: c_int = 1;
const SCRATCH: usize = 4096;
const TENSOR_ALGORITHM: c_int = 2;

#[derive(Default)]
pub struct Handle {
    stream: Mutex<usize>,
}

/// Of a tensor (`n`, `c`, `h`, `w`) or a filter (`k`, `c`, `h`, `w`).
#[derive(Clone, Copy, Default)]
pub struct Array {
    dtype: c_int,
    format: c_int,
    dims: [usize; 4],
}

#[derive(Clone, Copy, Default)]
pub struct Convolution {
    pad: [c_int; 2],
    stride: [c_int; 2],
    dilation: [c_int; 2],
    mode: c_int,
    compute: c_int,
    groups: c_int,
    math: c_int,
}

#[repr(C)]
pub struct Perf {
    algorithm: c_int,
    status: c_int,
    time: f32,
    memory: usize,
    deterministic: c_int,
    math: c_int,
    reserved: [c_int; 3],
}

unsafe fn make<T: Default>(to: *mut *mut T) -> c_int {
    unsafe { *to = Box::into_raw(Box::default()) };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetVersion() -> usize {
    90_100
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreate(to: *mut *mut Handle) -> c_int {
    unsafe { make(to) }
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetStream(handle: *mut Handle, stream: usize) -> c_int {
    unsafe { *(*handle).stream.lock().unwrap() = stream };
    OK
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreateTensorDescriptor(to: *mut *mut Array) -> c_int {
    unsafe { make(to) }
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreateFilterDescriptor(to: *mut *mut Array) -> c_int {
    unsafe { make(to) }
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreateConvolutionDescriptor(to: *mut *mut Convolution) -> c_int {
    unsafe { make(to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreateActivationDescriptor(to: *mut *mut c_int) -> c_int {
    unsafe { make(to) }
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetActivationDescriptor(
    to: *mut c_int,
    mode: c_int,
    _: c_int,
    _: f64,
) -> c_int {
    unsafe { *to = mode };
    OK
}

unsafe fn set(to: *mut Array, dtype: c_int, format: c_int, dims: [c_int; 4]) -> c_int {
    if dims.iter().any(|&d| d <= 0) {
        return BAD_PARAM;
    }
    unsafe {
        *to = Array {
            dtype,
            format,
            dims: dims.map(|d| d as usize),
        }
    };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetTensor4dDescriptor(
    to: *mut Array,
    format: c_int,
    dtype: c_int,
    n: c_int,
    c: c_int,
    h: c_int,
    w: c_int,
) -> c_int {
    unsafe { set(to, dtype, format, [n, c, h, w]) }
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetFilter4dDescriptor(
    to: *mut Array,
    dtype: c_int,
    format: c_int,
    k: c_int,
    c: c_int,
    h: c_int,
    w: c_int,
) -> c_int {
    unsafe { set(to, dtype, format, [k, c, h, w]) }
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetConvolution2dDescriptor(
    to: *mut Convolution,
    pad_h: c_int,
    pad_w: c_int,
    stride_h: c_int,
    stride_w: c_int,
    dilation_h: c_int,
    dilation_w: c_int,
    mode: c_int,
    compute: c_int,
) -> c_int {
    unsafe {
        *to = Convolution {
            pad: [pad_h, pad_w],
            stride: [stride_h, stride_w],
            dilation: [dilation_h, dilation_w],
            mode,
            compute,
            groups: 1,
            math: 0,
        }
    };
    OK
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetConvolutionGroupCount(to: *mut Convolution, n: c_int) -> c_int {
    unsafe { (*to).groups = n };
    OK
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetConvolutionMathType(to: *mut Convolution, math: c_int) -> c_int {
    unsafe { (*to).math = math };
    OK
}

/// A convolution whose sizes fit.
#[derive(Clone, Copy)]
struct Problem {
    /// Of x: images, channels, rows, columns.
    x: [usize; 4],
    /// Of the weights: outputs, inputs, rows, columns.
    w: [usize; 4],
    y: [usize; 4],
    pad: usize,
    stride: usize,
    dtype: c_int,
    math: c_int,
}

impl Problem {
    unsafe fn new(
        x: *const Array,
        w: *const Array,
        y: *const Array,
        conv: *const Convolution,
    ) -> Result<Self, c_int> {
        let (x, w, y, c) = unsafe { (*x, *w, *y, *conv) };
        if c.groups != 1 || ![FLOAT, BFLOAT16].contains(&x.dtype) {
            return Err(NOT_SUPPORTED);
        }
        let out = |i: usize| {
            let all = x.dims[2 + i] + 2 * c.pad[i] as usize;
            (all - w.dims[2 + i]) / c.stride[i] as usize + 1
        };
        let fits = [x, w, y]
            .iter()
            .all(|a| a.format == NHWC && a.dtype == x.dtype)
            && c.mode == CROSS_CORRELATION
            && c.compute == FLOAT
            && c.dilation == [1, 1]
            && c.pad[0] == c.pad[1]
            && c.stride[0] == c.stride[1]
            && w.dims[1] == x.dims[1]
            && y.dims == [x.dims[0], w.dims[0], out(0), out(1)];
        if !fits {
            return Err(BAD_PARAM);
        }
        Ok(Self {
            x: x.dims,
            w: w.dims,
            y: y.dims,
            pad: c.pad[0] as usize,
            stride: c.stride[0] as usize,
            dtype: x.dtype,
            math: c.math,
        })
    }

    /// Calls `f` with the places in x, w and y of each product.
    fn products(&self, mut f: impl FnMut(usize, usize, usize)) {
        let ([n, ci, h, wd], [co, _, kh, kw], [_, _, oh, ow]) = (self.x, self.w, self.y);
        let inside = |at: usize, tap: usize, size: usize| {
            (at * self.stride + tap)
                .checked_sub(self.pad)
                .filter(|&p| p < size)
        };
        for image in 0..n {
            for row in 0..oh {
                for col in 0..ow {
                    for a in 0..kh {
                        let Some(i) = inside(row, a, h) else { continue };
                        for b in 0..kw {
                            let Some(j) = inside(col, b, wd) else {
                                continue;
                            };
                            for to in 0..co {
                                for from in 0..ci {
                                    f(
                                        ((image * h + i) * wd + j) * ci + from,
                                        ((to * kh + a) * kw + b) * ci + from,
                                        ((image * oh + row) * ow + col) * co + to,
                                    );
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

unsafe fn read(at: usize, len: usize, dtype: c_int) -> Vec<f32> {
    unsafe {
        match dtype {
            BFLOAT16 => std::slice::from_raw_parts(at as *const u16, len)
                .iter()
                .map(|&v| f32::from_bits(u32::from(v) << 16))
                .collect(),
            _ => std::slice::from_raw_parts(at as *const f32, len).to_vec(),
        }
    }
}

unsafe fn write(at: usize, values: &[f64], dtype: c_int) {
    for (i, &v) in values.iter().enumerate() {
        let v = v as f32;
        unsafe {
            match dtype {
                BFLOAT16 => {
                    let bits = v.to_bits();
                    // to the nearest, ties to even
                    let rounded = bits + 0x7fff + (bits >> 16 & 1);
                    *(at as *mut u16).add(i) = (rounded >> 16) as u16;
                }
                _ => *(at as *mut f32).add(i) = v,
            }
        }
    }
}

/// Which of the three is the result.
#[derive(Clone, Copy, PartialEq)]
enum Out {
    Y,
    X,
    W,
}

/// A call on the handle's stream: `at` are the places of x, w and y and of a bias or null, `scalars` alpha and beta.
unsafe fn run(
    handle: *mut Handle,
    problem: Result<Problem, c_int>,
    at: [usize; 4],
    out: Out,
    algorithm: c_int,
    (scratch, room): (usize, usize),
    scalars: [*const f32; 2],
) -> c_int {
    let p = match problem {
        Ok(p) => p,
        Err(code) => return code,
    };
    let wanted = match (p.dtype, p.math) {
        (FLOAT, FMA_MATH) => ALGORITHM,
        (FLOAT, _) => TENSOR_ALGORITHM,
        _ => algorithm,
    };
    let scalars = scalars.map(|s| unsafe { *s });
    if algorithm != wanted || scratch == 0 || room < SCRATCH || scalars != [1.0, 0.0] {
        return BAD_PARAM;
    }
    let stream = unsafe { *(*handle).stream.lock().unwrap() };
    let queue = unsafe { stream::of(stream as *const Stream) };
    queue.push(move || {
        let len = |d: [usize; 4]| d.iter().product::<usize>();
        let lens = [len(p.x), len(p.w), len(p.y)];
        let [x, w, y] = [0, 1, 2].map(|i| unsafe { read(at[i], lens[i], p.dtype) });
        let to = match out {
            Out::X => 0,
            Out::W => 1,
            Out::Y => 2,
        };
        let mut sum = vec![0.0f64; lens[to]];
        p.products(|i, j, k| match out {
            Out::Y => sum[k] += f64::from(x[i]) * f64::from(w[j]),
            Out::X => sum[i] += f64::from(y[k]) * f64::from(w[j]),
            Out::W => sum[j] += f64::from(y[k]) * f64::from(x[i]),
        });
        if at[3] != 0 {
            let bias = unsafe { read(at[3], p.w[0], p.dtype) };
            let pixels = sum.chunks_exact_mut(bias.len());
            pixels.for_each(|y| {
                y.iter_mut()
                    .zip(&bias)
                    .for_each(|(y, &b)| *y += f64::from(b))
            });
        }
        unsafe {
            std::ptr::write_bytes(scratch as *mut u8, 0xff, SCRATCH);
            write(at[to], &sum, p.dtype);
        }
    });
    OK
}

unsafe fn offer(
    problem: Result<Problem, c_int>,
    (scratch, room): (usize, usize),
    asked: c_int,
    count: *mut c_int,
    to: *mut Perf,
) -> c_int {
    if let Err(code) = problem {
        return code;
    }
    if scratch == 0 || room < SCRATCH {
        return BAD_PARAM;
    }
    let perf = |algorithm, status, memory, deterministic, math| Perf {
        algorithm,
        status,
        time: 1.0,
        memory,
        deterministic,
        math,
        reserved: [0; 3],
    };
    let all = [
        perf(0, OK, SCRATCH, 0, FMA_MATH),
        perf(3, NOT_SUPPORTED, SCRATCH, 1, FMA_MATH),
        perf(4, OK, usize::MAX, 1, FMA_MATH),
        perf(TENSOR_ALGORITHM, OK, SCRATCH, 1, 1),
        perf(ALGORITHM, OK, SCRATCH, 1, FMA_MATH),
    ];
    let mut written = 0;
    for (i, p) in all.into_iter().take(asked.max(0) as usize).enumerate() {
        unsafe { to.add(i).write(p) };
        written += 1;
    }
    unsafe { *count = written };
    OK
}

/// Functions of all three operations, which name x, w and y in orders of their own, the result last.
macro_rules! find {
    ($name:ident, $x:ident $w:ident $y:ident: $a:ident, $b:ident => $to:ident) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            _: *mut Handle,
            $a: *const Array,
            _: *const c_void,
            $b: *const Array,
            _: *const c_void,
            conv: *const Convolution,
            $to: *const Array,
            _: *mut c_void,
            asked: c_int,
            count: *mut c_int,
            to: *mut Perf,
            scratch: usize,
            room: usize,
        ) -> c_int {
            unsafe {
                let problem = Problem::new($x, $w, $y, conv);
                offer(problem, (scratch, room), asked, count, to)
            }
        }
    };
}

find!(cudnnFindConvolutionForwardAlgorithmEx, x w y: x, w => y);
find!(cudnnFindConvolutionBackwardDataAlgorithmEx, x w y: w, y => x);
find!(cudnnFindConvolutionBackwardFilterAlgorithmEx, x w y: x, y => w);

unsafe fn size(problem: Result<Problem, c_int>, bytes: *mut usize) -> c_int {
    unsafe { *bytes = SCRATCH };
    problem.map_or_else(|code| code, |_| OK)
}

macro_rules! scratch_size {
    ($name:ident, $x:ident $w:ident $y:ident: $a:ident, $b:ident => $to:ident) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            _: *mut Handle,
            $a: *const Array,
            $b: *const Array,
            conv: *const Convolution,
            $to: *const Array,
            _: c_int,
            bytes: *mut usize,
        ) -> c_int {
            unsafe { size(Problem::new($x, $w, $y, conv), bytes) }
        }
    };
}

scratch_size!(cudnnGetConvolutionForwardWorkspaceSize, x w y: x, w => y);
scratch_size!(cudnnGetConvolutionBackwardDataWorkspaceSize, x w y: w, y => x);
scratch_size!(cudnnGetConvolutionBackwardFilterWorkspaceSize, x w y: x, y => w);

/// The places come as an expression of those of the arguments.
macro_rules! convolve {
    (
        $name:ident, $out:expr, $x:ident $w:ident $y:ident:
        $a:ident $a_at:ident, $b:ident $b_at:ident => $to:ident $to_at:ident, $places:expr
    ) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            handle: *mut Handle,
            alpha: *const f32,
            $a: *const Array,
            $a_at: usize,
            $b: *const Array,
            $b_at: usize,
            conv: *const Convolution,
            algorithm: c_int,
            scratch: usize,
            room: usize,
            beta: *const f32,
            $to: *const Array,
            $to_at: usize,
        ) -> c_int {
            let (scratch, scalars) = ((scratch, room), [alpha, beta]);
            unsafe {
                let problem = Problem::new($x, $w, $y, conv);
                run(handle, problem, $places, $out, algorithm, scratch, scalars)
            }
        }
    };
}

convolve!(
    cudnnConvolutionForward, Out::Y, x w y:
    x at_x, w at_w => y at_y, [at_x, at_w, at_y, 0]
);
convolve!(
    cudnnConvolutionBackwardData, Out::X, x w y:
    w at_w, y at_y => x at_x, [at_x, at_w, at_y, 0]
);
convolve!(
    cudnnConvolutionBackwardFilter, Out::W, x w y:
    x at_x, y at_y => w at_w, [at_x, at_w, at_y, 0]
);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnConvolutionBiasActivationForward(
    handle: *mut Handle,
    alpha: *const f32,
    x: *const Array,
    x_at: usize,
    w: *const Array,
    w_at: usize,
    conv: *const Convolution,
    algorithm: c_int,
    scratch: usize,
    room: usize,
    beta: *const f32,
    _: *const Array,
    _: usize,
    bias: *const Array,
    bias_at: usize,
    activation: *const c_int,
    y: *const Array,
    y_at: usize,
) -> c_int {
    let (at, scratch) = ([x_at, w_at, y_at, bias_at], (scratch, room));
    unsafe {
        // without an activation there is one algorithm alone
        if *activation != IDENTITY || algorithm != ALGORITHM {
            return NOT_SUPPORTED;
        }
        if (*bias).dims != [1, (*w).dims[0], 1, 1] || (*bias).dtype != (*x).dtype || bias_at == 0 {
            return BAD_PARAM;
        }
        let problem = Problem::new(x, w, y, conv);
        run(
            handle,
            problem,
            at,
            Out::Y,
            algorithm,
            scratch,
            [alpha, beta],
        )
    }
}
