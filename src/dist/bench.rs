//! Latency and bandwidth of collectives.

use std::time::Instant;

use super::buffer::{Buffer, DType, ReduceOp};
use super::error::DistError;
use super::group::{Call, Partials, ProcessGroup, Work};
use super::handle::Output;
use super::tree::{lanes_of, nodes};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measured {
    AllReduce,
    /// With 4 lanes, or as many as ranks where those are more; each rank's are already summed.
    AllReduceTree,
}

impl Measured {
    pub const ALL: [Measured; 2] = [Measured::AllReduce, Measured::AllReduceTree];

    /// As the method of the group.
    pub fn name(self) -> &'static str {
        match self {
            Measured::AllReduce => "all_reduce",
            Measured::AllReduceTree => "all_reduce_tree",
        }
    }
}

/// Times of one size, of the rank that asks.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub measured: Measured,
    pub bytes: usize,
    pub repeats: usize,
    /// Seconds of one collective.
    pub best: f64,
    pub median: f64,
}

impl Row {
    /// Bytes of the values over the median time, in GB/s.
    pub fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.median / 1e9
    }
}

/// 1 KiB to 64 MiB, and 10 MiB.
pub const SIZES: [usize; 10] = [
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    10 << 20,
    16 << 20,
    64 << 20,
];

/// Measures float32 sums of `sizes` bytes; every rank calls it with the same arguments. The small ones go through the
/// latency channel, from 256 KiB through the bulk channel. The first sum and every sixteenth is compared with what it has
/// to be.
///
/// # Errors
/// Those of the collectives; [`DistError::System`] where a sum is wrong.
pub fn measure(
    group: &dyn ProcessGroup,
    measured: Measured,
    sizes: &[usize],
) -> Result<Vec<Row>, DistError> {
    let (rank, size) = (group.rank(), group.size());
    // How often each rank's values are in the sum.
    let times = |rank| match measured {
        Measured::AllReduce => 1,
        Measured::AllReduceTree => parts(rank, size),
    };
    let all: usize = (0..size).map(|rank| times(rank) * (rank + 1)).sum();
    let mut rows = Vec::new();
    for &bytes in sizes {
        let len = bytes / 4;
        // About as much data for each size, and enough repeats for a median.
        let repeats = ((256 << 20) / bytes.max(1)).clamp(10, 1000);
        let mut buffer = Buffer::F32(pattern(len, rank + 1).collect());
        let mut times = Vec::with_capacity(repeats);
        for repeat in 0..repeats + repeats / 10 + 1 {
            let call = || {
                if bytes < 256 << 10 {
                    Call::latency("bench")
                } else {
                    Call::bulk("bench")
                }
            };
            // Sums must not run away to infinity.
            if repeat % 16 == 0
                && repeat > 0
                && let Buffer::F32(values) = &mut buffer
            {
                let fresh = pattern(len, rank + 1);
                values.iter_mut().zip(fresh).for_each(|(v, f)| *v = f);
            }
            group.run(call(), Work::Barrier)?;
            let work = match measured {
                Measured::AllReduce => Work::AllReduce(ReduceOp::Sum, buffer),
                Measured::AllReduceTree => Work::AllReduceTree(partials(group, buffer)),
            };
            let start = Instant::now();
            let Output::One(sum) = group.run(call(), work)? else {
                unreachable!("an all-reduce gives one");
            };
            let time = start.elapsed().as_secs_f64();
            if repeat % 16 == 0
                && let Buffer::F32(values) = &sum
                && !values.iter().copied().eq(pattern(len, all))
            {
                return Err(DistError::System {
                    what: "measure collectives".into(),
                    reason: format!("a sum of {bytes} bytes is wrong"),
                });
            }
            buffer = sum;
            if repeat > repeats / 10 {
                times.push(time);
            }
        }
        times.sort_by(f64::total_cmp);
        rows.push(Row {
            measured,
            bytes,
            repeats,
            best: times[0],
            median: times[times.len() / 2],
        });
    }
    Ok(rows)
}

/// Small numbers that differ by place, `factor` times: sums of them are exact.
fn pattern(len: usize, factor: usize) -> impl Iterator<Item = f32> {
    (0..len).map(move |i| (i % 97) as f32 * factor as f32)
}

fn lanes(size: usize) -> usize {
    size.max(4)
}

/// Partial sums of a rank.
fn parts(rank: usize, size: usize) -> usize {
    nodes(lanes(size), lanes_of(rank, size, lanes(size))).len()
}

fn partials(group: &dyn ProcessGroup, buffer: Buffer) -> Partials {
    let count = parts(group.rank(), group.size());
    let (dtype, len): (DType, usize) = (buffer.dtype(), buffer.len());
    let mut parts: Vec<_> = (1..count).map(|_| Some(buffer.clone())).collect();
    parts.push(Some(buffer));
    Partials::by_subtree(lanes(group.size()), dtype, len, parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::tcp::Transport;
    use crate::dist::testing::threads;

    #[test]
    fn sums_of_any_number_of_ranks_are_what_is_expected_of_them() {
        for size in [1, 2, 3, 5] {
            threads(size, Transport::Auto, |group| {
                for measured in Measured::ALL {
                    let rows = measure(group, measured, &[4, 65_536]).unwrap();
                    assert!(rows.iter().all(|r| 0.0 < r.best && r.best <= r.median));
                }
            });
        }
    }
}
