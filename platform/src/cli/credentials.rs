//! The tokens of past logins, in `trainyard/credentials.json` in the user's config folder, mode 0600.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trainyard_shared::Secret;

use super::error::CliError;

/// What is known of past logins.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Credentials {
    /// Address of the platform of the last login.
    #[serde(default)]
    pub platform: Option<String>,
    /// Logins by the platform's address, whose path ends with a slash.
    #[serde(default)]
    pub logins: BTreeMap<String, Login>,
}

/// One login.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Login {
    /// Who logged in.
    pub email: String,
    /// The token.
    pub token: Secret,
}

impl Credentials {
    /// Reads the file; a missing one is empty.
    pub fn load() -> Result<Self, CliError> {
        Self::load_from(&path()?)
    }

    /// Replaces the file: written beside it, synced and renamed.
    pub fn save(&self) -> Result<(), CliError> {
        self.save_to(&path()?)
    }

    fn load_from(path: &Path) -> Result<Self, CliError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(CliError::io(path.display().to_string(), source)),
        };
        serde_json::from_str(&text).map_err(|error| {
            // The message of serde_json could repeat a part of the file, and with it a token.
            let place = format!("line {}, column {}", error.line(), error.column());
            CliError::Input(format!(
                "{} is damaged at {place}; delete it and log in again",
                path.display()
            ))
        })
    }

    fn save_to(&self, path: &Path) -> Result<(), CliError> {
        let failed = |source| CliError::io(path.display().to_string(), source);
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(failed)?;
        // A temporary file is made with mode 0600; that is set again in case a later version differs.
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        file.as_file()
            .set_permissions(fs::Permissions::from_mode(0o600))
            .map_err(failed)?;
        serde_json::to_writer_pretty(&mut file, self).map_err(|error| failed(error.into()))?;
        file.write_all(b"\n").map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

fn path() -> Result<PathBuf, CliError> {
    let folder = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let config =
        folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")));
    let config = config.ok_or_else(|| {
        CliError::Input(
            "neither XDG_CONFIG_HOME nor HOME is set; use TRAINYARD_PLATFORM and TRAINYARD_TOKEN"
                .into(),
        )
    })?;
    Ok(config.join("trainyard").join("credentials.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Credentials {
        let platform = "http://127.0.0.1:8080/".to_owned();
        let login = Login {
            email: "a@b.example".to_owned(),
            token: Secret::from("ses_secret"),
        };
        Credentials {
            platform: Some(platform.clone()),
            logins: [(platform, login)].into(),
        }
    }

    #[test]
    fn logins_are_kept_readable_by_their_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trainyard/credentials.json");
        assert_eq!(
            Credentials::load_from(&path).unwrap(),
            Credentials::default()
        );
        some().save_to(&path).unwrap();
        some().save_to(&path).unwrap();
        assert_eq!(Credentials::load_from(&path).unwrap(), some());
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "a temporary file stayed"
        );
    }

    #[test]
    fn g022_a_damaged_file_is_named_without_repeating_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials.json");
        fs::write(&path, r#"{"logins": "ses_secret"}"#).unwrap();
        let told = Credentials::load_from(&path).unwrap_err().to_string();
        assert!(
            told.contains("credentials.json") && !told.contains("ses_secret"),
            "{told}"
        );
        assert!(!format!("{:?}", some()).contains("ses_secret"));
    }
}
