//! Training data: rows of a file as tokens, the order in which they are trained on, and batches of them.

mod encode;
mod examples;
mod order;
mod read;

pub use encode::RowEncoder;
pub use examples::{Example, Examples};
pub use order::{MicroBatches, Order};
pub use read::{DatasetReport, read_jsonl};
