//! The built-in engine for CPU ranks: shared memory between ranks of one machine, sockets across machines.

mod connect;
mod control;
mod ring;
mod shm;
mod socket;

pub use connect::{TcpOptions, Transport, join};
