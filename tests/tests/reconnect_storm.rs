//! A thousand workers that come back at once to a platform that has just started again: they get their turns, and
//! all are back soon.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};
use trainyard_tests::{DEADLINE, Platform};
use uuid::Uuid;

const WORKERS: usize = 1_000;

type Socket = WebSocketStream<TcpStream>;

/// A worker that does nothing but be there.
struct LightWorker {
    uuid: String,
    key: String,
    socket: Option<Socket>,
}

/// Why a worker is not let in: the whole seconds that it is to wait.
async fn open(address: &str, uuid: &str) -> Result<Socket, Duration> {
    let url = format!("ws://{address}/ws/worker?worker_uuid={uuid}");
    let tcp = TcpStream::connect(address)
        .await
        .expect("the platform accepts connections");
    match tokio_tungstenite::client_async(url, tcp).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::Http(refused)) => {
            assert_eq!(refused.status(), 503);
            let wait = refused.headers()["retry-after"].to_str().expect("a number");
            Err(Duration::from_secs(wait.parse().expect("whole seconds")))
        }
        Err(error) => panic!("the upgrade broke: {error}"),
    }
}

async fn receive(socket: &mut Socket) -> Value {
    let next = tokio::time::timeout(DEADLINE, socket.next()).await;
    match next.expect("an answer in time") {
        Some(Ok(Message::Text(text))) => serde_json::from_str(&text).expect("JSON"),
        other => panic!("no message: {other:?}"),
    }
}

async fn authenticate(socket: &mut Socket, uuid: &str, key: &str) -> Value {
    let hello = json!({"type": "authenticate", "api_key": key, "worker_uuid": uuid});
    socket
        .send(Message::text(hello.to_string()))
        .await
        .expect("the socket takes a frame");
    receive(socket).await
}

async fn enrol(address: &str, key: &str) -> LightWorker {
    let uuid = Uuid::new_v4().to_string();
    let mut socket = open(address, &uuid)
        .await
        .expect("nobody is held up at first");
    let complete = authenticate(&mut socket, &uuid, key).await;
    let key = complete["data"]["api_key"]
        .as_str()
        .expect("a key")
        .to_owned();
    assert_eq!(receive(&mut socket).await["type"], "authenticated");
    LightWorker {
        uuid,
        key,
        socket: Some(socket),
    }
}

/// The close code and the turn that the reason names, in seconds.
async fn told_at_the_stop(worker: &mut LightWorker) -> (u16, u64) {
    let mut socket = worker.socket.take().expect("it is connected");
    loop {
        let next = tokio::time::timeout(DEADLINE, socket.next()).await;
        match next.expect("a close in time") {
            Some(Ok(Message::Close(Some(close)))) => {
                let reason = close.reason.as_str();
                let turn = reason
                    .split("come back in ")
                    .nth(1)
                    .and_then(|turn| turn.strip_suffix(" s"));
                let turn = turn.and_then(|turn| turn.parse().ok());
                return (
                    close.code.into(),
                    turn.unwrap_or_else(|| panic!("no turn: {reason}")),
                );
            }
            Some(Ok(_)) => {}
            other => panic!("no close: {other:?}"),
        }
    }
}

/// Comes back, by the turns that it is given.
async fn come_back(worker: &mut LightWorker, address: &str, refusals: &AtomicUsize) -> Instant {
    loop {
        match open(address, &worker.uuid).await {
            Ok(mut socket) => {
                let entered = Instant::now();
                let answer = authenticate(&mut socket, &worker.uuid, &worker.key).await;
                assert_eq!(answer["type"], "authenticated", "{answer}");
                worker.socket = Some(socket);
                return entered;
            }
            Err(wait) => {
                refusals.fetch_add(1, Ordering::Relaxed);
                let jitter = f64::from(Uuid::new_v4().as_bytes()[0]) / 255.0;
                tokio::time::sleep(wait.mul_f64(1.0 + 0.1 * jitter)).await;
            }
        }
    }
}

#[tokio::test]
async fn a_thousand_workers_that_come_back_at_once_are_let_in_at_a_steady_rate() {
    let mut platform =
        Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "30"), ("LOG", "warn")]).await;
    let admin = platform.admin().await;
    let key = admin.enrollment_key(json!({"max_uses": WORKERS})).await;
    let address = platform.address().to_owned();
    let mut workers = join_all((0..WORKERS).map(|_| enrol(&address, &key))).await;

    let stopping = platform.stop();
    let (told, _) = tokio::join!(join_all(workers.iter_mut().map(told_at_the_stop)), stopping);
    assert!(told.iter().all(|(code, _)| *code == 1001));
    for second in 3..=8 {
        let share = told.iter().filter(|(_, turn)| *turn == second).count();
        assert!(
            (WORKERS / 15..=WORKERS / 5).contains(&share),
            "{share} are told to come back in {second} s"
        );
    }

    // The worst case: all come at the same instant.
    platform.restart().await;
    let refusals = AtomicUsize::new(0);
    let coming = workers
        .iter_mut()
        .map(|worker| come_back(worker, &address, &refusals));
    let mut entries = join_all(coming).await;
    entries.sort();
    let span = entries[WORKERS - 1] - entries[0];
    let within_a_second = |(index, start): (usize, &Instant)| {
        let end = *start + Duration::from_secs(1);
        entries[index..].iter().take_while(|at| **at < end).count()
    };
    let peak = entries
        .iter()
        .enumerate()
        .map(within_a_second)
        .max()
        .unwrap_or(0);
    let mean = WORKERS as f64 / span.as_secs_f64();
    let refused = refusals.into_inner();
    println!("peak {peak} a second, mean {mean:.0}, all within {span:.1?}, {refused} turns given");
    assert!(
        (peak as f64) < 4.0 * mean,
        "{peak} a second at most, {mean:.0} on average"
    );
    let listed = admin.get("/api/workers?limit=200").await.ok();
    let online = listed["items"].as_array().expect("a list").iter();
    assert!(online.clone().all(|worker| worker["online"] == true));
}
