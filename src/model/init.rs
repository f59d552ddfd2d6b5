//! Starting values: a pure function of (seed, name of the parameter, index).

use super::layout::{Init, Layout};
use super::network::Network;

/// Momentum of running statistics.
pub const NORM_MOMENTUM: f64 = 0.03;

/// Flat parameters and running statistics of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    pub params: Vec<f32>,
    /// Running means and variances.
    pub buffers: Vec<f32>,
    /// Optimizer steps' forward passes that updated the statistics (`num_batches_tracked`).
    pub batches_tracked: u64,
}

/// FNV-1a, to turn a name into a stream of random numbers.
#[must_use]
pub fn hash_name(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// SplitMix64 (Steele et al. 2014) of a counter: number `index` of stream `stream`, uniform in [0, 1).
#[must_use]
pub fn uniform(stream: u64, index: u64) -> f64 {
    let mut z = stream.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (z >> 11) as f64 / (1u64 << 53) as f64
}

/// Starting values for `seed`. Both heads start equal, as in the published networks.
#[must_use]
pub fn init(network: &Network, seed: u64) -> State {
    State {
        params: params(&network.layout, seed),
        buffers: buffers(&network.layout),
        batches_tracked: 0,
    }
}

fn params(layout: &Layout, seed: u64) -> Vec<f32> {
    let mut out = vec![0.0; layout.param_len];
    for p in &layout.params {
        let values = &mut out[p.range()];
        match p.init {
            Init::Fill(v) => values.fill(v),
            Init::Arange => values
                .iter_mut()
                .enumerate()
                .for_each(|(i, v)| *v = i as f32),
            Init::Uniform { fan_in } => {
                let bound = 1.0 / (fan_in as f64).sqrt();
                let stream =
                    hash_name(&p.name.replace("one2one_", "")) ^ uniform(seed, 0).to_bits();
                for (i, v) in values.iter_mut().enumerate() {
                    *v = ((2.0 * uniform(stream, i as u64) - 1.0) * bound) as f32;
                }
            }
        }
    }
    out
}

fn buffers(layout: &Layout) -> Vec<f32> {
    let mut out = vec![0.0; layout.buffer_len];
    for n in &layout.norms {
        out[n.var()].fill(1.0);
    }
    out
}
