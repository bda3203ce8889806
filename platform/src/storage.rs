//! Object storage: data sets, checkpoints and results by key, and the signed URLs under which they travel.

mod key;
mod local;
mod object_store;
pub mod routes;
pub mod serving;
mod signed_url;
#[cfg(test)]
mod tests;

pub use key::StorageKey;
pub use local::LocalStore;
pub use object_store::{
    ByteRange, Expected, ObjectInfo, ObjectReader, ObjectStore, ObjectWriter, StorageError,
    StoredObject,
};
pub use signed_url::{UploadTarget, UploadTerms, UrlSigner};
