//! The wire of Trainyard: ids, messages, the training config and the rows of data sets. No I/O.
//!
//! Everything that platform, worker and clients must agree on stands here once. The crate reads and
//! writes text and values that it is given; it opens no file and no socket.

pub mod coordinator;
pub mod dataset;
pub mod frame;
mod hex_bytes;
pub mod ids;
pub mod json;
pub mod message;
pub mod number;
pub mod secret;
pub mod status;
pub mod training;

pub use hex_bytes::HexBytes;
pub use secret::Secret;
pub use status::{
    ExportFormat, FailureKind, FinishReason, JobStatus, WeightType, WorkerStatus, WorkerType,
};
