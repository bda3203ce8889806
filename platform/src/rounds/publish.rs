//! The final adapter of a session, stored in PEFT's form like a job's.

use bytes::Bytes;
use futures_util::StreamExt;
use trainyard_shared::ids::FederatedSessionId;

use super::keys;
use super::store::{FileRow, SessionRow, integer};
use crate::actors::Actors;
use crate::federated::told_of_privacy;
use crate::storage::{Expected, StorageError, StorageKey, StoredObject};

/// Stores the global adapter with which `round` begins as the session's final one, and gives its files. Repeating
/// it stores the same again.
///
/// # Errors
/// Those of the store.
pub async fn final_adapter(
    actors: &Actors,
    session: &SessionRow,
    round: u64,
) -> Result<Vec<FileRow>, StorageError> {
    let id = session.id();
    let config = session.adapter_config.clone().unwrap_or_default();
    let readme = readme(session, round);
    let weights = keys::final_file(id, keys::WEIGHTS);
    Ok(vec![
        text(actors, id, "README.md", readme).await?,
        text(actors, id, "adapter_config.json", config).await?,
        row(
            id,
            keys::WEIGHTS,
            copy(actors, &keys::weights(id, round), &weights).await?,
        ),
    ])
}

fn row(session: FederatedSessionId, name: &str, stored: StoredObject) -> FileRow {
    FileRow {
        session_id: session.get(),
        name: name.to_owned(),
        sha256: stored.sha256,
        size_bytes: integer(stored.size_bytes),
    }
}

async fn text(
    actors: &Actors,
    session: FederatedSessionId,
    name: &str,
    text: String,
) -> Result<FileRow, StorageError> {
    let key = keys::final_file(session, name);
    let expected = Expected::at_most(text.len() as u64);
    let mut writer = actors.storage.create(&key, expected).await?;
    writer.write(Bytes::from(text)).await?;
    Ok(row(session, name, writer.finish().await?))
}

/// Stores an object once more under another key.
///
/// # Errors
/// Those of the store.
pub(super) async fn copy(
    actors: &Actors,
    from: &StorageKey,
    to: &StorageKey,
) -> Result<StoredObject, StorageError> {
    let mut source = actors.storage.open(from, None).await?;
    let expected = Expected::at_most(source.info.size_bytes);
    let mut writer = actors.storage.create(to, expected).await?;
    while let Some(chunk) = source.chunks.next().await {
        let chunk = chunk.map_err(|source| StorageError::Io {
            operation: "read",
            key: from.to_string(),
            source,
        })?;
        writer.write(chunk).await?;
    }
    writer.finish().await
}

fn readme(session: &SessionRow, round: u64) -> String {
    format!(
        "# federated-{id}\n\nA LoRA adapter for `{model}`, trained in {round} of {total} rounds by those who took part \
         in the session \"{name}\" ({kind}); results merged by `{rule}`.\n\n{privacy}Load it with PEFT: \
         `PeftModel.from_pretrained(base_model, folder)`.\n",
        id = session.id,
        model = session.base_model,
        total = session.total_rounds,
        name = session.name,
        kind = session.kind,
        rule = session.aggregation,
        privacy = told_of_privacy(session, round),
    )
}
