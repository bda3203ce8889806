//! Training data: rows of a file as tokens, the order in which they are trained on, and batches of them.

mod encode;
mod examples;
mod order;
mod read;
mod split;

pub use encode::RowEncoder;
pub use examples::{Example, Examples};
pub use order::{Order, Sequences};
pub use read::{DatasetReport, read_jsonl};
pub use split::Split;
