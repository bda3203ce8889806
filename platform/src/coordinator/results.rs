//! `POST /sonuc`: takes a volunteer's result in.
//!
//! 1. Session, key, query, length and round are checked before any of the body is read.
//! 2. The body goes to a file on the side while it is hashed. Who sends too slowly is cut off.
//! 3. The file is checked whole against the global adapter, then stored, then counted
//!    ([`crate::rounds::session::Session::submit`]).
//!
//! A body that is sent again is known by its digest: that is answered as the first time, also once the round is
//! closed, so that a lost answer does no harm.

use std::net::IpAddr;
use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tempfile::TempPath;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;
use trainyard_shared::coordinator::ResultAccepted;

use super::hosted::Ready;
use super::http::session_of;
use super::polling::{cannot_join, refuse_above_limit};
use super::slots::Sender;
use super::{Refused, query};
use crate::auth::client_address;
use crate::error::ApiError;
use crate::http::UploadBody;
use crate::rounds::session::{Offered, SubmitError, answer_to};
use crate::rounds::state::{Answer, Standing};
use crate::server::AppState;
use crate::storage::StoredObject;

/// Bytes a second that an upload must come with, once its grace is over.
const SLOWEST_BYTES_PER_SECOND: u64 = 4 << 10;
/// How long a body that is refused is read on, so that its sender sees the answer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// What the sender says the body's SHA-256 is.
const DIGEST_HEADER: &str = "x-sha256";

/// Takes the result of a round.
#[utoipa::path(post, path = "/sonuc", tag = "for volunteers", security(()),
    params(("isci" = String, Query), ("tur" = u64, Query), ("X-Anahtar" = Option<String>, Header, description = "the session's key, where it has one"),
        ("X-Sha256" = Option<String>, Header, description = "checked when sent")),
    request_body(content_type = "application/octet-stream", description = "the adapter as safetensors"),
    responses(
        (status = 200, body = Object, description = "{\"tamam\": true, \"tur\": N}"),
        (status = 400, description = "not valid: what is wrong, by key"),
        (status = 401, description = "the key is missing or wrong"),
        (status = 403, description = "too many uploads of this worker were not valid"),
        (status = 404, description = "no session"),
        (status = 408, description = "the body comes too slowly"),
        (status = 409, description = "another round, or a result of this worker is here already"),
        (status = 411, description = "Content-Length is missing"),
        (status = 413, description = "larger than twice the adapter"),
        (status = 503, description = "the session is being prepared, or too much is under way"),
    ))]
pub async fn take(
    state: web::Data<AppState>,
    request: HttpRequest,
    mut body: UploadBody,
) -> Result<HttpResponse, Refused> {
    let taken = match checked(&state, &request, &body) {
        Ok(upload) => receive(&state, upload, &mut body).await,
        Err(refused) => Err(refused),
    };
    if taken.is_err() {
        body.drain_for(DRAIN_TIMEOUT).await;
    }
    let round = taken?;
    Ok(HttpResponse::Ok().json(ResultAccepted {
        accepted: true,
        round,
    }))
}

/// An upload whose head is in order.
struct Upload {
    ready: std::sync::Arc<Ready>,
    worker: String,
    round: u64,
    address: IpAddr,
    size_bytes: u64,
    /// What the sender says of the body.
    sha256: Option<String>,
}

/// What can be said before any of the body is read.
fn checked(state: &AppState, request: &HttpRequest, body: &UploadBody) -> Result<Upload, Refused> {
    let hosted = session_of(state, request)?;
    hosted.check_key(request)?;
    let worker = query::worker(request.query_string())?;
    let round = query::number(request.query_string(), "tur")?;
    let ready = hosted.ready()?;
    refuse_above_limit(&ready, &worker)?;
    let size_bytes = body.announced_bytes().ok_or_else(|| {
        Refused::new(
            StatusCode::LENGTH_REQUIRED,
            "the request must say how long its body is (Content-Length)",
        )
    })?;
    let limit_bytes = 2 * ready.session.live().weights.size_bytes;
    if size_bytes > limit_bytes {
        return Err(Refused::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body must not be larger than {limit_bytes} bytes"),
        ));
    }
    if let Some(encoding) = request.headers().get(header::CONTENT_ENCODING)
        && encoding != "identity"
    {
        let message = "the body must not be encoded: send the safetensors file as it is";
        return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let sha256 = digest_of(request)?;
    match ready.session.live().rounds.standing(&worker, round) {
        Standing::Welcome | Standing::Given(_) => {}
        standing => {
            if standing == Standing::Late {
                ready.session.participants.count_late(&worker);
            }
            return Err(refusal(standing, &ready));
        }
    }
    Ok(Upload {
        ready,
        worker,
        round,
        address: client_address(request, &state.config),
        size_bytes,
        sha256,
    })
}

/// What the sender says the body's SHA-256 is.
fn digest_of(request: &HttpRequest) -> Result<Option<String>, Refused> {
    let Some(value) = request.headers().get(DIGEST_HEADER) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default().to_ascii_lowercase();
    let is_digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match is_digest {
        true => Ok(Some(text)),
        false => Err(Refused::invalid("X-Sha256 must be 64 hexadecimal digits")),
    }
}

