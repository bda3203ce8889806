//! Query strings: each parameter once, and only those that exist.

use actix_web::{FromRequest, HttpRequest, dev::Payload, web};
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::future::{Ready, ready};

use super::strict_json::named_field;
use crate::error::ApiError;

/// The parsed query of a request. Types are expected to deny unknown fields.
pub struct StrictQuery<T>(pub T);

impl<T: DeserializeOwned + 'static> FromRequest for StrictQuery<T> {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(parse(request.query_string()))
    }
}

fn parse<T: DeserializeOwned>(query: &str) -> Result<StrictQuery<T>, ApiError> {
    let mut seen = HashSet::new();
    for (name, _) in url::form_urlencoded::parse(query.as_bytes()) {
        if !seen.insert(name.clone()) {
            return Err(ApiError::invalid_field(&name, "stands twice in the query"));
        }
    }
    match web::Query::<T>::from_query(query) {
        Ok(parsed) => Ok(StrictQuery(parsed.into_inner())),
        Err(error) => {
            let message = reason(&error);
            let field = named_field(&message).unwrap_or_else(|| "query".to_owned());
            Err(ApiError::invalid_field(&field, message))
        }
    }
}

fn reason(error: &actix_web::error::QueryPayloadError) -> String {
    let text = error.to_string();
    text.strip_prefix("Query deserialize error: ")
        .map_or(text.clone(), str::to_owned)
}
