//! What the REST routes of all kinds of tasks share.

use serde::Serialize;
use trainyard_shared::message::TaskProgressData;
use utoipa::ToSchema;

use super::Kind;
use super::state::{Answer, Event, Phase};
use crate::actors::Actors;
use crate::error::{ApiError, ErrorCode};

/// How far a task is.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProgressView {
    /// What is done: examples of an evaluation, weights of an export.
    done: u64,
    /// The same in all.
    total: u64,
}

impl From<TaskProgressData> for ProgressView {
    fn from(progress: TaskProgressData) -> Self {
        let TaskProgressData { done, total } = progress;
        Self { done, total }
    }
}

/// Cancels a task; one that was cancelled before stays so.
///
/// # Errors
/// 409 for one that has ended otherwise.
pub async fn cancel<K: Kind>(actors: &Actors, id: K::Id) -> Result<(), ApiError> {
    let answer = K::directory(actors).apply(id, Event::CancelAsked).await?;
    if answer == Answer::Taken {
        return Ok(());
    }
    let row = actors.database.read(move |c| K::row(c, id)).await?;
    let status = K::facts(&row).status;
    if status == Phase::Cancelled(None).as_str() {
        return Ok(());
    }
    let message = format!("the {} has ended: it is {status}", K::NOUN);
    Err(ApiError::new(ErrorCode::Conflict, message))
}
