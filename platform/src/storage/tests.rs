//! Signed uploads and downloads over a real socket.

use reqwest::{Method, header};
use serde_json::Value;
use std::time::Duration;

use super::{StorageKey, UploadTerms};
use crate::testing::{Platform, answer};

const MINUTE: Duration = Duration::from_secs(60);
const SHA256_OF_HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

fn key(text: &str) -> StorageKey {
    StorageKey::parse(text).unwrap()
}

/// Where to put "hello".
fn target(platform: &Platform, at: &str) -> String {
    let terms = UploadTerms {
        size_bytes: 5,
        sha256: SHA256_OF_HELLO.to_owned(),
    };
    platform
        .server
        .state
        .storage
        .upload_target(&key(at), &terms, MINUTE)
        .url
        .into_exposed()
}

fn download_url(platform: &Platform, at: &str) -> String {
    platform
        .server
        .state
        .storage
        .download_url(&key(at), MINUTE)
        .into_exposed()
}

async fn put(platform: &Platform, url: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    let (status, body) = answer(platform.client.put(url).body(body).send().await.unwrap()).await;
    (status.as_u16(), body)
}

async fn platform_with_hello() -> (Platform, String) {
    let platform = Platform::start(&[]).await;
    assert_eq!(
        put(&platform, &target(&platform, "a/hello.bin"), "hello")
            .await
            .0,
        200
    );
    let url = download_url(&platform, "a/hello.bin");
    (platform, url)
}

#[actix_web::test]
async fn what_is_put_under_a_signed_url_can_be_read_under_another() {
    let (platform, url) = platform_with_hello().await;
    let response = platform.client.get(&url).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()[header::CONTENT_LENGTH], "5");
    assert_eq!(response.headers()[header::ACCEPT_RANGES], "bytes");
    assert_eq!(response.text().await.unwrap(), "hello");
    let missing = platform
        .client
        .get(download_url(&platform, "a/other.bin"))
        .send()
        .await
        .unwrap();
    assert_eq!(missing.status(), 404);
}

#[actix_web::test]
async fn parts_of_an_object_are_sent_on_request() {
    let (platform, url) = platform_with_hello().await;
    let get = |range: &str| platform.client.get(&url).header(header::RANGE, range);
    for (range, expected, shown) in [
        ("bytes=1-3", "ell", "bytes 1-3/5"),
        ("bytes=3-", "lo", "bytes 3-4/5"),
        ("bytes=-2", "lo", "bytes 3-4/5"),
        ("bytes=0-99", "hello", "bytes 0-4/5"),
    ] {
        let response = get(range).send().await.unwrap();
        assert_eq!(response.status(), 206, "{range}");
        assert_eq!(response.headers()[header::CONTENT_RANGE], shown);
        assert_eq!(response.text().await.unwrap(), expected);
    }
    let outside = get("bytes=5-").send().await.unwrap();
    assert_eq!(
        (
            outside.status().as_u16(),
            &outside.headers()[header::CONTENT_RANGE]
        ),
        (416, &"bytes */5".parse().unwrap())
    );
    assert_eq!(get("bytes=0-1,3-4").send().await.unwrap().status(), 200);

    let etag = platform.client.head(&url).send().await.unwrap().headers()[header::ETAG].clone();
    let same = get("bytes=1-")
        .header(header::IF_RANGE, &etag)
        .send()
        .await
        .unwrap();
    assert_eq!(same.status(), 206);
    let other = get("bytes=1-")
        .header(header::IF_RANGE, "\"another\"")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (
            other.status().as_u16(),
            other.text().await.unwrap().as_str()
        ),
        (200, "hello")
    );
}

#[actix_web::test]
async fn head_tells_the_size_without_the_bytes() {
    let (platform, url) = platform_with_hello().await;
    let response = platform.client.head(&url).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()[header::CONTENT_LENGTH], "5");
    assert_eq!(response.bytes().await.unwrap().len(), 0);
    assert_eq!(
        platform.client.get(&url).send().await.unwrap().status(),
        200,
        "the connection is in order"
    );
}

#[actix_web::test]
async fn an_upload_takes_exactly_the_bytes_that_were_announced() {
    let platform = Platform::start(&[]).await;
    let url = target(&platform, "a/x");
    assert_eq!(put(&platform, &url, "hell").await.0, 400);
    assert_eq!(put(&platform, &url, "jello").await.0, 400);
    assert_eq!(put(&platform, &url, "hello!").await.0, 413);
    let pieces = ["hel", "lo", " and more"].map(Ok::<_, std::io::Error>);
    let unannounced = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    assert_eq!(put(&platform, &url, unannounced).await.0, 413);
    assert_eq!(
        platform
            .client
            .get(download_url(&platform, "a/x"))
            .send()
            .await
            .unwrap()
            .status(),
        404
    );
    assert_eq!(put(&platform, &url, "hello").await.0, 200);
    assert_eq!(
        put(&platform, &url, "hello").await.0,
        200,
        "a repeat is harmless"
    );
}

#[actix_web::test]
async fn a_url_that_was_changed_opens_nothing() {
    let (platform, url) = platform_with_hello().await;
    let upload = target(&platform, "a/hello.bin");
    let unsigned = url.split('?').next().unwrap().to_owned();
    for changed in [
        unsigned,
        url.replace("expires=", "expires=1"),
        url.replace("a/hello.bin", "a/hello.bim"),
        format!("{url}00"),
        upload.clone(),
    ] {
        let response = platform.client.get(&changed).send().await.unwrap();
        assert_eq!(response.status(), 403, "{changed}");
    }
    assert_eq!(
        put(&platform, &upload.replace("size=5", "size=6"), "hello!")
            .await
            .0,
        403
    );
    assert_eq!(
        put(&platform, &url, "hello").await.0,
        403,
        "a URL for reading"
    );
    assert_eq!(
        platform
            .request(Method::DELETE, "/storage/a/hello.bin")
            .send()
            .await
            .unwrap()
            .status(),
        405
    );
}

/// G044: no spelling of a path reaches a file outside of the store. The signature is not even looked at.
#[actix_web::test]
async fn g044_no_spelling_of_a_path_leaves_the_root() {
    let platform = Platform::start(&[]).await;
    for path in [
        "/storage/../../../../etc/passwd",
        "/storage//etc/passwd",
        "/storage/%2e%2e%2f%2e%2e%2fetc/passwd",
        "/storage/%2e%2e/secret_key",
        "/storage/..%2fsecret_key",
        "/storage/..%5csecret_key",
        "/storage/a/../../secret_key",
        "/storage/a%00b",
        "/storage/%252e%252e/secret_key",
        "/storage/",
    ] {
        let request = format!(
            "GET {path}?expires=1&signature=00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        );
        let answer = raw(&platform, request).await;
        let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
        assert!(
            ["400", "404"].contains(&status.as_str()),
            "{path}: {answer}"
        );
    }
}

async fn raw(platform: &Platform, request: String) -> String {
    use std::io::{Read, Write};
    let address = platform.server.address;
    tokio::task::spawn_blocking(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    })
    .await
    .unwrap()
}
