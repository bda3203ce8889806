//! JSON bodies: the right content type, of bounded size and time, strictly read, each field of its one type.

use actix_web::http::header;
use actix_web::{FromRequest, HttpRequest, dev::Payload};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use serde::de::DeserializeOwned;
use std::time::Duration;
use trainyard_shared::json;

use crate::error::{ApiError, ErrorCode, FieldProblem};

/// Largest JSON body.
const MAX_BODY_BYTES: usize = 1 << 20;
/// How long a client may take to send one.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);

/// The parsed JSON body of a request. Types are expected to deny unknown fields.
pub struct StrictJson<T>(pub T);

impl<T: DeserializeOwned + 'static> FromRequest for StrictJson<T> {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let content_type = check_content_type(request);
        let has_type = request.headers().contains_key(header::CONTENT_TYPE);
        let payload = payload.take();
        Box::pin(async move {
            let body = tokio::time::timeout(BODY_TIMEOUT, read(payload))
                .await
                .map_err(|_| {
                    ApiError::new(
                        ErrorCode::RequestTimeout,
                        "the body took too long to arrive",
                    )
                })??;
            // No body at all is an empty object: where no field is needed none has to be sent.
            if body.is_empty() && !has_type {
                return parse(b"{}");
            }
            content_type?;
            parse(&body)
        })
    }
}

fn check_content_type(request: &HttpRequest) -> Result<(), ApiError> {
    let given = request
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = given
        .and_then(|text| text.split(';').next())
        .map(|text| text.trim().to_ascii_lowercase());
    match essence.as_deref() {
        Some("application/json") => Ok(()),
        _ => Err(ApiError::new(
            ErrorCode::UnsupportedMediaType,
            "the body must be application/json",
        )),
    }
}

async fn read(mut payload: Payload) -> Result<Vec<u8>, ApiError> {
    let mut body = Vec::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk
            .map_err(|error| ApiError::invalid_field("", format!("the body broke off: {error}")))?;
        if body.len() + chunk.len() > MAX_BODY_BYTES {
            let message = format!("a JSON body must not be larger than {MAX_BODY_BYTES} bytes");
            return Err(ApiError::new(ErrorCode::TooLarge, message));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<StrictJson<T>, ApiError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        ApiError::invalid_field(
            "",
            format!("the body is not UTF-8 at byte {}", error.valid_up_to()),
        )
    })?;
    let value =
        json::parse(text).map_err(|error| ApiError::invalid_field("", error.to_string()))?;
    serde_path_to_error::deserialize(json::Typed(&value))
        .map(StrictJson)
        .map_err(|error| {
            let path = error.path().to_string();
            let message = error.into_inner().to_string();
            let field = match path.as_str() {
                "." => named_field(&message).unwrap_or_default(),
                _ => path,
            };
            ApiError::invalid(vec![FieldProblem::new(field, message)])
        })
}

/// The field that serde names in a message about one that is missing or unknown.
pub(super) fn named_field(message: &str) -> Option<String> {
    let named = ["missing field `", "unknown field `", "duplicate field `"];
    let rest = named.iter().find_map(|start| message.strip_prefix(start))?;
    rest.split('`').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::ResponseError;
    use actix_web::body::to_bytes;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        #[allow(dead_code)]
        count: i64,
        #[allow(dead_code)]
        note: Option<String>,
    }

    async fn refusal(body: &[u8]) -> serde_json::Value {
        let Err(error) = parse::<Body>(body) else {
            panic!("taken: {}", String::from_utf8_lossy(body))
        };
        assert_eq!(error.error_response().status(), 400);
        serde_json::from_slice(&to_bytes(error.error_response().into_body()).await.unwrap())
            .unwrap()
    }

    /// G038: a field has one type, and the refusal names the field.
    #[actix_web::test]
    async fn g038_a_value_of_another_type_is_refused_by_the_field_s_name() {
        for wrong in [
            "\"1\"",
            "1.0",
            "1e2",
            "true",
            "null",
            "[1]",
            "9223372036854775808",
            "{}",
        ] {
            let answer = refusal(format!("{{\"count\":{wrong}}}").as_bytes()).await;
            assert_eq!(answer["error"]["code"], "invalid_request");
            assert_eq!(answer["error"]["details"][0]["field"], "count", "{wrong}");
        }
        assert_eq!(
            refusal(b"{}").await["error"]["details"][0]["field"],
            "count"
        );
        assert_eq!(
            refusal(b"{\"count\":1,\"cuont\":2}").await["error"]["details"][0]["field"],
            "cuont"
        );
    }

    /// G039: half of a surrogate pair is refused with its position; a whole pair is text.
    #[actix_web::test]
    async fn g039_a_lone_surrogate_is_refused_with_its_position() {
        let answer = refusal(br#"{"count":1,"note":"hi \ud83d"}"#).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("surrogate") && message.contains("column"),
            "{message}"
        );
        assert!(parse::<Body>(br#"{"count":1,"note":"hi \ud83d\ude0a"}"#).is_ok());
    }

    #[actix_web::test]
    async fn what_is_no_strict_json_is_refused() {
        for body in [
            &b"{\"count\":1,\"count\":2}"[..],
            b"{\"count\":NaN}",
            b"{\"count\":1e400}",
            b"{\"count\":1}x",
            b"",
            b"\xff\xfe",
        ] {
            refusal(body).await;
        }
        refusal(format!("{}{}", "[".repeat(100), "]".repeat(100)).as_bytes()).await;
    }
}
