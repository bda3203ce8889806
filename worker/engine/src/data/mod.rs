//! Training data: rows of a file as tokens, the order in which they are trained on, and batches of them.

mod blocks;
mod cache;
mod encode;
mod examples;
mod measure;
mod order;
mod read;
mod report;
mod shards;
mod split;
mod token_file;

pub use cache::{DEFAULT_CACHE_BYTES, TokenCache};
pub use encode::RowEncoder;
pub use examples::{Example, Examples};
pub use measure::{LengthClass, Lengths, TokenFigures, measure};
pub use order::{Order, Sequences};
pub use read::{DataFile, read_examples};
pub use report::DatasetReport;
pub use shards::{Packed, PackedShard, Packing, SHARD_FORMAT, Shard};
pub use split::Split;
