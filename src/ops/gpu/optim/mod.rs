//! The end of a step over flat memory on the device: norm of the gradient, optimizer, average.
//!
//! The host gives rates and factors; what depends on the data (normalisers, norm, whether all is finite) stays on the
//! device: [`gradient_norm`] makes of both the rules that the kernels of [`sgd`], [`adamw`] and [`muon`] read.

mod groups;
pub mod muon;
// kernels have no `copy_from_slice`
#[allow(clippy::manual_memcpy)]
mod norm;
mod step;

pub use groups::{Groups, MOST_GROUPS, Rule};
pub use norm::{STATUS, Status, Totals, gradient_norm};
pub use step::{Adam, Flat, adamw, blend_statistics, sgd};

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

/// A copy of flat parameters in the type that a network computes in.
#[must_use]
pub fn cast(params: &CubeTensor, dtype: DType) -> CubeTensor {
    burn_cubecl::kernel::cast(params.clone(), dtype)
}
