//! What a model's name or a job's number stands for: a base model, alone or with the verified adapter of a
//! completed job or of a federated session that has ended.

use std::time::Duration;

use trainyard_shared::JobStatus;
use trainyard_shared::ids::{FederatedSessionId, JobId};
use trainyard_shared::message::DownloadUrl;

use super::is_hub_name;
use crate::auth::CurrentUser;
use crate::database::{Database, DatabaseError};
use crate::error::{ApiError, ErrorCode};
use crate::jobs;
use crate::jobs::history::{self, ArtifactRow};
use crate::rounds;
use crate::server::AppState;
use crate::storage::{ObjectStore, StorageError, StorageKey};

/// A worker may begin its downloads so long after it was told to.
const DOWNLOAD_VALIDITY: Duration = Duration::from_secs(24 * 60 * 60);
/// What the name of a job's model begins with.
const JOB_PREFIX: &str = "job-";
/// What the name of a federated session's model begins with.
const FEDERATED_PREFIX: &str = "federated-";

/// A model that a worker can be asked to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The base model's name at the hub.
    pub base_model: String,
    /// What goes on top of it.
    pub adapter: Option<Adapter>,
}

/// What has made an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A training job.
    Job(JobId),
    /// A federated session, of workers or of volunteers.
    Federated(FederatedSessionId),
}

impl Origin {
    /// The model's name: `job-123`, `federated-4`.
    pub fn name(self) -> String {
        match self {
            Self::Job(job) => format!("{JOB_PREFIX}{job}"),
            Self::Federated(session) => format!("{FEDERATED_PREFIX}{session}"),
        }
    }

    /// What a model's name means, where it is one of these.
    pub fn of(name: &str) -> Option<Self> {
        let job = |name: &str| Some(Self::Job(name.strip_prefix(JOB_PREFIX)?.parse().ok()?));
        let session = |name: &str| {
            let id = name.strip_prefix(FEDERATED_PREFIX)?.parse().ok()?;
            Some(Self::Federated(id))
        };
        job(name).or_else(|| session(name))
    }
}

/// The adapter that a job or a federated session has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    /// What has made it.
    pub origin: Origin,
    /// Its folder in the store, with a slash at its end.
    pub folder: String,
    /// Its files, which were checked when it was stored.
    pub files: Vec<AdapterFile>,
}

/// One file of an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterFile {
    /// Its name within the folder.
    pub name: String,
    /// Where it lies.
    pub key: StorageKey,
    /// SHA-256, 64 lower-case hex digits.
    pub sha256: String,
    /// Length in bytes.
    pub size_bytes: u64,
}

impl Target {
    /// The name by which people know it: `job-123`, `federated-4`, or the base model's.
    pub fn name(&self) -> String {
        match &self.adapter {
            Some(adapter) => adapter.origin.name(),
            None => self.base_model.clone(),
        }
    }

    /// The job whose adapter it has.
    pub fn job(&self) -> Option<JobId> {
        match self.adapter.as_ref()?.origin {
            Origin::Job(job) => Some(job),
            Origin::Federated(_) => None,
        }
    }

    /// The adapter's folder; none for a base model alone.
    pub fn folder(&self) -> Option<String> {
        self.adapter.as_ref().map(|adapter| adapter.folder.clone())
    }

    /// Whether the job has trained all weights, so that its result is a model of its own and no adapter.
    pub fn has_all_weights(&self) -> bool {
        let has = |name: &str| {
            let mut files = self.adapter.iter().flat_map(|adapter| &adapter.files);
            files.any(|file| file.name == name)
        };
        has("config.json") && !has("adapter_config.json")
    }

    /// Where a worker fetches the adapter's files.
    pub fn download_urls(&self, storage: &dyn ObjectStore) -> Vec<DownloadUrl> {
        let files = self.adapter.iter().flat_map(|adapter| &adapter.files);
        files
            .map(|file| DownloadUrl {
                key: file.name.clone(),
                url: storage.download_url(&file.key, DOWNLOAD_VALIDITY),
                sha256: Some(file.sha256.clone()),
                size_bytes: Some(file.size_bytes),
            })
            .collect()
    }
}

/// What a request asks for that names a job or a model, one of the two.
///
/// # Errors
/// 400 for both or neither, or a name that is none; else as [`of_job`].
pub async fn asked_for(
    state: &AppState,
    user: &CurrentUser,
    job: Option<JobId>,
    model: Option<&str>,
) -> Result<Target, ApiError> {
    match (job, model) {
        (Some(job), None) => of_job(state, user, job).await,
        (None, Some(model)) => named(state, user, model).await,
        (Some(_), Some(_)) => {
            let message = "name a job or a model, not both";
            Err(ApiError::invalid_field("model", message))
        }
        (None, None) => {
            let message = "name a model, or the job_id of one that was trained here";
            Err(ApiError::invalid_field("model", message))
        }
    }
}

/// The model of that name: `job-123`, `federated-4`, or a base model.
///
/// # Errors
/// 400 for what is no name; else as [`of_job`].
pub async fn named(state: &AppState, user: &CurrentUser, name: &str) -> Result<Target, ApiError> {
    match Origin::of(name) {
        Some(Origin::Job(job)) => return of_job(state, user, job).await,
        Some(Origin::Federated(session)) => return of_session(state, user, session).await,
        None => {}
    }
    if is_numbered(name, JOB_PREFIX) {
        return Err(ApiError::not_found("job"));
    }
    if is_numbered(name, FEDERATED_PREFIX) {
        return Err(ApiError::not_found("federated session"));
    }
    if is_hub_name(name) {
        Ok(Target {
            base_model: name.to_owned(),
            adapter: None,
        })
    } else {
        let message =
            "must be job- or federated- and a number, or a model's name at the hub, as org/name";
        Err(ApiError::invalid_field("model", message))
    }
}

