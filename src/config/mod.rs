//! What a run is told: the options (command line and `--cfg` file), and the files that describe a data set and a network.
//!
//! Read `options.rs` first: it is the one table that everything about options is made from.

mod device;
mod docs;
mod error;
mod file;
mod foreign;
mod kind;
mod options;
pub mod settings;
mod suggest;
#[cfg(test)]
mod tests;
mod value;

pub mod dataset;
pub mod model;

pub use device::{DeviceError, DeviceRequest};
pub use docs::options_markdown;
pub use error::{ConfigError, Place};
pub use foreign::reason as foreign_option;
pub use kind::{Interval, Kind};
pub use options::{Command, DefaultText, OPTIONS, OptionSpec, SOURCES, find, options_of};
pub use settings::{Amp, Given, LrScaling, Optimizer, ScaleRange, Settings, SplitName};
pub use suggest::nearest;
