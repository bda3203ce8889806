//! Room on the disk for what is fetched.

use std::path::Path;

use super::TransferError;

/// Bytes that are free for this process in the file system of `path`; none where the system does not say.
#[cfg(unix)]
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(path).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Not known on this system.
#[cfg(not(unix))]
pub(crate) fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// Whether `needed_bytes` more fit beside `path` so that `kept_bytes` stay free.
///
/// # Errors
/// [`TransferError::NoRoom`], which names what is `name`d.
pub(crate) fn check_room(
    name: &str,
    path: &Path,
    needed_bytes: u64,
    kept_bytes: u64,
) -> Result<(), TransferError> {
    match path.parent().and_then(free_bytes) {
        Some(free_bytes) if needed_bytes.saturating_add(kept_bytes) > free_bytes => {
            Err(TransferError::NoRoom {
                name: name.to_owned(),
                needed_bytes,
                free_bytes,
                kept_bytes,
            })
        }
        _ => Ok(()),
    }
}
