//! Objects as answers to GET and HEAD, wholly or the one range that is asked for.

use actix_web::body::SizedStream;
use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse};

use super::object_store::{ByteRange, ObjectInfo, ObjectStore};
use super::{StorageError, StorageKey};

/// The answer with an object, or with the range of it that the request asks for.
///
/// # Errors
/// [`StorageError::NotFound`], [`StorageError::RangeNotSatisfiable`], and those of the store.
pub async fn serve(
    storage: &dyn ObjectStore,
    key: &StorageKey,
    request: &HttpRequest,
) -> Result<HttpResponse, StorageError> {
    let info = storage.info(key).await?;
    let mut range = wanted_range(request, &info);
    let mut opened = storage.open(key, range).await;
    if range.is_some() && opened.as_ref().is_ok_and(|it| it.info.etag != info.etag) {
        // Replaced in between: a range of it must not be joined to what the client has.
        range = None;
        opened = storage.open(key, None).await;
    }
    let object = opened?;
    let mut response = if range.is_some() {
        HttpResponse::PartialContent()
    } else {
        HttpResponse::Ok()
    };
    response
        .insert_header((header::CONTENT_TYPE, "application/octet-stream"))
        .insert_header((header::ACCEPT_RANGES, "bytes"))
        .insert_header((header::ETAG, format!("\"{}\"", object.info.etag)))
        .insert_header((
            header::LAST_MODIFIED,
            header::HttpDate::from(object.info.modified),
        ))
        .insert_header((header::CACHE_CONTROL, "private, no-cache"));
    if range.is_some() {
        let last = object.start + object.length - 1;
        let value = format!("bytes {}-{last}/{}", object.start, object.info.size_bytes);
        response.insert_header((header::CONTENT_RANGE, value));
    }
    Ok(response.body(SizedStream::new(object.length, object.chunks)))
}

/// The one range that is asked for. Several at once, and what is no range, count as none; so does a range of
/// another version of the object than the one that there is.
fn wanted_range(request: &HttpRequest, info: &ObjectInfo) -> Option<ByteRange> {
    let text = |name| {
        request
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let range = parse_range(text(header::RANGE)?)?;
    match text(header::IF_RANGE) {
        Some(version) if version.trim_matches('"') != info.etag => None,
        _ => Some(range),
    }
}

fn parse_range(value: &str) -> Option<ByteRange> {
    let (first, last) = value.trim().strip_prefix("bytes=")?.split_once('-')?;
    match (first.trim(), last.trim()) {
        ("", last) => last.parse().ok().map(ByteRange::Last),
        (first, "") => first.parse().ok().map(ByteRange::From),
        (first, last) => match (first.parse().ok()?, last.parse().ok()?) {
            (first, last) if first <= last => Some(ByteRange::FromTo(first, last)),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_read_and_anything_else_is_none() {
        assert_eq!(parse_range("bytes=0-99"), Some(ByteRange::FromTo(0, 99)));
        assert_eq!(parse_range("bytes=100-"), Some(ByteRange::From(100)));
        assert_eq!(parse_range("bytes=-5"), Some(ByteRange::Last(5)));
        for other in [
            "bytes=",
            "bytes=-",
            "bytes=5-4",
            "bytes=0-1,3-4",
            "lines=1-2",
            "bytes=a-b",
            "bytes=-1-2",
        ] {
            assert_eq!(parse_range(other), None, "{other}");
        }
    }
}
