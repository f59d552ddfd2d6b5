//! Ranks: processes (or, in tests, threads) that train together.
//!
//! - [`ProcessGroup`] is all that the rest of the program sees: collectives with a label, a deadline and a channel,
//!   asynchronous with a [`Handle`]. Engines: [`Single`], [`tcp`] (built in), `mpi` (feature).
//! - [`tree`] is the order of every sum over lanes; [`ProcessGroup::all_reduce_tree`] gives the same bits whatever the
//!   number of ranks.
//! - [`store`] is where ranks meet, [`handshake`] compares what they are about to do, [`launch`] starts processes.
//!
//! Order of reading: `group.rs`, `tree.rs`, `mesh/reduce.rs`, `mesh/executor.rs`, `tcp/connect.rs`.

pub mod bench;
mod buffer;
mod error;
mod frame;
mod group;
mod handle;
mod handshake;
pub mod launch;
mod log;
mod mesh;
#[cfg(feature = "mpi")]
pub mod mpi;
mod single;
pub mod store;
pub mod tcp;
pub mod testing;
pub mod tree;

pub use buffer::{Buffer, DType, Element, ReduceOp};
pub use error::{Collective, DistError};
pub use group::{Call, Channel, Partials, ProcessGroup, Work};
pub use handle::{FromOutput, Handle, Output};
pub use handshake::handshake;
pub use log::{Entry, REMEMBERED, State};
pub use single::Single;
