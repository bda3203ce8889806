//! Hostile bytes on a real socket, frame by frame.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use uuid::Uuid;

use crate::testing::Platform;
use crate::testing::sockets::{DEADLINE, Socket, TestWorker};

/// A TCP connection on which the upgrade to a worker's WebSocket is done.
async fn upgraded(platform: &Platform) -> TcpStream {
    let mut tcp = TcpStream::connect(platform.server.address).await.unwrap();
    let request = format!(
        "GET /ws/worker?worker_uuid={} HTTP/1.1\r\nHost: yard\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        Uuid::new_v4()
    );
    tcp.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tcp.read_u8().await.unwrap());
    }
    assert!(
        head.starts_with(b"HTTP/1.1 101"),
        "{}",
        String::from_utf8_lossy(&head)
    );
    tcp
}

/// The close code that comes, if the connection ends with one.
async fn close_code(tcp: &mut TcpStream) -> Option<u16> {
    let mut bytes = Vec::new();
    // A reset ends it as well as a close.
    let _ = timeout(DEADLINE, tcp.read_to_end(&mut bytes))
        .await
        .expect("the connection ends");
    let close = bytes.iter().position(|byte| *byte == 0x88)?;
    let code = bytes.get(close + 2..close + 4)?;
    Some(u16::from_be_bytes([code[0], code[1]]))
}

#[actix_web::test]
async fn g029_a_frame_of_absurd_length_closes_that_connection_only() {
    let platform = Platform::start(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    for opcode in [0x81, 0x82] {
        for length in [u64::MAX, 1 << 63, 1 << 32, (1 << 20) + 1] {
            let mut tcp = upgraded(&platform).await;
            let mut frame = vec![opcode, 0xff];
            frame.extend(length.to_be_bytes());
            frame.extend([1, 2, 3, 4]);
            frame.extend([0; 64]);
            tcp.write_all(&frame).await.unwrap();
            let code = close_code(&mut tcp).await;
            assert!(
                matches!(code, Some(1002 | 1009)),
                "{opcode:x} {length}: {code:?}"
            );
        }
    }
    worker.heartbeat("idle").await;
    assert_eq!(
        worker.everything_sent().await,
        Vec::<serde_json::Value>::new()
    );
}

#[actix_web::test]
async fn g030_endless_empty_fragments_are_given_up() {
    let platform = Platform::start(&[]).await;
    let mut tcp = upgraded(&platform).await;
    tcp.write_all(&[0x01, 0x81, 0, 0, 0, 0, b'x'])
        .await
        .unwrap();
    let fragments: Vec<u8> = [0x00, 0x80, 0, 0, 0, 0].repeat(50_000);
    // The platform gives the message up long before all of it has come: it may close while this is sent.
    let _ = tcp.write_all(&fragments).await;
    assert_eq!(close_code(&mut tcp).await.unwrap_or(1009), 1009);
}

#[actix_web::test]
async fn g033_a_request_with_an_endless_header_is_refused() {
    let platform = Platform::start(&[]).await;
    let mut tcp = TcpStream::connect(platform.server.address).await.unwrap();
    tcp.write_all(b"GET /ws/worker?worker_uuid=x HTTP/1.1\r\nHost: yard\r\nX: ")
        .await
        .unwrap();
    let piece = vec![b'a'; 4096];
    let mut sent = 0;
    while sent < 20 << 20 {
        if tcp.write_all(&piece).await.is_err() {
            break;
        }
        sent += piece.len();
    }
    assert!(sent < 4 << 20, "{sent} bytes of one header were taken");
}

#[actix_web::test]
async fn g033_headers_of_more_than_64_kib_are_refused() {
    let platform = Platform::start(&[]).await;
    for (bytes, status) in [(40_000, 200), (70_000, 431)] {
        let request = platform.request(reqwest::Method::GET, "/healthz");
        let answer = request.header("x-long", "a".repeat(bytes)).send().await;
        assert_eq!(answer.unwrap().status(), status, "{bytes}");
    }
}

#[actix_web::test]
async fn frames_that_break_the_protocol_end_with_1002() {
    let platform = Platform::start(&[]).await;
    for frame in [
        // Not masked.
        &[0x81, 0x02, b'{', b'}'][..],
        // Reserved bits.
        &[0xc1, 0x80, 0, 0, 0, 0],
        // An opcode that there is not.
        &[0x83, 0x80, 0, 0, 0, 0],
        // A continuation of nothing.
        &[0x80, 0x80, 0, 0, 0, 0],
    ] {
        let mut tcp = upgraded(&platform).await;
        tcp.write_all(frame).await.unwrap();
        assert_eq!(close_code(&mut tcp).await, Some(1002), "{frame:x?}");
    }
}

#[actix_web::test]
async fn a_message_in_many_fragments_is_one_message() {
    let platform = Platform::start(&[]).await;
    let mut tcp = upgraded(&platform).await;
    let text = json!({"type": "authenticate", "api_key": "wkr_no", "worker_uuid": "x"}).to_string();
    let parts: Vec<&[u8]> = text.as_bytes().chunks(7).collect();
    for (index, part) in parts.iter().enumerate() {
        let opcode = if index == 0 { 0x01 } else { 0x00 };
        let last = if index + 1 == parts.len() { 0x80 } else { 0x00 };
        let mut frame = vec![opcode | last, 0x80 | part.len() as u8, 0, 0, 0, 0];
        frame.extend_from_slice(part);
        tcp.write_all(&frame).await.unwrap();
    }
    let mut answer = vec![0; 32];
    tcp.read_exact(&mut answer).await.unwrap();
    assert!(
        String::from_utf8_lossy(&answer).contains("auth_failed"),
        "{answer:?}"
    );
    assert_eq!(close_code(&mut tcp).await, Some(4401));
}

#[actix_web::test]
async fn connections_beyond_the_caps_are_answered_with_429_until_there_is_room() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let caps = platform.server.state.connection_caps.clone();
    let path = format!("/ws/worker?worker_uuid={}", Uuid::new_v4());
    let address = platform.server.address.ip();
    let held: Vec<_> = std::iter::from_fn(|| caps.worker(address).ok()).collect();
    assert_eq!(Socket::open(&platform, &path).await.err(), Some(429));
    drop(held);
    assert!(Socket::open(&platform, &path).await.is_ok());

    let (user, token) = admin.ws_token().await;
    let user_id = trainyard_shared::ids::UserId(user);
    let held: Vec<_> = std::iter::from_fn(|| caps.dashboard(user_id).ok()).collect();
    let path = format!("/ws/user/{user}?token={token}");
    assert_eq!(Socket::open(&platform, &path).await.err(), Some(429));
    drop(held);
    admin.dashboard().await;
}