/// Whether the name is that prefix and a number, be it one that nothing can have.
fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// What was asked for before, by its name, and whose rights were looked at then.
///
/// # Errors
/// 404 for what there is not any more, 409 for what has no verified adapter.
pub async fn load_named(database: &Database, name: &str) -> Result<Target, ApiError> {
    match Origin::of(name) {
        Some(Origin::Job(job)) => load(database, job).await,
        Some(Origin::Federated(session)) => load_session(database, session).await,
        None => Ok(Target {
            base_model: name.to_owned(),
            adapter: None,
        }),
    }
}

/// The final adapter of a federated session, on its base model.
///
/// # Errors
/// 404 for a session that may not be seen, 409 for one that has not ended or has made nothing.
pub async fn of_session(
    state: &AppState,
    user: &CurrentUser,
    session: FederatedSessionId,
) -> Result<Target, ApiError> {
    let read = move |c: &mut _| rounds::store::row(c, session);
    let row = state.database.read(read).await.map_err(no_such_session)?;
    user.require_sight(row.owner_id, "federated session")?;
    load_session(&state.database, session).await
}

async fn load_session(
    database: &Database,
    session: FederatedSessionId,
) -> Result<Target, ApiError> {
    let read = move |c: &mut _| {
        Ok((
            rounds::store::row(c, session)?,
            rounds::store::files(c, session)?,
        ))
    };
    let (row, files) = database.read(read).await.map_err(no_such_session)?;
    if files.is_empty() {
        let message = format!(
            "federated session {session} is {}: it has no final adapter",
            row.status
        );
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    let files = files.into_iter().map(|file| AdapterFile {
        key: rounds::keys::final_file(session, &file.name),
        name: file.name,
        sha256: file.sha256,
        size_bytes: rounds::store::natural(file.size_bytes),
    });
    Ok(Target {
        base_model: row.base_model,
        adapter: Some(Adapter {
            origin: Origin::Federated(session),
            folder: rounds::keys::final_folder(session),
            files: files.collect(),
        }),
    })
}

fn no_such_session(error: DatabaseError) -> ApiError {
    match error {
        DatabaseError::NotFound => ApiError::not_found("federated session"),
        other => other.into(),
    }
}

/// The adapter of a job, on its base model.
///
/// # Errors
/// 404 for a job that may not be seen, 409 for one without a verified adapter.
pub async fn of_job(state: &AppState, user: &CurrentUser, job: JobId) -> Result<Target, ApiError> {
    require_sight(state, user, job).await?;
    load(&state.database, job).await
}

/// Makes sure that one may see a job.
///
/// # Errors
/// 404.
pub async fn require_sight(
    state: &AppState,
    user: &CurrentUser,
    job: JobId,
) -> Result<(), ApiError> {
    let read = move |c: &mut _| jobs::store::row(c, job);
    let row = state.database.read(read).await.map_err(no_such_job)?;
    user.require_sight(row.owner_id, "job")
}

/// The same for one whose rights were looked at before.
///
/// # Errors
/// 404 for a job that there is not, 409 for one without a verified adapter.
pub async fn load(database: &Database, job: JobId) -> Result<Target, ApiError> {
    let read = move |c: &mut _| Ok((jobs::store::row(c, job)?, history::result_files(c, job)?));
    let (row, files) = database.read(read).await.map_err(no_such_job)?;
    if row.job_status()? != JobStatus::Completed {
        let message = format!("job {job} has not completed: it is {}", row.status);
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    let folder = jobs::result_folder(job);
    let files = files
        .into_iter()
        .filter_map(|file| adapter_file(&folder, file).transpose())
        .collect::<Result<Vec<_>, _>>()?;
    if files.is_empty() {
        let message =
            format!("job {job} has no verified adapter: its worker stored no files with it");
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    Ok(Target {
        base_model: row.base_model,
        adapter: Some(Adapter {
            origin: Origin::Job(job),
            folder,
            files,
        }),
    })
}

fn no_such_job(error: DatabaseError) -> ApiError {
    match error {
        DatabaseError::NotFound => ApiError::not_found("job"),
        other => other.into(),
    }
}

fn adapter_file(folder: &str, file: ArtifactRow) -> Result<Option<AdapterFile>, StorageError> {
    let Some(name) = file.storage_key.strip_prefix(folder) else {
        return Ok(None);
    };
    Ok(Some(AdapterFile {
        name: name.to_owned(),
        key: StorageKey::parse(&file.storage_key)?,
        sha256: file.sha256,
        size_bytes: u64::try_from(file.size_bytes).unwrap_or(0),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_here_has_its_number_in_its_name() {
        assert_eq!(Origin::of("job-123"), Some(Origin::Job(JobId(123))));
        let session = Origin::Federated(FederatedSessionId(4));
        assert_eq!(Origin::of("federated-4"), Some(session));
        assert_eq!(session.name(), "federated-4");
        for name in [
            "job-",
            "job-0",
            "job-x",
            "job-1/2",
            "jobs-1",
            "org/job-1",
            "federated-",
        ] {
            assert_eq!(Origin::of(name), None, "{name}");
        }
    }
}
