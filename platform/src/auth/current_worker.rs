//! The worker that a REST request comes from, by its own key as bearer.

use actix_web::{FromRequest, HttpRequest, dev::Payload, web};
use futures_util::future::LocalBoxFuture;
use std::time::Instant;
use trainyard_shared::ids::WorkerId;

use super::{bearer_token, client_address, worker_keys};
use crate::database::DatabaseError;
use crate::error::{ApiError, ErrorCode};
use crate::server::AppState;

/// A worker that has shown its own key. Requests count failures together with the workers' sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentWorker {
    /// The worker.
    pub id: WorkerId,
    /// Its name.
    pub name: String,
}

impl FromRequest for CurrentWorker {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let request = request.clone();
        Box::pin(async move { authenticate(&request).await })
    }
}

async fn authenticate(request: &HttpRequest) -> Result<CurrentWorker, ApiError> {
    let state = request
        .app_data::<web::Data<AppState>>()
        .ok_or_else(|| ApiError::internal("no application state"))?
        .clone();
    let address = client_address(request, &state.config);
    state
        .worker_failures
        .check(address, REST, Instant::now())
        .map_err(|wait| {
            ApiError::new(ErrorCode::RateLimited, "too many wrong keys; wait a while")
                .with_retry_after(wait)
        })?;
    let key = bearer_token(request).unwrap_or_default().to_owned();
    let find = move |connection: &mut _| worker_keys::find(connection, &key);
    match state.database.read::<_, DatabaseError, _>(find).await? {
        Some(owner) => Ok(CurrentWorker {
            id: WorkerId(owner.worker_id),
            name: owner.name,
        }),
        None => {
            state
                .worker_failures
                .record_failure(address, REST, Instant::now());
            Err(ApiError::new(
                ErrorCode::Unauthenticated,
                "this needs a worker's own key",
            ))
        }
    }
}

/// What stands in place of a worker's UUID in the counter of failures, for it is not known here.
const REST: &str = "rest";
