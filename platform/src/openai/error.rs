//! Errors in the shape that OpenAI's clients read.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, ResponseError};
use serde::Serialize;
use serde_json::Value;
use std::fmt;

use crate::error::{ApiError, ErrorCode, FieldProblem};
use crate::inference::state::Failure;

/// An error on its way to a client.
#[derive(Debug, Clone)]
pub struct OpenAiError {
    status: StatusCode,
    body: Box<Body>,
    retry_after: Option<header::HeaderValue>,
    /// Whether another try may help: the clients of OpenAI try again by themselves unless told not to.
    may_retry: bool,
}

/// What stands below `error`.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct Body {
    message: String,
    r#type: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
}

/// The whole of it.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct OpenAiErrorBody {
    error: Body,
}

impl OpenAiError {
    /// A parameter that is not taken.
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        ApiError::invalid_field(param, message).into()
    }

    /// A model that there is not, or that may not be seen.
    pub fn no_such_model(name: &str) -> Self {
        let why = format!("The model `{name}` does not exist or you do not have access to it.");
        let mut error = Self::from(ApiError::new(ErrorCode::NotFound, why));
        error.body.param = Some("model".to_owned());
        error.body.code = Some("model_not_found");
        error
    }

    /// The same as JSON, for a stream that has begun.
    pub fn to_json(&self) -> String {
        let body = OpenAiErrorBody {
            error: Body::clone(&self.body),
        };
        serde_json::to_string(&body).unwrap_or_default()
    }
}

impl From<ApiError> for OpenAiError {
    fn from(error: ApiError) -> Self {
        let code = error.code();
        let status = code.status();
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        let code = match code {
            ErrorCode::Unauthenticated => "invalid_api_key",
            other => other.as_str(),
        };
        let response = error.error_response();
        let retry_after = response.headers().get(header::RETRY_AFTER).cloned();
        Self {
            status,
            body: Box::new(Body {
                message: error.message().to_owned(),
                r#type: kind,
                param: first_field(&error),
                code: Some(code),
            }),
            retry_after,
            may_retry: true,
        }
    }
}

impl From<Failure> for OpenAiError {
    fn from(failure: Failure) -> Self {
        Self {
            may_retry: failure.blame.may_pass(),
            ..ApiError::from(failure).into()
        }
    }
}

fn first_field(error: &ApiError) -> Option<String> {
    let details: &Value = error.details()?;
    let field = details.get(0)?.get("field")?.as_str()?;
    (!field.is_empty()).then(|| field.to_owned())
}

/// Several problems at once.
pub fn invalid(problems: Vec<FieldProblem>) -> OpenAiError {
    ApiError::invalid(problems).into()
}

impl fmt::Display for OpenAiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.body.r#type, self.body.message)
    }
}

impl std::error::Error for OpenAiError {}

impl ResponseError for OpenAiError {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status);
        if let Some(wait) = &self.retry_after {
            response.insert_header((header::RETRY_AFTER, wait.clone()));
        }
        if !self.may_retry {
            response.insert_header(("x-should-retry", "false"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        }
        response.json(OpenAiErrorBody {
            error: Body::clone(&self.body),
        })
    }
}
