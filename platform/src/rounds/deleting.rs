//! Deletes a session that has ended: the rows first, then the files, so that nothing ever refers to what is not there.

use trainyard_shared::ids::FederatedSessionId;

use super::{leftovers, store};
use crate::error::{ApiError, ErrorCode};
use crate::models::target::Origin;
use crate::server::AppState;
use crate::{evaluations, rounds};

/// Deletes a session whose owner wants that.
///
/// # Errors
/// 409 for one that has not ended, or whose model an evaluation needs that has not; those of the database.
pub async fn delete(state: &AppState, id: FederatedSessionId) -> Result<(), ApiError> {
    let model = Origin::Federated(id).name();
    state
        .database
        .write::<_, ApiError, _>(move |connection| {
            if evaluations::store::uses_model(connection, &model)? {
                let message = "an evaluation that has not ended uses this session's model";
                return Err(ApiError::new(ErrorCode::InUse, message));
            }
            if !rounds::store::delete(connection, id)? {
                let status = store::row(connection, id)?.status;
                let message = format!("the session is {status}; stop it first");
                return Err(ApiError::new(ErrorCode::Conflict, message));
            }
            Ok(())
        })
        .await?;
    leftovers::remove_all(&state.actors, id).await;
    Ok(())
}
