//! Storing one file: a fresh signed address for every try, then a PUT of the whole file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use reqwest::header::CONTENT_LENGTH;
use serde::Deserialize;
use tokio_util::io::ReaderStream;
use trainyard_shared::Secret;

use super::retry::{Fault, Tries};
use super::{Http, STALL, TransferError};

/// Once all bytes are sent, the server may take this long to check and store them.
const STORING: Duration = Duration::from_secs(300);

/// A file to store.
#[derive(Debug)]
pub struct Upload<'a> {
    /// How messages name it.
    pub name: &'a str,
    /// Where it lies.
    pub path: &'a Path,
    /// Its length in bytes.
    pub size_bytes: u64,
}

/// Leave to store one file, as `POST /api/worker/uploads` gives it.
#[derive(Debug, Clone, Deserialize)]
pub struct Grant {
    /// Where the PUT goes.
    pub url: Secret,
    /// Headers that belong to it.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// For how many seconds it holds, where that is said.
    #[serde(default)]
    pub expires_in: Option<u64>,
}

/// A grant that is refused before its time is up is asked for once more; then the refusal is believed.
const FRESH_REFUSALS: u32 = 2;

impl Http {
    /// Stores `file`; returns once the server has confirmed it.
    ///
    /// `ask` gets leave for one try, so that an address never is older than the try that uses it.
    ///
    /// # Errors
    ///
    /// A final refusal, tries used up, or the local disk.
    pub async fn upload<A>(&self, file: &Upload<'_>, ask: A) -> Result<(), TransferError>
    where
        A: AsyncFn() -> Result<Result<Grant, reqwest::Response>, reqwest::Error>,
    {
        let mut tries = Tries::new(self.retry());
        let mut fresh_refusals = 0;
        loop {
            let result = match self.granted(file.name, &ask).await {
                Ok(grant) => {
                    let (asked_at, valid_for) = (Instant::now(), grant.expires_in);
                    let put = self.put(file, grant).await;
                    let has_expired =
                        valid_for.is_some_and(|valid| asked_at.elapsed().as_secs() >= valid);
                    match put {
                        Err(Fault::Expired { answer, status }) if !has_expired => {
                            fresh_refusals += 1;
                            if fresh_refusals >= FRESH_REFUSALS {
                                return Err(TransferError::Refused {
                                    name: file.name.to_owned(),
                                    status,
                                    answer,
                                });
                            }
                            Err(Fault::passing(answer))
                        }
                        put => put,
                    }
                }
                Err(fault) => Err(fault),
            };
            match result {
                Ok(()) => return Ok(()),
                Err(Fault::Passing {
                    reason,
                    retry_after,
                }) => tries.wait(file.name, reason, retry_after).await?,
                Err(Fault::Expired { answer, .. }) => tries.wait(file.name, answer, None).await?,
                Err(Fault::Final(error)) => return Err(error),
            }
        }
    }

    async fn granted<A>(&self, name: &str, ask: &A) -> Result<Grant, Fault>
    where
        A: AsyncFn() -> Result<Result<Grant, reqwest::Response>, reqwest::Error>,
    {
        match ask().await {
            Ok(Ok(grant)) => Ok(grant),
            Ok(Err(answer)) => Err(match Fault::from_answer(name, answer).await {
                // The platform itself says no: another address would not help. A key that is just being
                // replaced (401) is another matter.
                Fault::Expired { answer, status }
                    if status != reqwest::StatusCode::UNAUTHORIZED =>
                {
                    Fault::Final(TransferError::Refused {
                        name: name.to_owned(),
                        status,
                        answer,
                    })
                }
                fault => fault,
            }),
            Err(error) => Err(Fault::from_client(name, error)),
        }
    }

    async fn put(&self, file: &Upload<'_>, grant: Grant) -> Result<(), Fault> {
        let FileBody { body, sent } = FileBody::open(file.path).await.map_err(Fault::Final)?;
        let mut request = self
            .uploads
            .put(grant.url.expose())
            .header(CONTENT_LENGTH, file.size_bytes);
        for (name, value) in &grant.headers {
            if !name.eq_ignore_ascii_case(CONTENT_LENGTH.as_str()) {
                request = request.header(name, value);
            }
        }
        let response = tokio::select! {
            response = request.body(body).send() => {
                response.map_err(|error| Fault::from_client(file.name, error))?
            }
            reason = sent.stalled(file.size_bytes) => return Err(Fault::passing(reason)),
        };
        if response.status().is_success() {
            return Ok(());
        }
        Err(Fault::from_answer(file.name, response).await)
    }
}

/// A file as the body of a request.
pub(crate) struct FileBody {
    /// To be sent.
    pub(crate) body: reqwest::Body,
    /// How much of it was.
    pub(crate) sent: Sent,
}

/// Bytes of a body that the network has taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sent(Arc<AtomicU64>);

impl FileBody {
    /// The file at `path`, read as it is sent.
    pub(crate) async fn open(path: &Path) -> Result<Self, TransferError> {
        let handle = tokio::fs::File::open(path)
            .await
            .map_err(|source| TransferError::io("read", path, source))?;
        let sent = Sent::default();
        let count = sent.0.clone();
        let chunks = ReaderStream::with_capacity(handle, 1 << 18).inspect(move |chunk| {
            let bytes = chunk.as_ref().map_or(0, |bytes| bytes.len() as u64);
            count.fetch_add(bytes, Ordering::Relaxed);
        });
        Ok(Self {
            body: reqwest::Body::wrap_stream(chunks),
            sent,
        })
    }
}

impl Sent {
    /// Ends when nothing of the body was taken for [`STALL`], or no answer has come for [`STORING`] after it; with why.
    pub(crate) async fn stalled(&self, size_bytes: u64) -> String {
        let mut before = None;
        loop {
            let now = self.0.load(Ordering::Relaxed);
            if now >= size_bytes {
                tokio::time::sleep(STORING).await;
                return format!("no answer within {STORING:?} after the whole file");
            }
            if before == Some(now) {
                return format!("nothing was taken for {STALL:?}");
            }
            before = Some(now);
            tokio::time::sleep(STALL).await;
        }
    }
}
