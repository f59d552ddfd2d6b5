//! What a run leaves and shows: its folder, its files, its console. A leaf: it knows nothing of training or evaluation.
//!
//! Progress, notes and warnings go to stderr, results (tables) to stdout, so that results can be piped on.

pub mod console;
pub mod draw;
pub mod events;
pub mod files;
mod number;
pub mod plot;
mod progress;
pub mod raster;
pub mod results_csv;
pub mod run_dir;
pub mod tables;

pub use console::{Bar, Console};
pub use number::six_digits;
pub use progress::{Unit, peak_memory, resident_memory};
