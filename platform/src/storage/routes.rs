//! Routes of local storage: whoever holds a signed URL may do exactly what it says.

use actix_web::http::header::{self, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::json;
use std::time::SystemTime;

use super::object_store::Expected;
use super::signed_url::{PermittedUpload, SignedQuery};
use super::{StorageError, StorageKey, serving};
use crate::artifacts;
use crate::error::{ApiError, ErrorCode};
use crate::federated;
use crate::http::UploadBody;
use crate::server::AppState;

/// Sends an object, wholly or the one range that is asked for.
#[utoipa::path(get, path = "/storage/{key}", tag = "storage", security(()),
    params(("key" = String, Path), ("expires" = u64, Query), ("signature" = String, Query)),
    responses(
        (status = 200, description = "the object"),
        (status = 206, description = "the range"),
        (status = 403, description = "the link is not valid or has expired"),
        (status = 404, description = "no such object"),
        (status = 416, description = "the range lies outside the object"),
    ))]
pub async fn download(
    state: web::Data<AppState>,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let (key, query) = signed_request(&request)?;
    if !state
        .url_signer
        .permits_download(&key, &query, SystemTime::now())
    {
        return Err(not_permitted());
    }
    let mut response = match serving::serve(state.storage.as_ref(), &key, &request).await {
        Err(error @ StorageError::RangeNotSatisfiable { size_bytes }) => {
            let mut response = actix_web::ResponseError::error_response(&ApiError::from(error));
            let value = HeaderValue::from_str(&format!("bytes */{size_bytes}"))
                .map_err(ApiError::internal)?;
            response.headers_mut().insert(header::CONTENT_RANGE, value);
            return Ok(response);
        }
        served => served?,
    };
    let name = format!("attachment; filename=\"{}\"", key.file_name());
    let value = HeaderValue::from_str(&name).map_err(ApiError::internal)?;
    response
        .headers_mut()
        .insert(header::CONTENT_DISPOSITION, value);
    Ok(response)
}

/// Takes an object in. It appears once all of it has come and is what the URL says; else nothing is kept.
#[utoipa::path(put, path = "/storage/{key}", tag = "storage", security(()),
    params(("key" = String, Path), ("expires" = u64, Query), ("size" = Option<u64>, Query),
        ("sha256" = Option<String>, Query), ("most" = Option<u64>, Query), ("signature" = String, Query)),
    request_body(content_type = "application/octet-stream", description = "the object"),
    responses(
        (status = 200, description = "kept"),
        (status = 400, description = "other bytes than those announced"),
        (status = 403, description = "the link is not valid or has expired"),
        (status = 413, description = "more bytes than those announced"),
        (status = 507, description = "the disk is full"),
    ))]
pub async fn upload(
    state: web::Data<AppState>,
    request: HttpRequest,
    mut body: UploadBody,
) -> Result<HttpResponse, ApiError> {
    let stored = take_in(&state, &request, &mut body).await;
    if stored.is_err() {
        body.drain().await;
    }
    stored
}

async fn take_in(
    state: &AppState,
    request: &HttpRequest,
    body: &mut UploadBody,
) -> Result<HttpResponse, ApiError> {
    let (key, query) = signed_request(request)?;
    let permitted = state
        .url_signer
        .permitted_upload(&key, &query, SystemTime::now());
    let expected = match permitted.ok_or_else(not_permitted)? {
        PermittedUpload::Exactly(terms) => Expected::exactly(&terms),
        PermittedUpload::AtMost(most) => Expected::at_most(most),
    };
    artifacts::refuse_of_what_is_gone(state, &key).await?;
    federated::refuse_of_closed_round(state, &key)?;
    store(state, &key, expected, body).await
}

/// What the announced length tells already.
fn check_announced(found_bytes: u64, expected: &Expected) -> Result<(), StorageError> {
    let limit_bytes = expected.size_bytes.unwrap_or(expected.max_bytes);
    if found_bytes > limit_bytes {
        return Err(StorageError::TooLarge { limit_bytes });
    }
    match expected.size_bytes {
        Some(expected_bytes) if found_bytes != expected_bytes => Err(StorageError::WrongSize {
            expected_bytes,
            found_bytes,
        }),
        _ => Ok(()),
    }
}

async fn store(
    state: &AppState,
    key: &StorageKey,
    expected: Expected,
    body: &mut UploadBody,
) -> Result<HttpResponse, ApiError> {
    if let Some(found_bytes) = body.announced_bytes() {
        check_announced(found_bytes, &expected)?;
    }
    let mut writer = state.storage.create(key, expected).await?;
    while let Some(chunk) = body.next_chunk().await? {
        writer.write(chunk).await?;
    }
    let stored = writer.finish().await?;
    Ok(HttpResponse::Ok().json(json!({ "size": stored.size_bytes, "sha256": stored.sha256 })))
}

/// The key as it stands in the path (actix has decoded it once; what is still encoded is no key) and the query.
fn signed_request(request: &HttpRequest) -> Result<(StorageKey, SignedQuery), ApiError> {
    let key = StorageKey::parse(request.match_info().get("key").unwrap_or_default())?;
    let query = web::Query::<SignedQuery>::from_query(request.query_string())
        .map_err(|_| not_permitted())?;
    Ok((key, query.into_inner()))
}

fn not_permitted() -> ApiError {
    ApiError::new(
        ErrorCode::Forbidden,
        "this link is not valid, or has expired; ask for a new one",
    )
}
