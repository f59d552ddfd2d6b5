//! Ranks: processes (or, in tests, threads) that train together.
//!
//! - [`ProcessGroup`] is all that the rest of the program sees: collectives with a label, a deadline and a channel,
//!   asynchronous with a [`Handle`]. Engines: [`Single`], [`tcp`] (built in), `mpi` and `nccl` (features).
//! - [`tree`] is the order of every sum over lanes; [`ProcessGroup::all_reduce_tree`] gives the same bits whatever the
//!   number of ranks.
//! - [`agree()`] tells every rank how the others' part of some work ended.
//! - [`ProcessGroup::beat`] says that long work goes on: a rank that beats is waited for beyond the deadline, one that
//!   neither arrives nor beats is named with its last place.
//! - [`store`] is where ranks meet, [`handshake`] compares what they are about to do, [`launch`] starts processes.
//!
//! ```
//! use yolo_train::dist::{Buffer, Call, DType, Partials, ProcessGroup, ReduceOp, Single};
//!
//! # fn main() -> Result<(), yolo_train::dist::DistError> {
//! let group: &dyn ProcessGroup = &Single::new();
//! // A bucket of gradients, summed while the caller goes on. This rank holds all four lanes, already added up.
//! let bucket = Buffer::F32(vec![0.5; 1000]);
//! let partials = Partials::by_subtree(4, DType::F32, 1000, [Some(bucket)]);
//! let bucket = group.all_reduce_tree(Call::bulk("bucket 0"), partials);
//! // Meanwhile, on the other channel: boxes per lane, of which the third has no image.
//! let boxes = [Some(vec![3.0].into()), Some(vec![1.0].into()), None, Some(vec![5.0].into())];
//! let boxes = Partials::by_lane(4, DType::F64, 1, boxes);
//! let boxes = group.all_reduce_tree(Call::latency("boxes"), boxes).wait()?;
//! assert_eq!(boxes, Buffer::F64(vec![9.0]));
//! assert_eq!(bucket.wait()?, Buffer::F32(vec![0.5; 1000]));
//! # Ok(())
//! # }
//! ```
//!
//! Order of reading: `group.rs`, `tree.rs`, `mesh/reduce.rs`, `mesh/executor.rs`, `tcp/connect.rs`.

mod agree;
pub mod bench;
mod buffer;
#[cfg(feature = "cuda")]
pub mod device;
mod error;
mod frame;
mod group;
mod handle;
mod handshake;
pub mod launch;
pub mod launcher;
mod log;
pub mod master;
mod mesh;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "cuda")]
pub mod nccl;
mod ranks;
mod single;
pub mod store;
pub mod tcp;
pub mod testing;
pub mod tree;

pub use agree::{Agreement, Report, agree};
pub use buffer::{Buffer, DType, Element, ReduceOp};
pub use error::{Collective, DistError};
pub use group::{Call, Channel, Partials, ProcessGroup, Work};
pub use handle::{FromOutput, Handle, Output};
pub use handshake::handshake;
pub use log::{Entry, REMEMBERED, State};
pub use ranks::GroupRanks;
pub use single::Single;
