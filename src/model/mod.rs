//! Networks: layers, head, names and weights. Knows nothing of ranks, data or losses.

mod blocks;
pub mod freeze;
mod head;
pub mod init;
pub mod layout;
mod network;
mod tensors;
pub mod transfer;
pub mod weights;

pub use head::{HeadOutput, Heads};
pub use layout::{ClassPart, HeadOf, Layout, ParamKind};
pub use network::{LayerRow, Network, Output};
pub use tensors::{Collected, Tensors};

#[cfg(all(test, feature = "gpu"))]
mod gpu_tests;
