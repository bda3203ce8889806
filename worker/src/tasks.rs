//! What the worker does for the platform: training jobs and the transfers that they need.

pub mod transfers;
