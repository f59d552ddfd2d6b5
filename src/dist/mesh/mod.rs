//! Collectives over streams between ranks: one implementation for every engine that can send bytes.

#[cfg(feature = "cuda")]
mod announce;
mod exchange;
mod executor;
mod group;
mod header;
pub(crate) mod link;
mod reduce;
pub(crate) mod shared;
mod wire;

#[cfg(feature = "cuda")]
pub(crate) use announce::Announced;
pub(crate) use group::Mesh;
#[cfg(feature = "cuda")]
pub(crate) use group::MeshGroup;
pub(crate) use reduce::sum_lanes;

/// Kind, type and length of some work, for people.
pub(crate) fn describe(work: &super::Work, name: &str) -> String {
    header::Header::of(work, name).what()
}
