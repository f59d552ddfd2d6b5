//! Normalisers, norm and clipping of a step's gradient, all of which stay on the device.

use super::super::flat;
use super::super::launch::cubes;
use super::super::loss::SUMS;
use super::super::loss::sums::tree;
use super::groups::{Groups, MODE, MOVES, MUON, RULE, Rule, SCALE, SKIPS, TURNS, group};
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Units of a cube.
const UNITS: usize = 256;
/// Vectors of a unit.
const PER_UNIT: usize = 8;
/// Largest finite float32.
const LARGEST: f32 = 3.402_823_5e38;

/// Numbers of a [`Status`].
pub const STATUS: usize = 8;

/// Sums of both heads' losses over the micro-batches of a step, by lanes, on the device.
#[derive(Debug, Clone)]
pub struct Totals {
    /// `[lanes, 8]` float32: numerators of boxes, classes and distances and target scores of the one-to-many head, then
    /// those of the one-to-one head.
    pub sums: CubeTensor,
}

impl Totals {
    /// Zeros.
    #[must_use]
    pub fn new(lanes: usize, device: &CubeDevice) -> Self {
        let zeros = vec![0.0f32; lanes * 2 * SUMS];
        let sums = flat::upload(device, &zeros, [lanes, 2 * SUMS], DType::F32);
        Self { sums }
    }

    /// Adds the `[lanes, 4]` sums of a head.
    ///
    /// # Panics
    /// If they are of another number of lanes.
    pub fn add(&self, of_head: CubeTensor, one_to_one: bool) {
        let numbers = self.sums.meta.num_elements() / 2;
        assert_eq!(of_head.meta.num_elements(), numbers, "sums of all lanes");
        add_kernel::launch(
            &self.sums.client,
            cubes(numbers.div_ceil(64)),
            CubeDim::new_1d(64),
            of_head.into_buffer_arg(),
            self.sums.clone().into_buffer_arg(),
            numbers as u32,
            if one_to_one { SUMS as u32 } else { 0 },
        );
    }
}

#[cube(launch)]
fn add_kernel(of_head: &[f32], totals: &mut [f32], numbers: u32, first: u32) {
    let i = ABSOLUTE_POS as u32;
    if i < numbers {
        let to = (i / 4 * 8 + first + i % 4) as usize;
        totals[to] += of_head[i as usize];
    }
}

/// What is known of a step before it is done, on the device.
#[derive(Debug, Clone)]
pub struct Status {
    /// `[8]` float32: norm of the scaled gradient before clipping, factor of clipping, 1 where norm and losses are finite,
    /// scale of the gradients of the one-to-many and of the one-to-one head, these heads' normalisers, 0.
    pub numbers: CubeTensor,
    /// `[groups, RULE]`
    pub(super) rules: CubeTensor,
}

/// Norm of `gradient` `[len]` (or `[1, len]`), the sum of numerators' gradients over all images of a step, times each
/// head's `factor / max(N, 1)`, N its sum of target scores in `totals`, those of the lanes of all ranks; and what the
/// step's kernels multiply it by, so that its norm is at most `bound`.
///
/// The gradient stays as it is. A norm or a total that is not finite makes the step do nothing but clear the gradient;
/// squares are float32, so that a norm beyond about 1e19 counts as infinite.
///
/// # Panics
/// If the gradient or the rules are not those of the groups.
#[must_use]
pub fn gradient_norm(
    gradient: &CubeTensor,
    groups: &Groups,
    rules: &[Rule],
    totals: &Totals,
    factor: f64,
    bound: f64,
) -> Status {
    assert_eq!(
        gradient.meta.num_elements(),
        groups.len,
        "gradient of all parameters"
    );
    let (device, client) = (&groups.device, groups.device.client());
    let floats = |n: usize| flat::empty(device, [n], DType::F32);
    let table = groups.table(rules);
    let lanes = totals.sums.shape().dims::<2>()[0];
    let scales = floats(STATUS);
    scales_kernel::launch(
        &client,
        CubeCount::Static(1, 1, 1),
        CubeDim::new_1d(2 * SUMS as u32),
        totals.sums.clone().into_buffer_arg(),
        scales.clone().into_buffer_arg(),
        factor as f32,
        lanes,
    );
    let size = groups.vector_size();
    let vectors = groups.len / size;
    let pieces = vectors.div_ceil(UNITS * PER_UNIT);
    let squares = floats(pieces);
    if pieces > 0 {
        squares_kernel::launch(
            &client,
            cubes(pieces),
            CubeDim::new_1d(UNITS as u32),
            size,
            gradient.clone().into_buffer_arg(),
            groups.words.clone().into_buffer_arg(),
            table.clone().into_buffer_arg(),
            scales.clone().into_buffer_arg(),
            squares.clone().into_buffer_arg(),
            vectors as u32,
            pieces as u32,
        );
    }
    let status = Status {
        numbers: floats(STATUS),
        rules: floats(groups.count * RULE),
    };
    finish_kernel::launch(
        &client,
        CubeCount::Static(1, 1, 1),
        CubeDim::new_1d(UNITS as u32),
        squares.into_buffer_arg(),
        scales.into_buffer_arg(),
        table.into_buffer_arg(),
        status.numbers.clone().into_buffer_arg(),
        status.rules.clone().into_buffer_arg(),
        pieces as u32,
        groups.count as u32,
        bound as f32,
    );
    status
}

