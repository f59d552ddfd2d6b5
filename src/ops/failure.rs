//! What goes wrong on a device that computes beside the host.

/// Why a device did not do its work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceFailure {
    /// An allocation failed.
    #[error("the GPU has not enough memory: {0}")]
    Memory(String),
    /// The driver or a kernel failed.
    #[error("the GPU failed: {0}")]
    Other(String),
}
