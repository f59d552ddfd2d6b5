//! Rows of every rank, on every rank.

use burn::tensor::Tensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::tensor::values;
use crate::dist::device::DeviceGroup;
use crate::dist::error::DistError;
use crate::dist::group::{Call, ProcessGroup};
use crate::dist::tree::lanes_of;

/// Rows `[own lanes, k]` of every rank as `[lanes, k]`, in the order of ranks; the host does not wait. How many lanes there
/// are follows from this rank's where all have as many, otherwise ranks have the lanes that [`lanes_of`] gives.
///
/// # Errors
/// [`DistError::System`]: a tensor of another device; those of the collective.
pub fn gather_rows(
    group: &dyn ProcessGroup,
    gpus: &dyn DeviceGroup,
    call: Call,
    lanes: usize,
    own: CubeTensor,
) -> Result<CubeTensor, DistError> {
    let size = group.size();
    let own = Tensor::<2>::from_primitive::<CubeBackend>(own);
    let [rows, k] = own.dims();
    let held = |rank: usize| lanes_of(rank, size, lanes).len();
    let most = (0..size).map(held).max().unwrap_or(rows);
    let on = (&own.device(), own.dtype());
    let from = match most - rows {
        0 => own,
        missing => Tensor::cat(vec![own, Tensor::zeros([missing, k], on)], 0),
    };
    let all = Tensor::<2>::empty([size * most, k], on);
    let (own, to) = (values(&from)?, values(&all)?);
    gpus.all_gather(call, own, to).join_stream()?;
    let all = if size * most == lanes {
        all
    } else {
        let of_rank = |r: usize| all.clone().slice([r * most..r * most + held(r), 0..k]);
        Tensor::cat((0..size).map(of_rank).collect(), 0)
    };
    all.try_into_primitive::<CubeBackend>()
        .map_err(|e| DistError::system("gather rows of ranks", format!("{e:?}")))
}
