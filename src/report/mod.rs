//! What a run leaves and shows: its folder, its files, its console. A leaf: knows nothing of training or evaluation.

pub mod files;
