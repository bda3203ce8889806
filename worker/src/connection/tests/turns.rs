//! Turns that a platform gives to workers that come back all at once.

use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const A_SECOND: Duration = Duration::from_secs(1);

#[actix_rt::test]
async fn a_turn_that_the_reason_of_a_close_names_is_waited_for() {
    let (platform, _state, _worker) = started().await;
    let (session, _) = platform.registered().await;
    let closed = Instant::now();
    session
        .close_because(1001, "the platform stops; come back in 1 s")
        .await;
    platform.registered().await;
    assert!(closed.elapsed() >= A_SECOND, "{:?}", closed.elapsed());
}

#[actix_rt::test]
async fn a_turn_instead_of_an_upgrade_is_waited_for() {
    let (platform, _state, _worker) = started().await;
    let mut socket = platform.raw().await;
    let mut head = [0; 4096];
    assert!(socket.read(&mut head).await.unwrap() > 0);
    let refused = Instant::now();
    let answer = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";
    socket.write_all(answer.as_bytes()).await.unwrap();
    platform.registered().await;
    assert!(refused.elapsed() >= A_SECOND, "{:?}", refused.elapsed());
}
