pub mod dataset;
mod suggest;

pub use suggest::nearest;
