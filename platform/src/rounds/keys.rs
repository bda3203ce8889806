//! Where the files of a session lie in the object store, and which of them are not needed any more. No part of a
//! key comes from outside.

use trainyard_shared::ids::FederatedSessionId;

use crate::storage::{ObjectStore, StorageError, StorageKey};

/// Name of the adapter's weights in each folder.
pub const WEIGHTS: &str = "adapter_model.safetensors";

fn key(text: String) -> StorageKey {
    StorageKey::parse(&text).expect("made of fixed words and numbers")
}

/// The folder of a session's rounds.
pub fn rounds_folder(session: FederatedSessionId) -> StorageKey {
    key(format!("federated/{session}/rounds"))
}

/// The global adapter with which a round begins. Never changed once it is stored.
pub fn weights(session: FederatedSessionId, round: u64) -> StorageKey {
    key(format!("federated/{session}/rounds/{round}/{WEIGHTS}"))
}

/// The momentum with which a round's outer step begins.
pub fn velocity(session: FederatedSessionId, round: u64) -> StorageKey {
    key(format!(
        "federated/{session}/rounds/{round}/velocity.safetensors"
    ))
}

/// A result of a round.
pub fn update(session: FederatedSessionId, round: u64, number: i64) -> StorageKey {
    key(format!(
        "federated/{session}/rounds/{round}/updates/{number}.safetensors"
    ))
}

/// A part of the data.
pub fn shard(session: FederatedSessionId, shard: u64) -> StorageKey {
    key(format!("federated/{session}/shards/{shard}.safetensors"))
}

/// The folder of the marks of tries to make the session.
pub fn tries_folder(session: FederatedSessionId) -> StorageKey {
    key(format!("federated/{session}/tries"))
}

/// The mark of a try that has begun.
pub fn begun_try(session: FederatedSessionId, number: usize) -> StorageKey {
    key(format!("federated/{session}/tries/{number}"))
}

/// The folder of the final adapter, with a slash at its end.
pub fn final_folder(session: FederatedSessionId) -> String {
    format!("federated/{session}/final/")
}

/// A file of the final adapter.
pub fn final_file(session: FederatedSessionId, name: &str) -> StorageKey {
    key(format!("{}{name}", final_folder(session)))
}

/// The files that are needed while a round is open: its weights, velocity and results, and the weights of the round
/// before, which may still be on their way to somebody.
pub fn needed(
    session: FederatedSessionId,
    round: u64,
    results: impl Iterator<Item = i64>,
) -> Vec<StorageKey> {
    let mut needed = vec![weights(session, round), velocity(session, round)];
    needed.extend(round.checked_sub(1).map(|before| weights(session, before)));
    needed.extend(results.map(|number| update(session, round, number)));
    needed
}

/// Removes the files of a session's rounds that are not needed.
///
/// # Errors
/// Those of the store; what is left is removed the next time.
pub async fn sweep(
    storage: &dyn ObjectStore,
    session: FederatedSessionId,
    needed: &[StorageKey],
) -> Result<(), StorageError> {
    for object in storage.list(&rounds_folder(session)).await? {
        if !needed.contains(&object.key) {
            storage.delete(&object.key).await?;
        }
    }
    Ok(())
}

/// Removes all files of a session.
///
/// # Errors
/// As [`sweep`].
pub async fn remove_all(
    storage: &dyn ObjectStore,
    session: FederatedSessionId,
) -> Result<(), StorageError> {
    for object in storage.list(&key(format!("federated/{session}"))).await? {
        storage.delete(&object.key).await?;
    }
    Ok(())
}

/// Removes what a round that was merged leaves behind: its results and its velocity, and the weights of the one
/// before it.
///
/// # Errors
/// As [`sweep`].
pub async fn remove_merged(
    storage: &dyn ObjectStore,
    session: FederatedSessionId,
    round: u64,
) -> Result<(), StorageError> {
    let updates = key(format!("federated/{session}/rounds/{round}/updates"));
    for object in storage.list(&updates).await? {
        storage.delete(&object.key).await?;
    }
    storage.delete(&velocity(session, round)).await?;
    match round.checked_sub(1) {
        Some(before) => storage.delete(&weights(session, before)).await,
        None => Ok(()),
    }
}