/// Gives the round that the result counts for.
async fn receive(state: &AppState, upload: Upload, body: &mut UploadBody) -> Result<u64, Refused> {
    let session = &upload.ready.session;
    let sender = Sender {
        session: session.id(),
        worker: upload.worker.clone(),
        address: upload.address,
        size_bytes: upload.size_bytes,
    };
    let mut pace = Pace::begin(state.config.result_upload_grace);
    // Who sends nothing takes no slot.
    let first = pace.next_chunk(body).await?;
    let free_bytes = state.actors.scratch.free_bytes().map_err(no_space)?;
    let slot = state.actors.upload_slots.take(sender, free_bytes)?;
    let (file, content) = store_aside(state, &upload, pace, first, body).await?;
    if let Some(announced) = upload.sha256.filter(|known| *known != content.sha256) {
        let message = format!(
            "the body's SHA-256 is {}, not {announced} as X-Sha256 says",
            content.sha256
        );
        return Err(Refused::invalid(message));
    }
    let standing = session.live().rounds.standing(&upload.worker, upload.round);
    let answer = if standing == Standing::Welcome {
        session
            .participants
            .shard_of(&upload.worker)
            .await
            .map_err(cannot_join)?;
        session.participants.keep(&upload.worker);
        let offered = Offered {
            participant: upload.worker.clone(),
            round: upload.round,
            file,
            content,
            weight: 1,
            loss: None,
        };
        match session.submit(&state.actors, offered).await {
            Err(SubmitError::Invalid(why)) => {
                return Err(count_refused(&upload.ready, &upload.worker, why).await);
            }
            submitted => submitted.map_err(failed)?,
        }
    } else {
        answer_to(standing, &content.sha256)
    };
    drop(slot);
    match answer {
        Answer::Taken | Answer::Again => Ok(upload.round),
        Answer::Refused(standing) => {
            if standing == Standing::Late {
                session.participants.count_late(&upload.worker);
            }
            Err(refusal(standing, &upload.ready))
        }
    }
}

async fn count_refused(ready: &Ready, worker: &str, why: String) -> Refused {
    let session = &ready.session;
    tracing::info!(session.id = %session.id(), participant = worker, why, "result refused");
    if let Err(error) = session.participants.count_refused(worker).await {
        tracing::warn!(session.id = %session.id(), %error, "what was counted is written later");
    }
    Refused::invalid(why)
}

/// How fast a body comes.
struct Pace {
    begun: Instant,
    grace: Duration,
    size_bytes: u64,
}

impl Pace {
    fn begin(grace: Duration) -> Self {
        Self {
            begun: Instant::now(),
            grace,
            size_bytes: 0,
        }
    }

    /// The next bytes; none at the end.
    ///
    /// # Errors
    /// 408 where they do not come as fast as they must; 400 where the connection breaks off.
    async fn next_chunk(&mut self, body: &mut UploadBody) -> Result<Option<Bytes>, Refused> {
        let allowed = Duration::from_secs(self.size_bytes / SLOWEST_BYTES_PER_SECOND);
        let deadline = self.begun + self.grace + allowed;
        let chunk = tokio::time::timeout_at(deadline, body.next_chunk()).await;
        let chunk = chunk.map_err(|_| {
            let message = format!(
                "the body comes too slowly: {} bytes so far",
                self.size_bytes
            );
            Refused::new(StatusCode::REQUEST_TIMEOUT, message)
        })?;
        let chunk = chunk.map_err(|error| Refused::from(ApiError::from(error)))?;
        self.size_bytes += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        Ok(chunk)
    }
}

/// Writes the body to a file on the side, as fast as it must come.
async fn store_aside(
    state: &AppState,
    upload: &Upload,
    mut pace: Pace,
    first: Option<Bytes>,
    body: &mut UploadBody,
) -> Result<(TempPath, StoredObject), Refused> {
    let (file, path) = state.actors.scratch.file().map_err(no_space)?.into_parts();
    let mut file = tokio::fs::File::from_std(file);
    let mut digest = Sha256::new();
    let mut next = first;
    while let Some(chunk) = next {
        if pace.size_bytes > upload.size_bytes {
            return Err(Refused::invalid("the body is longer than Content-Length"));
        }
        digest.update(&chunk);
        file.write_all(&chunk).await.map_err(no_space)?;
        next = pace.next_chunk(body).await?;
    }
    let size_bytes = pace.size_bytes;
    file.flush().await.map_err(no_space)?;
    if size_bytes != upload.size_bytes {
        return Err(Refused::invalid(format!(
            "{size_bytes} bytes came where {} were announced",
            upload.size_bytes
        )));
    }
    let sha256 = hex::encode(digest.finalize());
    Ok((path, StoredObject { size_bytes, sha256 }))
}

fn no_space(error: std::io::Error) -> Refused {
    tracing::error!(%error, "an upload cannot be written");
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Refused::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "the coordinator's disk is full; try again later",
        ),
        _ => Refused::later("the coordinator cannot keep uploads at the moment"),
    }
}

fn failed(error: SubmitError) -> Refused {
    match error {
        SubmitError::Invalid(why) => Refused::invalid(why),
        SubmitError::Storage(error) => error.into(),
        SubmitError::Database(error) => error.into(),
        SubmitError::Failed(why) => {
            tracing::error!(why, "a result could not be checked");
            Refused::later("the result could not be checked; try again")
        }
    }
}

/// What somebody is told whose result does not count.
fn refusal(standing: Standing, ready: &Ready) -> Refused {
    let round = ready.session.live().rounds.round();
    let message = match standing {
        Standing::Given(_) => {
            "this worker's result of the round is here already; the first one counts".to_owned()
        }
        Standing::Late => format!("the round is closed; now it is tur {round}"),
        Standing::NotBegun => format!("the round has not begun; now it is tur {round}"),
        Standing::Ended => "training has finished".to_owned(),
        Standing::Welcome => "try again".to_owned(),
    };
    Refused::new(StatusCode::CONFLICT, message)
}
