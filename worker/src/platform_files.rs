//! Files at the platform: leave to store one, a new address for one, both with the worker's own key.

use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use trainyard_shared::Secret;
use trainyard_shared::ids::{FederatedSessionId, JobId};

use crate::config::PlatformAddress;
use crate::connection::outbox::WaitingFile;
use crate::tasks::transfers::{Grant, Http, TransferError, Upload, describe, describe_answer};

/// The worker's key as it is now: enrolment and rotation change it while transfers run.
#[derive(Debug, Clone, Default)]
pub struct SharedKey(Arc<RwLock<Option<Secret>>>);

impl SharedKey {
    /// The key, once there is one.
    pub fn get(&self) -> Option<Secret> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces the key.
    pub fn set(&self, key: Secret) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(key);
    }
}

/// The platform's REST routes for workers' files (PROTOCOL 6).
#[derive(Debug, Clone)]
pub struct PlatformFiles {
    http: Http,
    platform: PlatformAddress,
    key: SharedKey,
}

/// What a file belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum FileOwner {
    /// A job.
    #[serde(rename = "job_id")]
    Job(JobId),
    /// A federated session.
    #[serde(rename = "session_id")]
    Session(FederatedSessionId),
}

/// Body of `POST /api/worker/uploads`.
#[derive(Serialize)]
struct UploadRequest<'a> {
    /// `job_id` or `session_id`.
    #[serde(flatten)]
    owner: FileOwner,
    key: &'a str,
    size: u64,
    sha256: &'a str,
}

/// Answer of `GET /api/worker/downloads`.
#[derive(Deserialize)]
struct RenewedAddress {
    #[serde(alias = "download_url")]
    url: Secret,
}

impl PlatformFiles {
    /// Files at `platform`, with the worker's `key`.
    pub fn new(http: Http, platform: PlatformAddress, key: SharedKey) -> Self {
        Self {
            http,
            platform,
            key,
        }
    }

    /// The client that transfers go through.
    pub fn http(&self) -> &Http {
        &self.http
    }

    /// Stores one file of a job or a session; returns once the platform has it.
    ///
    /// # Errors
    ///
    /// See [`Http::upload`].
    pub async fn store(&self, owner: FileOwner, file: &WaitingFile) -> Result<(), TransferError> {
        let artifact = &file.artifact;
        let upload = Upload {
            name: &artifact.key,
            path: &file.path,
            size_bytes: artifact.size_bytes,
        };
        let body = UploadRequest {
            owner,
            key: &artifact.key,
            size: artifact.size_bytes,
            sha256: &artifact.sha256,
        };
        self.http
            .upload(&upload, async || {
                let request = self
                    .http
                    .client()
                    .post(self.platform.http("api/worker/uploads"))
                    .json(&body);
                let answer = self.with_key(request).send().await?;
                if answer.status().is_success() {
                    Ok(Ok(answer.json::<Grant>().await?))
                } else {
                    Ok(Err(answer))
                }
            })
            .await
    }

    /// A new address for what lies under the storage key `key`, or none where the platform gives none.
    ///
    /// # Errors
    ///
    /// The platform cannot be asked.
    pub async fn renewed(&self, job_id: JobId, key: &str) -> Result<Option<Secret>, TransferError> {
        let request = self
            .http
            .client()
            .get(self.platform.http("api/worker/downloads"))
            .query(&[("job_id", job_id.to_string().as_str()), ("key", key)]);
        let given_up = |last| TransferError::GivenUp {
            name: key.to_owned(),
            tries: 1,
            last,
        };
        let answer = self
            .with_key(request)
            .send()
            .await
            .map_err(|error| given_up(describe(error)))?;
        if !answer.status().is_success() {
            let reason = describe_answer(answer).await;
            tracing::warn!(
                transfer.file = key,
                reason,
                "the platform gives no new address"
            );
            return Ok(None);
        }
        match answer.json::<RenewedAddress>().await {
            Ok(renewed) => Ok(Some(renewed.url)),
            Err(error) => Err(given_up(describe(error))),
        }
    }

    fn with_key(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match self.key.get() {
            Some(key) => request.bearer_auth(key.expose()),
            None => request,
        }
    }
}
