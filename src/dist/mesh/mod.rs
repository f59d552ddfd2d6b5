//! Collectives over streams between ranks: one implementation for every engine that can send bytes.

mod exchange;
mod executor;
mod group;
mod header;
pub(crate) mod link;
mod reduce;
pub(crate) mod shared;
mod wire;

pub(crate) use group::Mesh;
#[cfg(feature = "cuda")]
pub(crate) use group::{Announced, MeshGroup};
pub(crate) use reduce::sum_lanes;

/// Kind, type and length of some work, for people.
pub(crate) fn describe(work: &super::Work, name: &str) -> String {
    header::Header::of(work, name).what()
}
