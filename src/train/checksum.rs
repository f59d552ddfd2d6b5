//! Do all ranks still have the same parameters? They must, to the last bit.

use super::error::TrainError;
use crate::dist::{Buffer, Call, ProcessGroup};
use crate::model::Layout;
use crate::model::init::State;

/// Optimizer steps between two comparisons.
pub const STEPS: u64 = 100;

/// FNV-1a over the values' bits, one value at a time.
fn checksum(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |h, v| {
        (h ^ u64::from(v.to_bits())).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A sum for each parameter and for the statistics of each norm, with their names.
fn sums(layout: &Layout, state: &State) -> Vec<u64> {
    let params = layout.params.iter().map(|p| &state.params[p.range()]);
    let norms = layout.norms.iter();
    let norms = norms.map(|n| &state.buffers[n.mean().start..n.var().end]);
    params.chain(norms).map(checksum).collect()
}

/// Compares the live weights and their average over all ranks.
///
/// # Errors
/// [`TrainError::Diverged`], the same on every rank: the first rank and tensor that differ from rank 0's.
pub fn compare(
    group: &dyn ProcessGroup,
    layout: &Layout,
    states: [(&'static str, &State); 2],
    step: u64,
) -> Result<(), TrainError> {
    let own: Vec<u64> = states.iter().flat_map(|(_, s)| sums(layout, s)).collect();
    let call = Call::latency("checksum of parameters");
    let all = group.all_gather(call, Buffer::U64(own)).wait()?;
    let all: Vec<Vec<u64>> = all.into_iter().filter_map(Buffer::into_vec).collect();
    let count = layout.params.len() + layout.norms.len();
    for (rank, sums) in all.iter().enumerate() {
        if let Some(i) = sums.iter().zip(&all[0]).position(|(a, b)| a != b) {
            let (which, tensor) = (states[i / count].0, i % count);
            let name = match tensor.checked_sub(layout.params.len()) {
                None => &layout.params[tensor].name,
                Some(norm) => &layout.norms[norm].name,
            };
            return Err(TrainError::Diverged {
                rank,
                tensor: format!("{which} {name}"),
                step,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::ModelSpec;
    use crate::dist::tcp::Transport;
    use crate::dist::testing::threads;
    use crate::model::{Network, init};

    #[test]
    fn one_bit_of_one_rank_is_found_with_its_tensor() {
        let network = Network::new(ModelSpec::resolve("yolo26n").unwrap(), 2);
        let layout = &network.layout;
        let ends = threads(3, Transport::Auto, |group| {
            let mut state = init::init(&network, 0);
            let average = state.clone();
            let found = |state: &State| {
                compare(
                    group,
                    layout,
                    [("weights", state), ("average", &average)],
                    100,
                )
            };
            found(&state).unwrap();
            let at = layout.params[5].offset + 1;
            if group.rank() == 2 {
                state.params[at] = f32::from_bits(state.params[at].to_bits() ^ 1);
            }
            let of_param = found(&state).unwrap_err().to_string();
            let mut state = average.clone();
            if group.rank() == 1 {
                state.buffers[layout.norms[3].var().start] += 1.0;
            }
            (of_param, found(&state).unwrap_err().to_string())
        });
        for (param, norm) in ends {
            let name = &layout.params[5].name;
            assert!(param.contains("rank 2") && param.contains(name), "{param}");
            assert!(param.contains("step 100"), "{param}");
            let name = &layout.norms[3].name;
            assert!(norm.contains("rank 1") && norm.contains(name), "{norm}");
        }
    }
}
