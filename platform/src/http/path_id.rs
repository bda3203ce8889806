//! Ids in paths: whole numbers that fit, as they stand.

use actix_web::{FromRequest, HttpRequest, dev::Payload};
use std::fmt::Display;
use std::future::{Ready, ready};
use std::str::FromStr;

use crate::error::ApiError;

/// The `{id}` of a path. What is no id is 400; one that is never issued is simply not found.
pub struct PathId<Id>(pub Id);

impl<Id> FromRequest for PathId<Id>
where
    Id: FromStr + 'static,
    Id::Err: Display,
{
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let text = request.match_info().get("id").unwrap_or_default();
        ready(
            text.parse()
                .map(Self)
                .map_err(|error: Id::Err| ApiError::invalid_field("id", error.to_string())),
        )
    }
}
