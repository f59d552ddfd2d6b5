//! The command line: from words to settings, one file per subcommand, and how it all ends.

pub mod args;
pub mod bench;
mod bench_comm;
mod bench_scaling;
pub mod doctor;
pub mod info;
pub mod interrupt;
pub mod outcome;
pub mod predict;
pub mod ranks;
pub mod status;
pub mod train;
pub mod val;

pub use args::{Parsed, parse};
pub use outcome::{Outcome, exit_code};
