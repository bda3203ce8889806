//! Who this worker is: its UUID and its own key, kept in the state directory for the owner's eyes only.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trainyard_shared::Secret;
use trainyard_shared::ids::{WorkerId, WorkerUuid};
use trainyard_shared::message::EnrollmentCompleteData;

use crate::files::{Access, write_atomically};

/// Name of the file in the state directory.
const FILE_NAME: &str = "identity.json";
/// What a worker's own key begins with.
const OWN_KEY: &str = "wkr_";

/// Why the identity could not be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb.
        action: &'static str,
        /// The identity file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is there and is none of ours. It is never replaced by itself: the key in it may be the only one.
    #[error("{} is damaged ({message}); delete it to enrol this machine as a new worker", path.display())]
    Damaged {
        /// The identity file.
        path: PathBuf,
        /// What is wrong with it; never the content.
        message: String,
    },
}

/// Who this worker is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Made once, by the worker itself.
    pub worker_uuid: WorkerUuid,
    /// The worker's own key; none before it enrolled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// Its number at the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<WorkerId>,
    /// Its name at the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_name: Option<String>,
}

/// The identity together with the file that holds it.
#[derive(Debug)]
pub struct IdentityFile {
    path: PathBuf,
    identity: Identity,
}

impl IdentityFile {
    /// Reads the identity in `state_dir`, or makes a new one and stores it.
    ///
    /// # Errors
    ///
    /// The file cannot be read, written or understood.
    pub fn open(state_dir: &Path) -> Result<Self, IdentityError> {
        let path = state_dir.join(FILE_NAME);
        match fs::read_to_string(&path) {
            Ok(text) => match serde_json::from_str(&text) {
                Ok(identity) => Ok(Self { path, identity }),
                Err(error) => Err(IdentityError::Damaged {
                    // The error's text could quote the file; its place cannot.
                    message: format!("line {}, column {}", error.line(), error.column()),
                    path,
                }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let identity = Identity {
                    worker_uuid: WorkerUuid::random(),
                    api_key: None,
                    worker_id: None,
                    worker_name: None,
                };
                let file = Self { path, identity };
                file.store(&file.identity)?;
                Ok(file)
            }
            Err(source) => Err(IdentityError::Io {
                action: "read",
                path,
                source,
            }),
        }
    }

    /// Who this worker is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Keeps the key that the platform issued. When this returns, the key survives a crash.
    ///
    /// # Errors
    ///
    /// The file cannot be written; the old identity then still holds.
    pub fn keep_key(&mut self, issued: EnrollmentCompleteData) -> Result<(), IdentityError> {
        let identity = Identity {
            worker_uuid: self.identity.worker_uuid,
            api_key: Some(issued.api_key),
            worker_id: Some(issued.worker_id),
            worker_name: Some(issued.worker_name),
        };
        self.store(&identity)?;
        self.identity = identity;
        Ok(())
    }

    /// Whether `given` is a worker's own key, and not the stored one.
    pub fn is_outdated_by(&self, given: Option<&Secret>) -> bool {
        given.is_some_and(|given| {
            given.expose().starts_with(OWN_KEY) && self.identity.api_key.as_ref() != Some(given)
        })
    }

    /// Keeps another key of the same worker, which its owner has given.
    ///
    /// # Errors
    ///
    /// The file cannot be written; the old identity then still holds.
    pub fn replace_key(&mut self, key: Secret) -> Result<(), IdentityError> {
        let identity = Identity {
            api_key: Some(key),
            ..self.identity.clone()
        };
        self.store(&identity)?;
        self.identity = identity;
        Ok(())
    }

    fn store(&self, identity: &Identity) -> Result<(), IdentityError> {
        let text = serde_json::to_string_pretty(identity).expect("plain fields are always JSON");
        write_atomically(&self.path, text.as_bytes(), Access::Owner).map_err(|source| {
            IdentityError::Io {
                action: "write",
                path: self.path.clone(),
                source,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issued(key: &str) -> EnrollmentCompleteData {
        EnrollmentCompleteData {
            worker_id: WorkerId(42),
            worker_name: "east-worker-3".to_owned(),
            api_key: Secret::from(key),
        }
    }

    #[test]
    fn the_uuid_is_made_once_and_the_key_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = IdentityFile::open(folder.path()).unwrap();
        assert_eq!(first.identity().api_key, None);
        first.keep_key(issued("wkr_one")).unwrap();
        let second = IdentityFile::open(folder.path()).unwrap();
        assert_eq!(second.identity(), first.identity());
        assert_eq!(second.identity().api_key, Some(Secret::from("wkr_one")));
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_may_read_the_key() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mut file = IdentityFile::open(folder.path()).unwrap();
        for key in ["wkr_one", "wkr_two"] {
            file.keep_key(issued(key)).unwrap();
            let mode = fs::metadata(folder.path().join(FILE_NAME))
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn a_damaged_identity_is_named_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        fs::write(&path, "{\"api_key\": wkr_secret").unwrap();
        let error = IdentityFile::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("identity.json is damaged"), "{error}");
        assert!(!error.contains("wkr_secret"), "{error}");
        assert!(fs::read_to_string(&path).unwrap().contains("wkr_secret"));
    }
}
