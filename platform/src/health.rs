//! Whether the platform is alive, and whether it can do its work.

use actix_web::{HttpResponse, web};
use serde_json::json;
use std::time::Duration;

use crate::database::DatabaseError;
use crate::server::AppState;

/// How long a part may take to show that it works.
const PATIENCE: Duration = Duration::from_secs(5);

/// With less room than this the database is as good as full.
const NEEDED_BYTES: u64 = 1 << 20;

/// Answers as long as the process serves requests.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, description = "alive")))]
pub async fn alive() -> HttpResponse {
    HttpResponse::Ok().json(json!({ "status": "ok" }))
}

/// Checks the database and the object store by using them.
#[utoipa::path(get, path = "/readyz", tag = "health", responses(
    (status = 200, description = "ready"),
    (status = 503, description = "a part does not work; the body says which"),
))]
pub async fn ready(state: web::Data<AppState>) -> HttpResponse {
    let (database, storage) = tokio::join!(
        tokio::time::timeout(PATIENCE, database_works(&state)),
        tokio::time::timeout(PATIENCE, state.storage.check()),
    );
    let parts = [
        (
            "database",
            database.map(|done| done.map_err(|error| error.to_string())),
        ),
        (
            "storage",
            storage.map(|done| done.map_err(|error| error.to_string())),
        ),
    ];
    let mut all_work = true;
    let mut body = serde_json::Map::new();
    for (part, outcome) in parts {
        let text = match outcome {
            Ok(Ok(())) => "ok".to_owned(),
            Ok(Err(reason)) => reason,
            Err(_) => "no answer in time".to_owned(),
        };
        if text != "ok" {
            all_work = false;
            tracing::warn!(part, reason = text, "not ready");
        }
        body.insert(part.to_owned(), text.into());
    }
    body.insert(
        "status".to_owned(),
        if all_work { "ready" } else { "not_ready" }.into(),
    );
    if all_work {
        HttpResponse::Ok()
    } else {
        HttpResponse::ServiceUnavailable()
    }
    .json(body)
}

async fn database_works(state: &AppState) -> Result<(), DatabaseError> {
    use diesel::prelude::*;
    // Reading goes on when nothing can be written any more.
    let folder = state.config.database_path.parent();
    if let Some(folder) = folder.filter(|folder| !folder.as_os_str().is_empty())
        && rustix::fs::statvfs(folder)
            .is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) < NEEDED_BYTES)
    {
        return Err(DatabaseError::Full);
    }
    state
        .database
        .read(|connection| {
            use crate::database::schema::users::dsl::{id, users};
            users.select(id).first::<i64>(connection).optional()?;
            Ok(())
        })
        .await
}
