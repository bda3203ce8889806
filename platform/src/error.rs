//! Owns the only map from errors to HTTP: one table of codes and statuses, and the JSON form of an error.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, ResponseError};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

use crate::database::DatabaseError;
use crate::storage::StorageError;

/// What went wrong, as clients read it in `error.code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// The request itself is refused; `details` names the fields.
    InvalidRequest,
    /// No credential, or one that is not (or no longer) valid.
    Unauthenticated,
    /// E-mail and password do not fit together.
    LoginFailed,
    /// A request that changes something came with the cookie but without its CSRF token.
    CsrfRequired,
    /// May be seen, but not done, by this user.
    Forbidden,
    /// Does not exist, or may not be seen by this user.
    NotFound,
    /// The path exists, but not with this method.
    MethodNotAllowed,
    /// The client took too long to send its request.
    RequestTimeout,
    /// Something else already has this name, address or identity.
    AlreadyExists,
    /// The object is in use by something that has not ended.
    InUse,
    /// The last administrator can be neither removed nor demoted.
    LastAdmin,
    /// The state does not allow it: the job has ended.
    JobEnded,
    /// The state does not allow it: the job is still running.
    JobRunning,
    /// The state does not allow it, for a reason that the message gives.
    Conflict,
    /// The body has no declared length where one is needed.
    LengthRequired,
    /// The body is larger than what is allowed.
    TooLarge,
    /// Path and headers are larger than what is allowed.
    HeadTooLarge,
    /// The body has another type than the one asked for.
    UnsupportedMediaType,
    /// The range lies outside the object.
    RangeNotSatisfiable,
    /// The data set has bad rows; `details` is the report.
    BadRows,
    /// Too many tries; `Retry-After` says when to try again.
    RateLimited,
    /// The quota of this user is used up.
    QuotaExceeded,
    /// A fault of ours; the context is in the log.
    Internal,
    /// Too busy at the moment, or shutting down; try again.
    Unavailable,
    /// The disk is full.
    StorageFull,
    /// No worker can take the request, at least not in time.
    NoWorker,
    /// The worker could not answer, or was lost while it did.
    InferenceFailed,
    /// The worker was silent for too long.
    InferenceTimeout,
}

impl ErrorCode {
    /// The code as written in JSON, and its HTTP status.
    const fn row(self) -> (&'static str, StatusCode) {
        match self {
            Self::InvalidRequest => ("invalid_request", StatusCode::BAD_REQUEST),
            Self::Unauthenticated => ("unauthenticated", StatusCode::UNAUTHORIZED),
            Self::LoginFailed => ("login_failed", StatusCode::UNAUTHORIZED),
            Self::CsrfRequired => ("csrf_required", StatusCode::FORBIDDEN),
            Self::Forbidden => ("forbidden", StatusCode::FORBIDDEN),
            Self::NotFound => ("not_found", StatusCode::NOT_FOUND),
            Self::MethodNotAllowed => ("method_not_allowed", StatusCode::METHOD_NOT_ALLOWED),
            Self::RequestTimeout => ("request_timeout", StatusCode::REQUEST_TIMEOUT),
            Self::AlreadyExists => ("already_exists", StatusCode::CONFLICT),
            Self::InUse => ("in_use", StatusCode::CONFLICT),
            Self::LastAdmin => ("last_admin", StatusCode::CONFLICT),
            Self::JobEnded => ("job_ended", StatusCode::CONFLICT),
            Self::JobRunning => ("job_running", StatusCode::CONFLICT),
            Self::Conflict => ("conflict", StatusCode::CONFLICT),
            Self::LengthRequired => ("length_required", StatusCode::LENGTH_REQUIRED),
            Self::TooLarge => ("too_large", StatusCode::PAYLOAD_TOO_LARGE),
            Self::HeadTooLarge => (
                "head_too_large",
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            ),
            Self::UnsupportedMediaType => {
                ("unsupported_media_type", StatusCode::UNSUPPORTED_MEDIA_TYPE)
            }
            Self::RangeNotSatisfiable => {
                ("range_not_satisfiable", StatusCode::RANGE_NOT_SATISFIABLE)
            }
            Self::BadRows => ("bad_rows", StatusCode::UNPROCESSABLE_ENTITY),
            Self::RateLimited => ("rate_limited", StatusCode::TOO_MANY_REQUESTS),
            Self::QuotaExceeded => ("quota_exceeded", StatusCode::FORBIDDEN),
            Self::Internal => ("internal", StatusCode::INTERNAL_SERVER_ERROR),
            Self::Unavailable => ("unavailable", StatusCode::SERVICE_UNAVAILABLE),
            Self::StorageFull => ("storage_full", StatusCode::INSUFFICIENT_STORAGE),
            Self::NoWorker => ("no_worker", StatusCode::SERVICE_UNAVAILABLE),
            Self::InferenceFailed => ("inference_failed", StatusCode::BAD_GATEWAY),
            Self::InferenceTimeout => ("inference_timeout", StatusCode::GATEWAY_TIMEOUT),
        }
    }

