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
/// latency channel, from 256 KiB through the bulk channel.
///
/// # Errors
/// Those of the collectives.
pub fn measure(
    group: &dyn ProcessGroup,
    measured: Measured,
    sizes: &[usize],
) -> Result<Vec<Row>, DistError> {
    let mut rows = Vec::new();
    for &bytes in sizes {
        let len = bytes / 4;
        // About as much data for each size, and enough repeats for a median.
        let repeats = ((256 << 20) / bytes.max(1)).clamp(10, 1000);
        let mut buffer = Buffer::F32((0..len).map(|i| (i % 97) as f32 * 0.25).collect());
        let mut times = Vec::with_capacity(repeats);
        for repeat in 0..repeats + repeats / 10 + 1 {
            let call = || {
                if bytes < 256 << 10 {
                    Call::latency("bench")
                } else {
                    Call::bulk("bench")
                }
            };
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
            buffer = sum;
            // Sums must not run away to infinity.
            if repeat % 16 == 15
                && let Buffer::F32(values) = &mut buffer
            {
                values.fill(1.0);
            }
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

fn partials(group: &dyn ProcessGroup, buffer: Buffer) -> Partials {
    let lanes = group.size().max(4);
    let count = nodes(lanes, lanes_of(group.rank(), group.size(), lanes)).len();
    let (dtype, len): (DType, usize) = (buffer.dtype(), buffer.len());
    let mut parts: Vec<_> = (1..count).map(|_| Some(buffer.clone())).collect();
    parts.push(Some(buffer));
    Partials::by_subtree(lanes, dtype, len, parts)
}
