//! `GET /gorev` and `GET /bilgi`: answered from memory, since thousands ask again and again.

use actix_web::http::header::CACHE_CONTROL;
use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use trainyard_shared::coordinator::{Finished, Task, TaskReply, Wait};

use super::hosted::{Hosted, Ready};
use super::http::session_of;
use super::{Refused, query};
use crate::rounds::participants::JoinError;
use crate::rounds::state::Phase;
use crate::rounds::store::natural;
use crate::server::AppState;

/// What a volunteer is to do now.
#[utoipa::path(get, path = "/gorev", tag = "for volunteers", security(()),
    params(("isci" = String, Query), ("X-Anahtar" = Option<String>, Header, description = "the session's key, where it has one")),
    responses(
        (status = 200, body = Object, description = "a task, {\"bekle\": true, \"tur\": N} or {\"bitti\": true}"),
        (status = 400, description = "isci is missing or not valid"),
        (status = 401, description = "the key is missing or wrong"),
        (status = 403, description = "too many uploads of this worker were not valid"),
        (status = 404, description = "no session"),
        (status = 503, description = "the session is being prepared"),
    ))]
pub async fn task(
    state: web::Data<AppState>,
    request: HttpRequest,
) -> Result<HttpResponse, Refused> {
    let hosted = session_of(&state, &request)?;
    hosted.check_key(&request)?;
    let worker = query::worker(request.query_string())?;
    let ready = hosted.ready()?;
    let reply = reply_to(&hosted, &ready, &worker).await?;
    Ok(fresh(reply))
}

/// What the session is and where it stands. Needs no key.
#[utoipa::path(get, path = "/bilgi", tag = "for volunteers", security(()),
    responses(
        (status = 200, body = Object, description = "the session"),
        (status = 404, description = "no session"),
        (status = 503, description = "the session is being prepared"),
    ))]
pub async fn info(
    state: web::Data<AppState>,
    request: HttpRequest,
) -> Result<HttpResponse, Refused> {
    let hosted = session_of(&state, &request)?;
    let ready = hosted.ready()?;
    Ok(fresh(ready.info(&hosted)))
}

/// An answer that is true now and must not be kept by a proxy.
fn fresh(body: impl Serialize) -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((CACHE_CONTROL, "no-store"))
        .json(body)
}

async fn reply_to(hosted: &Hosted, ready: &Ready, worker: &str) -> Result<TaskReply, Refused> {
    let session = &ready.session;
    if session.live().rounds.phase().is_ended() {
        return Ok(TaskReply::Finished(Finished { finished: true }));
    }
    refuse_above_limit(ready, worker)?;
    let shard = session
        .participants
        .shard_of(worker)
        .await
        .map_err(cannot_join)?;
    let live = session.live();
    let rounds = &live.rounds;
    let round = rounds.round();
    match rounds.phase() {
        Phase::Finished | Phase::Stopped => Ok(TaskReply::Finished(Finished { finished: true })),
        // Nobody can begin with a round that is being merged.
        Phase::Merging => Ok(TaskReply::Wait(Wait { wait: true, round })),
        Phase::Open if rounds.results().contains_key(worker) => {
            Ok(TaskReply::Wait(Wait { wait: true, round }))
        }
        Phase::Open => {
            let data = session.shards.get(shard as usize);
            let settings = &hosted.settings;
            Ok(TaskReply::Task(Task {
                round,
                total_rounds: rounds.rules().total_rounds,
                shard,
                shards: natural(session.row.shard_count),
                local_steps: settings.local_steps,
                batch_size: settings.batch_size,
                sequence_length: settings.sequence_length,
                learning_rate: settings.learning_rate,
                seed: settings.seed,
                weights_sha256: live.weights.sha256.clone(),
                data_sha256: data.map(|shard| shard.sha256.clone()),
                data_tokens: data.map(|shard| natural(shard.tokens)),
                mode: Some(settings.mode),
            }))
        }
    }
}

/// Who has sent more uploads that were not valid than the session puts up with gets nothing any more.
///
/// # Errors
/// 403.
pub fn refuse_above_limit(ready: &Ready, worker: &str) -> Result<(), Refused> {
    let session = &ready.session;
    let Some(limit) = session.row.max_refused else {
        return Ok(());
    };
    let refused = session.participants.refused(worker);
    if refused > natural(limit) {
        let message = format!(
            "{refused} uploads of this worker were not valid; this session puts up with {limit}. Ask whoever runs it"
        );
        return Err(Refused::new(
            actix_web::http::StatusCode::FORBIDDEN,
            message,
        ));
    }
    Ok(())
}

/// What is said to somebody who cannot take part.
pub fn cannot_join(error: JoinError) -> Refused {
    match error {
        JoinError::TooMany => Refused::later(error.to_string()),
        JoinError::Database(error) => error.into(),
    }
}
