pub mod data;
pub mod eval;
pub mod report;
