//! Errors as Coordinator protocol v1 has them: `{"hata": "…"}` and a status.

use std::fmt;
use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, ResponseError};
use trainyard_shared::coordinator::Refusal;

use crate::database::DatabaseError;
use crate::error::ApiError;
use crate::storage::StorageError;

/// When to ask again for what is not there yet.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// A request that is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    status: StatusCode,
    message: String,
    retry_after: Option<Duration>,
    size_bytes: Option<u64>,
}

impl Refused {
    /// A refusal with its reason, for a person.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            retry_after: None,
            size_bytes: None,
        }
    }

    /// 400: the request is not valid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 503: a later try may go better.
    pub fn later(message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(TRY_AGAIN),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl ResponseError for Refused {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status);
        if let Some(wait) = self.retry_after {
            response.insert_header((header::RETRY_AFTER, wait.as_secs().to_string()));
        }
        if let Some(size_bytes) = self.size_bytes {
            response.insert_header((header::CONTENT_RANGE, format!("bytes */{size_bytes}")));
        }
        response.json(Refusal {
            message: self.message.clone(),
        })
    }
}

impl From<DatabaseError> for Refused {
    fn from(error: DatabaseError) -> Self {
        ApiError::from(error).into()
    }
}

impl From<StorageError> for Refused {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::RangeNotSatisfiable { size_bytes } => Self {
                size_bytes: Some(size_bytes),
                ..Self::new(StatusCode::RANGE_NOT_SATISFIABLE, error.to_string())
            },
            // 404 would mean that there is no session.
            StorageError::NotFound => {
                tracing::error!("a file of a session is gone");
                Self::later("the file is not there; ask for a new task and try again")
            }
            other => ApiError::from(other).into(),
        }
    }
}

/// What the rest of the platform says, in this protocol's form.
impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        match error.code().status() {
            StatusCode::SERVICE_UNAVAILABLE => Self::later(error.message()),
            status => Self::new(status, error.message()),
        }
    }
}
