//! `GET /agirlik` and `GET /veri`: files that never change, whole or in part.

use actix_web::http::StatusCode;
use actix_web::http::header::HeaderName;
use actix_web::{HttpRequest, HttpResponse, web};

use super::http::session_of;
use super::{Refused, query};
use crate::rounds::keys;
use crate::server::AppState;
use crate::storage::{StorageError, serving};

const ROUND_HEADER: HeaderName = HeaderName::from_static("x-tur");
const DIGEST_HEADER: HeaderName = HeaderName::from_static("x-sha256");
/// A file may go while it is being opened only when two rounds close in that time.
const TRIES: u32 = 3;

/// The global adapter: the round, the digest and the bytes always belong together.
#[utoipa::path(get, path = "/agirlik", tag = "for volunteers", security(()), params(("X-Anahtar" = Option<String>, Header, description = "the session's key, where it has one")),
    responses(
        (status = 200, description = "the file; X-Tur and X-Sha256 belong to it"),
        (status = 206, description = "a range of it"),
        (status = 401, description = "the key is missing or wrong"),
        (status = 404, description = "no session"),
        (status = 416, description = "the range lies outside the file"),
        (status = 503, description = "the session is being prepared"),
    ))]
pub async fn weights(
    state: web::Data<AppState>,
    request: HttpRequest,
) -> Result<HttpResponse, Refused> {
    let hosted = session_of(&state, &request)?;
    hosted.check_key(&request)?;
    let ready = hosted.ready()?;
    let mut tries = 0;
    loop {
        let (round, sha256) = {
            let live = ready.session.live();
            (live.rounds.round(), live.weights.sha256.clone())
        };
        let key = keys::weights(ready.session.id(), round);
        tries += 1;
        match serving::serve(state.storage.as_ref(), &key, &request).await {
            Err(StorageError::NotFound) if tries < TRIES => {}
            served => {
                let mut response = served?;
                set(&mut response, ROUND_HEADER, &round.to_string());
                set(&mut response, DIGEST_HEADER, &sha256);
                return Ok(response);
            }
        }
    }
}

/// A shard of the data.
#[utoipa::path(get, path = "/veri", tag = "for volunteers", security(()),
    params(("parca" = u64, Query), ("X-Anahtar" = Option<String>, Header, description = "the session's key, where it has one")),
    responses(
        (status = 200, description = "the file; X-Sha256 is its digest"),
        (status = 206, description = "a range of it"),
        (status = 400, description = "parca is missing or out of range"),
        (status = 401, description = "the key is missing or wrong"),
        (status = 404, description = "no session, or it serves no data"),
        (status = 416, description = "the range lies outside the file"),
        (status = 503, description = "the session is being prepared"),
    ))]
pub async fn data(
    state: web::Data<AppState>,
    request: HttpRequest,
) -> Result<HttpResponse, Refused> {
    let hosted = session_of(&state, &request)?;
    hosted.check_key(&request)?;
    let ready = hosted.ready()?;
    let shards = &ready.session.shards;
    if shards.is_empty() {
        let message = "this session serves no data; volunteers bring their own";
        return Err(Refused::new(StatusCode::NOT_FOUND, message));
    }
    let number = query::number(request.query_string(), "parca")?;
    let shard = usize::try_from(number).ok().and_then(|n| shards.get(n));
    let Some(shard) = shard else {
        return Err(Refused::invalid(format!(
            "parca must be below {}",
            shards.len()
        )));
    };
    let key = keys::shard(ready.session.id(), number);
    let mut response = serving::serve(state.storage.as_ref(), &key, &request).await?;
    set(&mut response, DIGEST_HEADER, &shard.sha256);
    Ok(response)
}

fn set(response: &mut HttpResponse, name: HeaderName, value: &str) {
    // Digits and hexadecimal digits are always a header's value.
    if let Ok(value) = value.parse() {
        response.headers_mut().insert(name, value);
    }
}
