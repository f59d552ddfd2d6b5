pub mod config;
pub mod data;
