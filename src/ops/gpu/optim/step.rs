//! SGD and AdamW over flat memory, with the average of the parameters and the clearing of the gradient in the same pass:
//! the arithmetic of [`crate::train::flat`].

use super::super::launch::cubes;
use super::groups::{DECAY, FIXED, Groups, MODE, MOVES, RATE, RULE, SCALE, group};
use super::norm::Status;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Units of a cube.
const UNITS: usize = 256;

/// What a step changes, `[len]` float32 each, in place: whoever shares their memory sees it.
#[derive(Debug, Clone, Copy)]
pub struct Flat<'a> {
    pub params: &'a CubeTensor,
    /// Averaged parameters.
    pub average: &'a CubeTensor,
    /// Summed numerators; zeros afterwards, ready for the next window.
    pub gradient: &'a CubeTensor,
}

impl Flat<'_> {
    fn check(&self, groups: &Groups, state: &[&CubeTensor]) {
        let arrays = [self.params, self.average, self.gradient];
        for t in arrays.iter().chain(state) {
            assert_eq!(
                t.meta.num_elements(),
                groups.len,
                "flat memory of all parameters"
            );
        }
    }
}

/// Stochastic gradient descent with Nesterov momentum; `first` is the momentum's state.
///
/// # Panics
/// If something has not the groups' length.
pub fn sgd(
    groups: &Groups,
    status: &Status,
    flat: Flat,
    first: &CubeTensor,
    momentum: f64,
    average_decay: f64,
) {
    flat.check(groups, &[first]);
    let size = groups.vector_size();
    let vectors = groups.len / size;
    if vectors == 0 {
        return;
    }
    sgd_kernel::launch(
        &groups.device.client(),
        cubes(vectors.div_ceil(UNITS)),
        CubeDim::new_1d(UNITS as u32),
        size,
        flat.params.clone().into_buffer_arg(),
        flat.average.clone().into_buffer_arg(),
        flat.gradient.clone().into_buffer_arg(),
        first.clone().into_buffer_arg(),
        groups.words.clone().into_buffer_arg(),
        status.rules.clone().into_buffer_arg(),
        vectors as u32,
        momentum as f32,
        average_decay as f32,
        (1.0 - average_decay) as f32,
    );
}

#[cube(launch)]
fn sgd_kernel<N: Size>(
    params: &mut [Vector<f32, N>],
    average: &mut [Vector<f32, N>],
    gradient: &mut [Vector<f32, N>],
    first: &mut [Vector<f32, N>],
    words: &[u32],
    rules: &[f32],
    vectors: u32,
    momentum: f32,
    d: f32,
    e: f32,
) {
    let at = ABSOLUTE_POS;
    if at >= vectors as usize {
        terminate!();
    }
    let size = N::value();
    let grads = gradient[at];
    let mut ws = params[at];
    let mut avs = average[at];
    let mut ms = first[at];
    #[unroll]
    for j in 0..size {
        let row = group(words, at * size + j) * RULE;
        let mode = rules[row + MODE];
        let w = ws.extract(j);
        if mode == MOVES {
            let g = grads.extract(j) * rules[row + SCALE] + rules[row + DECAY] * w;
            let m = momentum * ms.extract(j) + g;
            let moved = w - rules[row + RATE] * (g + momentum * m);
            ms.insert(j, m);
            ws.insert(j, moved);
            avs.insert(j, d * avs.extract(j) + e * moved);
        } else if mode == FIXED {
            avs.insert(j, w);
        }
    }
    params[at] = ws;
    average[at] = avs;
    first[at] = ms;
    gradient[at] = Vector::zeroed();
}

/// Constants of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    /// Square root of `1 - beta2^t` for step t.
    pub root: f64,
}

