//! How requests are answered that no handler is meant for, and what every answer has in common.

use reqwest::{Method, header};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::server::AppState;
use crate::testing::{Platform, answer, eventually};

/// Sends raw bytes and gives what came back until the connection was closed or reset.
async fn raw(platform: &Platform, request: String) -> String {
    let address = platform.server.address;
    let exchange = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
        // A server that has seen enough resets the connection, also while we still write.
        let _ = stream.write_all(request.as_bytes());
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => text.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("the connection was left open: {error}"),
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    };
    tokio::task::spawn_blocking(exchange).await.unwrap()
}

#[actix_web::test]
async fn what_has_no_route_is_answered_in_the_form_of_all_errors() {
    let platform = Platform::start(&[]).await;
    let (status, body) = answer(
        platform
            .request(Method::GET, "/nowhere")
            .send()
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(
        (status.as_u16(), body["error"]["code"].as_str()),
        (404, Some("not_found"))
    );

    let wrong = platform
        .request(Method::PUT, "/api/users/1")
        .send()
        .await
        .unwrap();
    assert_eq!(wrong.headers()[header::ALLOW], "GET, PATCH, DELETE, HEAD");
    let (status, body) = answer(wrong).await;
    assert_eq!(
        (status.as_u16(), body["error"]["code"].as_str()),
        (405, Some("method_not_allowed"))
    );
}

#[actix_web::test]
async fn who_closes_its_side_once_all_is_sent_still_gets_an_answer() {
    let platform = Platform::start(&[]).await;
    let address = platform.server.address;
    let exchange = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let body = r#"{"email":"a@example.org","password":"wrong"}"#;
        write!(
            stream,
            "POST /api/auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let answer = tokio::task::spawn_blocking(exchange).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[actix_web::test]
async fn bodies_that_are_no_json_are_refused_by_what_is_wrong_with_them() {
    let platform = Platform::start(&[]).await;
    let login = || platform.request(Method::POST, "/api/auth/login");
    let text = answer(login().body("email=a").send().await.unwrap()).await;
    assert_eq!(
        (text.0.as_u16(), text.1["error"]["code"].as_str()),
        (415, Some("unsupported_media_type"))
    );
    let json = |body: String| {
        login()
            .header(header::CONTENT_TYPE, "application/json; charset=utf-8")
            .body(body)
    };
    let broken = answer(json("{\"email\":".to_owned()).send().await.unwrap()).await;
    assert_eq!(
        (broken.0.as_u16(), broken.1["error"]["code"].as_str()),
        (400, Some("invalid_request"))
    );
    let large = format!("{{\"email\":\"{}\"}}", "x".repeat(2 << 20));
    let large = answer(json(large).send().await.unwrap()).await;
    assert_eq!(
        (large.0.as_u16(), large.1["error"]["code"].as_str()),
        (413, Some("too_large"))
    );
    let empty = answer(login().send().await.unwrap()).await;
    assert_eq!(empty.1["error"]["details"][0]["field"], "email");
}

/// G037: an id that is never issued is not found, one that does not fit is no id; none matches a neighbour.
#[actix_web::test]
async fn g037_ids_out_of_range_match_no_neighbour() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    for (id, expected) in [
        ("9007199254740991", 404),
        ("9007199254740993", 404),
        ("9223372036854775807", 404),
        ("9223372036854775808", 400),
        ("0", 400),
        ("-1", 400),
        ("1.0", 400),
        ("+1", 400),
        ("one", 400),
    ] {
        for path in ["users", "datasets"] {
            let (status, body) = admin.get(&format!("/api/{path}/{id}")).await;
            assert_eq!(status, expected, "{path}/{id}: {body}");
            assert!(body["error"]["code"].is_string());
        }
    }
}

#[actix_web::test]
async fn every_answer_carries_the_security_headers() {
    let platform = Platform::start(&[]).await;
    for path in [
        "/healthz",
        "/nowhere",
        "/api/me",
        "/api/docs/",
        "/storage/x",
    ] {
        let response = platform.request(Method::GET, path).send().await.unwrap();
        let header = |name: &str| {
            response
                .headers()
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(
            header("x-content-type-options").as_deref(),
            Some("nosniff"),
            "{path}"
        );
        assert_eq!(header("x-frame-options").as_deref(), Some("DENY"), "{path}");
        assert!(header("content-security-policy").is_some(), "{path}");
        if path.starts_with("/api/m") {
            assert_eq!(header("cache-control").as_deref(), Some("no-store"));
        }
    }
}

#[actix_web::test]
async fn the_platform_shows_that_it_is_alive_ready_and_described() {
    let platform = Platform::start(&[]).await;
    let get =
        async |path: &str| answer(platform.request(Method::GET, path).send().await.unwrap()).await;
    assert_eq!(get("/healthz").await.0, 200);
    let (status, ready) = get("/readyz").await;
    assert_eq!(status, 200);
    assert_eq!(
        (ready["database"].as_str(), ready["storage"].as_str()),
        (Some("ok"), Some("ok"))
    );
    let (status, document) = get("/api/openapi.json").await;
    assert_eq!(status, 200);
    assert!(document["paths"]["/api/me"]["get"].is_object());
    let (status, page) = get("/api/docs/").await;
    assert_eq!(status, 200);
    assert!(page.as_str().unwrap().contains("swagger-ui"));
    let bare = platform
        .request(Method::GET, "/api/docs")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (bare.status().as_u16(), &bare.headers()[header::LOCATION]),
        (307, &"docs/".parse().unwrap())
    );
    let head = platform
        .request(Method::HEAD, "/healthz")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (
            head.status().as_u16(),
            &head.headers()[header::CONTENT_LENGTH]
        ),
        (200, &"15".parse().unwrap())
    );
}

#[actix_web::test]
async fn readiness_is_lost_and_found_again_with_the_storage() {
    let platform = Platform::start(&[]).await;
    let ready = async || {
        answer(
            platform
                .request(Method::GET, "/readyz")
                .send()
                .await
                .unwrap(),
        )
        .await
    };
    let storage = platform.folder.path().join("storage");
    let aside = platform.folder.path().join("aside");
    std::fs::rename(&storage, &aside).unwrap();
    std::fs::write(&storage, "not a folder").unwrap();
    let (status, body) = ready().await;
    assert_eq!(
        (status.as_u16(), body["database"].as_str()),
        (503, Some("ok")),
        "{body}"
    );
    assert_ne!(body["storage"], "ok");
    std::fs::remove_file(&storage).unwrap();
    std::fs::rename(&aside, &storage).unwrap();
    assert_eq!(ready().await.0, 200);
}

#[actix_web::test]
async fn a_client_that_sends_a_large_body_unasked_sees_the_refusal() {
    let platform = Platform::start(&[]).await;
    let request = platform
        .request(Method::POST, "/api/datasets?name=x")
        .body(vec![b'x'; 8 << 20]);
    let (status, body) = answer(request.send().await.unwrap()).await;
    assert_eq!(
        (status.as_u16(), body["error"]["code"].as_str()),
        (401, Some("unauthenticated"))
    );
}

#[actix_web::test]
async fn endless_request_heads_are_cut_off() {
    let platform = Platform::start(&[]).await;
    let head = format!(
        "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n",
        "a".repeat(300_000)
    );
    let answer = raw(&platform, head).await;
    assert!(!answer.contains("200 OK"), "{answer}");
    let many = (0..200)
        .map(|nth| format!("X-{nth}: a\r\n"))
        .collect::<String>();
    let head = format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{many}\r\n");
    let answer = raw(&platform, head).await;
    assert!(!answer.contains("200 OK"), "{answer}");
    assert_eq!(
        platform
            .request(Method::GET, "/healthz")
            .send()
            .await
            .unwrap()
            .status(),
        200
    );
}

/// A connection that sends no whole request within ten seconds is closed.
#[actix_web::test]
async fn a_connection_that_never_asks_is_closed() {
    let platform = Platform::start(&[]).await;
    let started = std::time::Instant::now();
    let answer = raw(&platform, "GET /healthz HTTP/1.1\r\nHost".to_owned()).await;
    assert!(!answer.contains("200 OK"), "{answer}");
    assert!(started.elapsed() < Duration::from_secs(20));
}

/// Stopping lets a request end that has begun, and takes no new one.
#[actix_web::test]
async fn a_request_that_has_begun_ends_before_the_platform_stops() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let (send, mut receive) = tokio::sync::mpsc::channel::<std::io::Result<&str>>(1);
    let body = futures_util::stream::poll_fn(move |context| receive.poll_recv(context));
    let upload = admin
        .request(Method::POST, "/api/datasets?name=x")
        .body(reqwest::Body::wrap_stream(body))
        .send();
    let upload = tokio::spawn(upload);
    // The second piece is taken only once the first one is on its way.
    send.send(Ok("{\"text\":\"a\"}\n")).await.unwrap();
    send.send(Ok("{\"text\":\"b\"}\n")).await.unwrap();
    let uploading = platform.server.state.clone();
    eventually("the upload", async || is_uploading(&uploading).await).await;
    drop(admin);
    let stopping = tokio::task::spawn_local(platform.stop());
    send.send(Ok("{\"text\":\"c\"}\n")).await.unwrap();
    drop(send);
    let (status, made) = answer(upload.await.unwrap().unwrap()).await;
    assert_eq!((status.as_u16(), made["rows"].as_i64()), (201, Some(3)));
    stopping.await.unwrap();
}

async fn is_uploading(state: &AppState) -> bool {
    use crate::database::DatabaseError;
    use crate::database::schema::datasets;
    use diesel::prelude::*;
    let count = state
        .database
        .read::<i64, DatabaseError, _>(|c| Ok(datasets::table.count().get_result(c)?))
        .await;
    count.unwrap() > 0
}

#[actix_web::test]
async fn the_bare_address_leads_to_the_description_of_the_api() {
    let platform = Platform::start(&[]).await;
    for (path, to) in [("/", "api/docs/"), ("/api/docs", "docs/")] {
        let response = platform.request(Method::GET, path).send().await.unwrap();
        assert_eq!(response.status(), 307, "{path}");
        assert_eq!(response.headers()[header::LOCATION], to, "{path}");
    }
}
