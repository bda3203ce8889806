//! Uploads: what is taken, and what hostile or unlucky senders get.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// The whole answer to bytes that are sent as they are; what follows `head` is sent until the other side stops.
pub(super) async fn raw(
    platform: &Platform,
    head: String,
    body: impl Iterator<Item = Vec<u8>>,
) -> String {
    let mut socket = TcpStream::connect(platform.server.address).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = socket.split();
    let sending = async {
        for chunk in body {
            if writer.write_all(&chunk).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let reading = async {
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        while !String::from_utf8_lossy(&answer).contains("\"}") {
            match reader.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => answer.extend_from_slice(&buffer[..count]),
            }
        }
        String::from_utf8_lossy(&answer).into_owned()
    };
    let answered = async {
        tokio::select! {
            answer = reading => answer,
            () = sending => unreachable!("sending waits for the answer"),
        }
    };
    tokio::time::timeout(Duration::from_secs(30), answered)
        .await
        .expect("an answer comes")
}

fn head(more: &str) -> String {
    format!("POST /c/masal/sonuc?isci=mallory&tur=0 HTTP/1.1\r\nHost: x\r\n{more}\r\n\r\n")
}

pub(super) fn is_refused(answer: &str, status: u16) -> bool {
    answer.contains(&format!("HTTP/1.1 {status}")) && answer.contains("{\"hata\":")
}

#[actix_web::test]
async fn g103_bodies_too_large_too_short_too_slow_or_encoded_are_refused_and_block_nothing() {
    let (platform, _models) = platform(&[("RESULT_UPLOAD_GRACE", "0.3")]).await;
    let admin = platform.admin().await;
    open(&admin, "masal", json!({"en_az": 1})).await;
    let session = Coordinator::at(&platform, "/c/masal");
    let (_, global) = session.weights().await;
    let none = std::iter::empty::<Vec<u8>>;

    let chunk = format!("{:x}\r\n{}\r\n", 1 << 16, "x".repeat(1 << 16)).into_bytes();
    let endless = std::iter::repeat_n(chunk, 160_000);
    let answer = raw(&platform, head("Transfer-Encoding: chunked"), endless).await;
    assert!(is_refused(&answer, 411), "{answer}");
    let answer = raw(&platform, head("Content-Length: 10737418240"), none()).await;
    assert!(is_refused(&answer, 413), "{answer}");
    let lies = std::iter::once(vec![b'x'; 1 << 20]);
    let answer = raw(&platform, head("Content-Length: 10"), lies).await;
    assert!(is_refused(&answer, 400), "{answer}");
    let short = std::iter::once(vec![0; 10]);
    let length = format!("Content-Length: {}", global.len());
    let answer = raw(&platform, head(&length), short).await;
    assert!(is_refused(&answer, 408), "{answer}");
    let answer = raw(
        &platform,
        head(&format!("{length}\r\nContent-Encoding: gzip")),
        none(),
    )
    .await;
    assert!(is_refused(&answer, 415), "{answer}");
    let answer = raw(&platform, head("Content-Length: 8\r\nX-Sha256: 00"), none()).await;
    assert!(is_refused(&answer, 400), "{answer}");
    let expecting = format!("{length}\r\nExpect: 100-continue");
    let body = std::iter::once(shifted(&global, 0.5));
    let answer = raw(
        &platform,
        head(&expecting)
            .replace("mallory", "patient")
            .replace("tur=0", "tur=9"),
        body,
    )
    .await;
    assert!(answer.contains("HTTP/1.1 409"), "{answer}");

    // Nothing of it counts; who was cut off may send again, and the round closes with that.
    assert_eq!(session.get("/bilgi").await.1["gelen"], 0);
    let scratch = platform.folder.path().join("scratch");
    eventually("nothing is left of refused uploads", async || {
        std::fs::read_dir(&scratch).unwrap().count() == 0
    })
    .await;
    assert_eq!(
        session.send("mallory", 0, shifted(&global, 0.5)).await.0,
        200
    );
    session.wait_for_round(1).await;
}

#[actix_web::test]
async fn g103_an_upload_that_trickles_holds_up_nobody_and_one_that_is_cut_off_can_be_repeated() {
    let (platform, _models) = platform(&[("RESULT_UPLOAD_GRACE", "1")]).await;
    let admin = platform.admin().await;
    open(&admin, "masal", json!({"en_az": 1})).await;
    let session = Coordinator::at(&platform, "/c/masal");
    let (_, global) = session.weights().await;
    let length = format!("Content-Length: {}", global.len());

    let mut socket = TcpStream::connect(platform.server.address).await.unwrap();
    socket.write_all(head(&length).as_bytes()).await.unwrap();
    let (mut reader, mut writer) = socket.split();
    let trickling = async {
        let mut pace = tokio::time::interval(Duration::from_millis(20));
        for byte in &global {
            pace.tick().await;
            if writer.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let answered = async {
        let mut answer = [0; 12];
        reader.read_exact(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let others = async {
        assert_eq!(session.trains("ali", 0.5).await.0, 200);
        session.wait_for_round(1).await;
    };
    let all = async {
        tokio::select! {
            (answer, ()) = async { tokio::join!(answered, others) } => answer,
            () = trickling => unreachable!("it trickles until it is answered"),
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(30), all).await;
    assert_eq!(answer.expect("an answer comes"), "HTTP/1.1 408");

    let (round, weights) = session.weights().await;
    let body = shifted(&weights, 0.25);
    let mut socket = TcpStream::connect(platform.server.address).await.unwrap();
    let begun = head(&length).replace("tur=0", &format!("tur={round}"));
    socket.write_all(begun.as_bytes()).await.unwrap();
    socket.write_all(&body[..body.len() / 2]).await.unwrap();
    drop(socket);
    eventually("what was cut off is taken the second time", async || {
        assert_eq!(session.get("/bilgi").await.1["tur"], round);
        session.send("mallory", round, body.clone()).await.0 == 200
    })
    .await;
    session.wait_for_round(round + 1).await;
}

#[actix_web::test]
async fn g103_twice_the_adapter_is_the_most_that_is_read() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    open(&admin, "masal", json!({})).await;
    let session = Coordinator::at(&platform, "/c/masal");
    let limit = 2 * session.weights().await.1.len();
    for (length, status) in [(limit, 400), (limit + 1, 413)] {
        let (told, refusal) = session.send("mallory", 0, vec![0; length]).await;
        assert_eq!(told, status, "{refusal}");
        assert!(refusal["hata"].is_string(), "{refusal}");
    }
}

/// Whether the platform ends a connection on which chunks come for ever.
async fn is_ended(platform: &Platform, path: &str, more: &str, status: u16) -> bool {
    let mut socket = TcpStream::connect(platform.server.address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}Transfer-Encoding: chunked\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = socket.split();
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 14, " ".repeat(1 << 14)).into_bytes();
    let sending = async { while writer.write_all(&chunk).await.is_ok() {} };
    let mut answer = Vec::new();
    let reading = reader.read_to_end(&mut answer);
    let both = async { tokio::join!(sending, reading) };
    let ended = tokio::time::timeout(Duration::from_secs(30), both).await;
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    assert!(
        answer.starts_with(&format!("http/1.1 {status} ")),
        "{path}: {answer}"
    );
    assert!(answer.contains("connection: close"), "{path}: {answer}");
    ended.is_ok()
}

#[actix_web::test]
async fn g103_who_sends_chunks_for_ever_is_answered_and_loses_the_connection() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    open(&admin, "masal", json!({})).await;
    let long = format!("X-Long: {}\r\n", "a".repeat(70_000));
    for (path, more, status) in [
        ("/c/masal/sonuc?isci=mallory&tur=0", "", 411),
        ("/api/auth/login", "", 413),
        ("/api/jobs", "", 401),
        ("/nothing/here", "", 404),
        ("/api/jobs", long.as_str(), 431),
    ] {
        assert!(is_ended(&platform, path, more, status).await, "{path}");
    }
}

/// Promise P15.
#[actix_web::test]
async fn g106_an_upload_that_is_refused_half_way_changes_nothing() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let mut outcomes = Vec::new();
    for name in ["with", "without"] {
        let id = open(&admin, name, json!({"max_refused": 6})).await;
        let session = Coordinator::at(&platform, &format!("/c/{name}"));
        let (_, global) = session.weights().await;
        session.trains("ali", 0.5).await;
        if name == "with" {
            let good = shifted(&global, 0.25);
            let renamed = String::from_utf8_lossy(&good[8..values_at(&good)])
                .replacen("lora_B", "lora_C", 1)
                .into_bytes();
            let with_header = |header: &[u8]| {
                let mut body = (header.len() as u64).to_le_bytes().to_vec();
                body.extend_from_slice(header);
                body.extend_from_slice(&good[values_at(&good)..]);
                body
            };
            let mut infinite = good.clone();
            let last = infinite.len() - 4;
            infinite[last..].copy_from_slice(&f32::INFINITY.to_le_bytes());
            let mut claims = good.clone();
            claims[..8].copy_from_slice(&u64::MAX.to_le_bytes());
            for bad in [
                good[..good.len() - 4].to_vec(),
                with_header(&renamed),
                infinite,
                claims,
                vec![0; 100],
                b"\x80\x04\x95pickle".to_vec(),
            ] {
                let (status, refusal) = session.send("mallory", 0, bad).await;
                assert_eq!(status, 400, "{refusal}");
                assert!(refusal["hata"].is_string(), "{refusal}");
            }
            let people = admin
                .get(&format!("/api/coordinators/{id}/participants"))
                .await
                .1;
            assert_eq!(people["items"][1]["refused"], 6, "{people}");
            assert_eq!(people["items"][1]["blocked"], false);
        }
        session.trains("veli", 0.25).await;
        session.wait_for_round(1).await;
        outcomes.push(session.weights().await.1);
    }
    assert!(outcomes[0] == outcomes[1]);
}

#[actix_web::test]
async fn g105_who_was_refused_may_send_a_better_one_until_the_limit_of_the_session() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let id = open(
        &admin,
        "masal",
        json!({"max_refused": 1, "max_delta_norm": 100.0}),
    )
    .await;
    let session = Coordinator::at(&platform, "/c/masal");
    let (_, global) = session.weights().await;
    let (status, refusal) = session.send("ali", 0, shifted(&global, f32::NAN)).await;
    assert_eq!(status, 400);
    assert!(
        refusal["hata"].as_str().unwrap().contains("lora_A"),
        "{refusal}"
    );
    assert_eq!(session.send("ali", 0, shifted(&global, 0.5)).await.0, 200);
    for _ in 0..2 {
        let (status, refusal) = session.send("mallory", 0, shifted(&global, 1e6)).await;
        assert_eq!(status, 400);
        assert!(
            refusal["hata"].as_str().unwrap().contains("norm"),
            "{refusal}"
        );
    }
    for (status, refusal) in [
        session.get("/gorev?isci=mallory").await,
        session.send("mallory", 0, shifted(&global, 0.5)).await,
    ] {
        assert_eq!(status, 403);
        assert!(
            refusal["hata"].as_str().unwrap().contains("not valid"),
            "{refusal}"
        );
    }
    let people = admin
        .get(&format!("/api/coordinators/{id}/participants"))
        .await
        .1;
    assert_eq!(people["items"][1]["blocked"], true, "{people}");
}