/// Whether a number is neither infinite nor not a number, from its bits: shading languages may take all as finite.
#[cube]
fn is_finite(x: f32) -> bool {
    (x.to_bits() & 0x7f80_0000) != 0x7f80_0000
}

/// Scales and normalisers of both heads (places 3 to 6 of a status), and whether all totals are finite (place 2). A unit
/// for each column of the totals, whose lanes it adds in the lanes' tree.
#[cube(launch)]
fn scales_kernel(totals: &[f32], scales: &mut [f32], factor: f32, #[comptime] lanes: usize) {
    let columns = comptime!(2 * SUMS);
    let column = UNIT_POS as usize;
    let mut all = Shared::<[f32]>::new_slice(comptime!(lanes * 2 * SUMS));
    let mut odd = 0u32;
    for lane in 0..lanes {
        let v = totals[lane * columns + column];
        if !is_finite(v) {
            odd += 1;
        }
        all[lane * columns + column] = v;
    }
    let mut step = 1usize;
    while step < lanes {
        let mut lane = 0usize;
        while lane + step < lanes {
            let other = all[(lane + step) * columns + column];
            all[lane * columns + column] += other;
            lane += step * 2;
        }
        step *= 2;
    }
    let mut fine = Shared::<[u32]>::new_slice(columns);
    fine[column] = select(odd == 0, 1u32, 0u32);
    sync_cube();
    if UNIT_POS == 0 {
        let mut count = 0u32;
        for i in 0..columns {
            count += fine[i];
        }
        let many = all[comptime!(SUMS - 1)];
        let one = all[comptime!(2 * SUMS - 1)];
        scales[0] = 0.0f32;
        scales[1] = 0.0f32;
        scales[2] = select(count == comptime!(2 * SUMS as u32), 1.0f32, 0.0f32);
        scales[3] = factor / f32::max(many, 1.0f32);
        scales[4] = factor / f32::max(one, 1.0f32);
        scales[5] = many;
        scales[6] = one;
        scales[7] = 0.0f32;
    }
}

/// Sums of squares of pieces of the scaled gradient. A cube for each piece.
#[cube(launch)]
fn squares_kernel<N: Size>(
    gradient: &[Vector<f32, N>],
    words: &[u32],
    table: &[f32],
    scales: &[f32],
    squares: &mut [f32],
    vectors: u32,
    pieces: u32,
) {
    let piece = CUBE_POS as u32;
    if piece >= pieces {
        terminate!();
    }
    let size = N::value();
    let many = scales[3];
    let one = scales[4];
    let mut sum = 0.0f32;
    #[unroll]
    for step in 0..PER_UNIT {
        let v = piece * comptime!((UNITS * PER_UNIT) as u32)
            + comptime!((step * UNITS) as u32)
            + UNIT_POS;
        if v < vectors {
            let g = gradient[v as usize];
            #[unroll]
            for j in 0..size {
                let of = group(words, v as usize * size + j);
                let head = table[of * RULE + SCALE];
                let g = g.extract(j) * select(head > 0.5f32, one, many);
                sum += g * g;
            }
        }
    }
    let total = tree(sum, UNITS);
    if UNIT_POS == 0 {
        squares[piece as usize] = total;
    }
}

/// Status and rules of a step.
#[cube(launch)]
fn finish_kernel(
    squares: &[f32],
    scales: &[f32],
    table: &[f32],
    status: &mut [f32],
    rules: &mut [f32],
    pieces: u32,
    groups: u32,
    bound: f32,
) {
    let mut sum = 0.0f32;
    let mut i = UNIT_POS;
    while i < pieces {
        sum += squares[i as usize];
        i += comptime!(UNITS as u32);
    }
    let norm = f32::sqrt(tree(sum, UNITS));
    let clip = select(norm > bound, bound / (norm + 1e-6f32), 1.0f32);
    let fine = is_finite(norm) && norm <= LARGEST && scales[2] > 0.5f32;
    if UNIT_POS == 0 {
        status[0] = norm;
        status[1] = clip;
        status[2] = select(fine, 1.0f32, 0.0f32);
        #[unroll]
        for i in 3..STATUS {
            status[i] = scales[i];
        }
    }
    let mut of = UNIT_POS;
    while of < groups {
        let row = of as usize * RULE;
        #[unroll]
        for i in 0..RULE {
            rules[row + i] = table[row + i];
        }
        let head = table[row + SCALE];
        rules[row + SCALE] = select(head > 0.5f32, scales[4], scales[3]) * clip;
        if !fine {
            rules[row + MODE] = SKIPS;
            rules[row + MUON] = 0.0f32;
            rules[row + TURNS] = 0.0f32;
        } else {
            let mode = table[row + MODE];
            rules[row + MODE] = select(mode > 0.5f32, MOVES, mode);
        }
        of += comptime!(UNITS as u32);
    }
}
