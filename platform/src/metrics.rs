//! Metric points: written in batches, read as curves.

pub mod downsample;
pub mod store;
pub mod writer;
