//! Sums over lanes of tensors on GPUs, in the order of [`crate::dist::tree`]: the same bits whatever the number of ranks
//! (`--deterministic`).
//!
//! Each rank adds up one part of the elements: it gets this part of all partial sums, and gives the result to all.
//! Two transfers move as much as a ring does.

use burn::tensor::Tensor;

use super::tensor::values;
use crate::dist::device::DeviceGroup;
use crate::dist::error::DistError;
use crate::dist::group::{Call, ProcessGroup};
use crate::dist::tree::{Order, lanes_of, nodes};

/// How the elements are cut over ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cut {
    size: usize,
    lanes: usize,
    /// Elements of a partial sum.
    len: usize,
}

impl Cut {
    /// Elements that a rank adds up; the last ones of the last rank may be padding.
    fn part(self) -> usize {
        self.len.div_ceil(self.size)
    }

    /// Partial sums of a rank.
    fn sums(self, rank: usize) -> usize {
        nodes(self.lanes, lanes_of(rank, self.size, self.lanes)).len()
    }

    /// The largest number of partial sums that a rank has: messages are of one length.
    fn most(self) -> usize {
        (0..self.size).map(|r| self.sums(r)).max().unwrap_or(0)
    }

    /// What this rank sends: for each rank its part of each partial sum.
    fn outgoing(self, sums: &[Tensor<1>]) -> Tensor<1> {
        let (size, part, most) = (self.size, self.part(), self.most());
        let device = sums[0].device();
        let dtype = sums[0].dtype();
        let zeros = |len: usize| Tensor::<1>::zeros([len], (&device, dtype));
        let padding = size * part - self.len;
        let mut rows: Vec<Tensor<2>> = sums
            .iter()
            .map(|sum| match padding {
                0 => sum.clone().reshape([size, part]),
                _ => Tensor::cat(vec![sum.clone(), zeros(padding)], 0).reshape([size, part]),
            })
            .collect();
        rows.resize_with(most, || zeros(size * part).reshape([size, part]));
        Tensor::cat(rows, 1).reshape([size * most * part])
    }

    /// The sum of what has come: `[rank][partial sum][element]`.
    fn added_up(self, incoming: Tensor<1>) -> Tensor<1> {
        let (part, most) = (self.part(), self.most());
        let mut subtrees = vec![];
        let mut leaves = vec![];
        for rank in 0..self.size {
            let own = nodes(self.lanes, lanes_of(rank, self.size, self.lanes));
            for (i, node) in own.into_iter().enumerate() {
                let at = (rank * most + i) * part;
                subtrees.push(node);
                leaves.push(incoming.clone().slice([at..at + part]));
            }
        }
        let order = Order::new(0..self.lanes, &subtrees);
        let sum = order.fold(leaves, |a, b| a + b);
        sum.expect("every rank has a lane")
    }
}

/// The sum over the lanes of all ranks, for every rank. `sums` `[n]` each: of the largest whole subtrees that this rank's
/// lanes make up ([`nodes`]), in order, added up already; lanes without images are zeros. The host does not wait.
///
/// # Errors
/// [`DistError::Arguments`]: another number of sums; [`DistError::System`]: tensors of another device; those of the collectives.
pub fn all_reduce_tree(
    group: &dyn ProcessGroup,
    gpus: &dyn DeviceGroup,
    call: &Call,
    lanes: usize,
    sums: Vec<Tensor<1>>,
) -> Result<Tensor<1>, DistError> {
    let (rank, size) = (group.rank(), group.size());
    let len = sums.first().map_or(0, |sum| sum.dims()[0]);
    let cut = Cut { size, lanes, len };
    if lanes < size || sums.len() != cut.sums(rank) || sums.iter().any(|s| s.dims()[0] != len) {
        return Err(DistError::system(
            format!("add up {:?} over {lanes} lanes", call.name),
            format!(
                "{} partial sums do not fit rank {rank} of {size}",
                sums.len()
            ),
        ));
    }
    if len == 0 {
        return Ok(sums.into_iter().next().expect("every rank has a lane"));
    }
    let named = |what: &str| Call {
        name: format!("{}, {what}", call.name).into(),
        ..call.clone()
    };
    let outgoing = cut.outgoing(&sums);
    drop(sums);
    let incoming = Tensor::empty(outgoing.dims(), (&outgoing.device(), outgoing.dtype()));
    let (from, to) = (values(&outgoing)?, values(&incoming)?);
    gpus.all_to_all(named("lanes"), from, to).join_stream()?;
    let own = cut.added_up(incoming);
    let part = cut.part();
    let all = Tensor::<1>::empty([size * part], (&own.device(), own.dtype()));
    let (from, to) = (values(&own)?, values(&all)?);
    gpus.all_gather(named("sums"), from, to).join_stream()?;
    Ok(match size * part == len {
        true => all,
        false => all.slice([0..len]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::lanes::tree_sum;
    use burn::tensor::{Device, TensorData};

    /// What the ranks exchange, between tensors of the CPU.
    #[test]
    fn the_bits_are_those_of_one_rank_however_many_there_are() {
        let device = Device::flex();
        let len = 1001;
        let value =
            |lane: usize, i: usize| ((lane * 7919 + i * 104_729) % 10_007) as f32 / 7.0 - 700.0;
        for (lanes, size) in [(4, 1), (4, 2), (4, 3), (4, 4), (6, 2), (7, 5)] {
            let lane = |l: usize| -> Vec<f32> { (0..len).map(|i| value(l, i)).collect() };
            let all: Vec<Vec<f32>> = (0..lanes).map(lane).collect();
            let sum_of = |lanes: std::ops::Range<usize>| -> Vec<f32> {
                let views: Vec<Option<&[f32]>> = all[lanes].iter().map(|v| Some(&v[..])).collect();
                let mut sum = vec![0.0; len];
                tree_sum(&views, &mut sum);
                sum
            };
            let tensor = |v: Vec<f32>| Tensor::<1>::from_data(TensorData::new(v, [len]), &device);
            let cut = Cut { size, lanes, len };
            let outgoing: Vec<Tensor<1>> = (0..size)
                .map(|r| {
                    let own = nodes(lanes, lanes_of(r, size, lanes));
                    let sums: Vec<_> = own.into_iter().map(|n| tensor(sum_of(n))).collect();
                    cut.outgoing(&sums)
                })
                .collect();
            let message = cut.most() * cut.part();
            let parts: Vec<Tensor<1>> = (0..size)
                .map(|r| {
                    let own = outgoing
                        .iter()
                        .map(|o| o.clone().slice([r * message..(r + 1) * message]));
                    cut.added_up(Tensor::cat(own.collect(), 0))
                })
                .collect();
            let got = Tensor::cat(parts, 0).slice([0..len]).into_data();
            let expected = sum_of(0..lanes);
            assert_eq!(
                got.as_slice::<f32>().unwrap(),
                &expected[..],
                "{size} ranks, {lanes} lanes"
            );
        }
    }
}