    /// The code as written in JSON.
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// The HTTP status that goes with the code.
    pub const fn status(self) -> StatusCode {
        self.row().1
    }
}

/// One refused field of a request, as listed in `error.details`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct FieldProblem {
    /// The field's name, dotted for a field within another; empty for the body as a whole.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
    /// What to do about it, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl FieldProblem {
    /// A problem without a hint.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
            hint: None,
        }
    }
}

/// An error on its way to a client. The message is for the client; context was logged where it was handled.
#[derive(Debug, Clone)]
pub struct ApiError {
    code: ErrorCode,
    message: String,
    details: Option<Value>,
    retry_after: Option<Duration>,
}

impl ApiError {
    /// An error with a message for the client.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: None,
            retry_after: None,
        }
    }

    /// Something that does not exist or may not be seen: both look the same.
    pub fn not_found(what: &str) -> Self {
        Self::new(ErrorCode::NotFound, format!("no such {what}"))
    }

    /// A refused request, with the fields that are to blame.
    pub fn invalid(problems: Vec<FieldProblem>) -> Self {
        let message = match problems.as_slice() {
            [one] if one.field.is_empty() => one.message.clone(),
            [one] => format!("{}: {}", one.field, one.message),
            many => format!("{} fields are not valid", many.len()),
        };
        Self::new(ErrorCode::InvalidRequest, message).with_details(json!(problems))
    }

    /// A refused request where one field is to blame.
    pub fn invalid_field(field: &str, message: impl Into<String>) -> Self {
        Self::invalid(vec![FieldProblem::new(field, message)])
    }

    /// A fault of ours: logged here with its context, told to the client without it.
    pub fn internal(context: impl fmt::Display) -> Self {
        tracing::error!(error = %context, "request failed");
        Self::new(
            ErrorCode::Internal,
            "internal error; the platform's log has the details",
        )
    }

    /// Adds `error.details`.
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    /// Adds a `Retry-After` header, rounded up to whole seconds.
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// What went wrong.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// `error.details`.
    pub fn details(&self) -> Option<&Value> {
        self.details.as_ref()
    }

    /// The message for the client.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

impl std::error::Error for ApiError {}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        self.code.status()
    }

    fn error_response(&self) -> HttpResponse {
        let mut error = json!({ "code": self.code.as_str(), "message": self.message });
        if let Some(details) = &self.details {
            error["details"] = details.clone();
        }
        let mut response = HttpResponse::build(self.code.status());
        if let Some(wait) = self.retry_after {
            let seconds = (wait.as_millis().div_ceil(1000)).max(1);
            response.insert_header((header::RETRY_AFTER, seconds.to_string()));
        }
        if self.code.status() == StatusCode::UNAUTHORIZED {
            response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        }
        response.json(json!({ "error": error }))
    }
}

impl From<DatabaseError> for ApiError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::NotFound => Self::not_found("object"),
            DatabaseError::Full => Self::storage_full(&error),
            DatabaseError::Busy | DatabaseError::Stopped => {
                tracing::warn!(%error, "database unavailable");
                Self::new(ErrorCode::Unavailable, "the database is busy; try again")
                    .with_retry_after(Duration::from_secs(1))
            }
            DatabaseError::Duplicate(_) => {
                tracing::warn!(%error, "duplicate row refused");
                Self::new(
                    ErrorCode::AlreadyExists,
                    "something else already has this name or identity",
                )
            }
            DatabaseError::Referenced(_) => {
                tracing::warn!(%error, "row in use");
                Self::new(ErrorCode::InUse, "the object is in use")
            }
            DatabaseError::Open { .. }
            | DatabaseError::Migration(_)
            | DatabaseError::Panicked
            | DatabaseError::Query(_) => Self::internal(error),
        }
    }
}

impl From<diesel::result::Error> for ApiError {
    fn from(error: diesel::result::Error) -> Self {
        DatabaseError::from(error).into()
    }
}

impl From<StorageError> for ApiError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::NotFound => Self::not_found("object"),
            StorageError::InvalidKey(reason) => Self::invalid_field("key", reason),
            StorageError::TooLarge { limit_bytes } => Self::new(
                ErrorCode::TooLarge,
                format!("the body is larger than the {limit_bytes} bytes that are allowed"),
            ),
            StorageError::WrongSize { .. } | StorageError::WrongDigest { .. } => {
                Self::invalid_field("", error.to_string())
            }
            StorageError::RangeNotSatisfiable { .. } => {
                Self::new(ErrorCode::RangeNotSatisfiable, error.to_string())
            }
            StorageError::Full => Self::storage_full(&error),
            StorageError::Io { .. } => Self::internal(error),
        }
    }
}

impl ApiError {
    fn storage_full(context: &dyn fmt::Display) -> Self {
        tracing::error!(error = %context, "no space left");
        Self::new(
            ErrorCode::StorageFull,
            "the platform's disk is full; nothing of this request was kept. Free some space and try again",
        )
    }
}
