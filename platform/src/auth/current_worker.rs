//! The worker that a REST request comes from, by its own key as bearer.

use actix_web::{FromRequest, HttpRequest, dev::Payload, web};
use futures_util::future::LocalBoxFuture;
use trainyard_shared::ids::WorkerId;

use super::{bearer_token, worker_keys};
use crate::database::DatabaseError;
use crate::error::{ApiError, ErrorCode};
use crate::server::AppState;

/// A worker that has shown its own key. Wrong ones are not counted: they cannot be guessed, and workers behind one
/// address must not hold each other up.
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
    let key = bearer_token(request).unwrap_or_default().to_owned();
    let find = move |connection: &mut _| worker_keys::find(connection, &key);
    let owner = state.database.read::<_, DatabaseError, _>(find).await?;
    let owner = owner.ok_or_else(|| {
        ApiError::new(ErrorCode::Unauthenticated, "this needs a worker's own key")
    })?;
    Ok(CurrentWorker {
        id: WorkerId(owner.worker_id),
        name: owner.name,
    })
}