/// Adam with decoupled decay; the rules' rates are divided by `1 - beta1^t`, their decays are `1 - lr decay`.
///
/// # Panics
/// If something has not the groups' length.
pub fn adamw(
    groups: &Groups,
    status: &Status,
    flat: Flat,
    first: &CubeTensor,
    second: &CubeTensor,
    adam: Adam,
    average_decay: f64,
) {
    flat.check(groups, &[first, second]);
    let size = groups.vector_size();
    let vectors = groups.len / size;
    if vectors == 0 {
        return;
    }
    adamw_kernel::launch(
        &groups.device.client(),
        cubes(vectors.div_ceil(UNITS)),
        CubeDim::new_1d(UNITS as u32),
        size,
        flat.params.clone().into_buffer_arg(),
        flat.average.clone().into_buffer_arg(),
        flat.gradient.clone().into_buffer_arg(),
        first.clone().into_buffer_arg(),
        second.clone().into_buffer_arg(),
        groups.words.clone().into_buffer_arg(),
        status.rules.clone().into_buffer_arg(),
        vectors as u32,
        adam.beta1 as f32,
        adam.beta2 as f32,
        1.0 - adam.beta1 as f32,
        1.0 - adam.beta2 as f32,
        adam.root as f32,
        adam.eps as f32,
        average_decay as f32,
        (1.0 - average_decay) as f32,
    );
}

#[cube(launch)]
fn adamw_kernel<N: Size>(
    params: &mut [Vector<f32, N>],
    average: &mut [Vector<f32, N>],
    gradient: &mut [Vector<f32, N>],
    first: &mut [Vector<f32, N>],
    second: &mut [Vector<f32, N>],
    words: &[u32],
    rules: &[f32],
    vectors: u32,
    b1: f32,
    b2: f32,
    rest1: f32,
    rest2: f32,
    root: f32,
    eps: f32,
    d: f32,
    e: f32,
) {
    let at = ABSOLUTE_POS;
    if at >= vectors as usize {
        terminate!();
    }
    let size = N::value();
    let grads = gradient[at];
    let mut ws = params[at];
    let mut avs = average[at];
    let mut ms = first[at];
    let mut vs = second[at];
    #[unroll]
    for j in 0..size {
        let row = group(words, at * size + j) * RULE;
        let mode = rules[row + MODE];
        let w = ws.extract(j);
        if mode == MOVES {
            let g = grads.extract(j) * rules[row + SCALE];
            let m = b1 * ms.extract(j) + rest1 * g;
            let v = b2 * vs.extract(j) + rest2 * g * g;
            let moved =
                w * rules[row + DECAY] - rules[row + RATE] * m / (f32::sqrt(v) / root + eps);
            ms.insert(j, m);
            vs.insert(j, v);
            ws.insert(j, moved);
            avs.insert(j, d * avs.extract(j) + e * moved);
        } else if mode == FIXED {
            avs.insert(j, w);
        }
    }
    params[at] = ws;
    average[at] = avs;
    first[at] = ms;
    second[at] = vs;
    gradient[at] = Vector::zeroed();
}

/// `average = d average + (1 - d) values` of running statistics, where the step's gradient was finite; statistics whose
/// byte in `frozen` is 1 are copied: the average of equal numbers is theirs only to rounding.
///
/// # Panics
/// If something has not the length of `frozen`.
pub fn blend_statistics(
    frozen: &Groups,
    status: &Status,
    average: &CubeTensor,
    values: &CubeTensor,
    average_decay: f64,
) {
    for t in [average, values] {
        assert_eq!(t.meta.num_elements(), frozen.len, "running statistics");
    }
    if frozen.len == 0 {
        return;
    }
    blend_kernel::launch(
        &frozen.device.client(),
        cubes(frozen.len.div_ceil(UNITS)),
        CubeDim::new_1d(UNITS as u32),
        average.clone().into_buffer_arg(),
        values.clone().into_buffer_arg(),
        frozen.words.clone().into_buffer_arg(),
        status.numbers.clone().into_buffer_arg(),
        frozen.len as u32,
        average_decay as f32,
        (1.0 - average_decay) as f32,
    );
}

#[cube(launch)]
fn blend_kernel(
    average: &mut [f32],
    values: &[f32],
    frozen: &[u32],
    status: &[f32],
    len: u32,
    d: f32,
    e: f32,
) {
    let at = ABSOLUTE_POS;
    if at < len as usize && status[2] > 0.5f32 {
        let v = values[at];
        let mixed = d * average[at] + e * v;
        average[at] = select(group(frozen, at) == 1, v, mixed);
    }
}
