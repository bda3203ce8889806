//! A platform that a test plays by hand over a real loopback socket.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

/// Nothing in these tests takes longer unless it is broken.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Listens for workers.
pub struct FakePlatform {
    listener: TcpListener,
}

/// One worker's socket, seen from the platform.
pub struct Session {
    socket: WebSocketStream<TcpStream>,
}

impl FakePlatform {
    pub async fn start() -> Self {
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.listener.local_addr().unwrap())
    }

    /// The next TCP connection, before anything is said on it.
    pub async fn raw(&self) -> TcpStream {
        let (stream, _) = within("a connection", self.listener.accept())
            .await
            .unwrap();
        stream
    }

    /// The next worker's socket.
    pub async fn session(&self) -> Session {
        let stream = self.raw().await;
        let socket = within("the upgrade", tokio_tungstenite::accept_async(stream)).await;
        Session {
            socket: socket.unwrap(),
        }
    }

    /// The next worker's socket, authenticated; with the worker's `worker_register`.
    pub async fn registered(&self) -> (Session, Value) {
        let mut session = self.session().await;
        session.receive("authenticate").await;
        session.authenticated().await;
        let register = session.receive("worker_register").await;
        (session, register)
    }
}

impl Session {
    /// The next message, whatever its type; none at the end of the connection.
    pub async fn next(&mut self) -> Option<Value> {
        within("a message", self.next_message()).await
    }

    /// The next message of this type; others are passed over.
    pub async fn receive(&mut self, kind: &str) -> Value {
        self.receive_where(kind, |message| message["type"] == kind)
            .await
    }

    /// The next heartbeat with this `current_job_id`.
    pub async fn beat_with_job(&mut self, job: Value) -> Value {
        let wanted =
            |message: &Value| message["type"] == "heartbeat" && message["current_job_id"] == job;
        self.receive_where("a heartbeat with the job", wanted).await
    }

    /// The next message that is `wanted`; others are passed over.
    pub async fn receive_where(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        within(what, async {
            loop {
                let message = self.next_message().await;
                let message = message.unwrap_or_else(|| panic!("closed before {what}"));
                if wanted(&message) {
                    return message;
                }
            }
        })
        .await
    }

    async fn next_message(&mut self) -> Option<Value> {
        loop {
            match self.socket.next().await? {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap()),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The types of the next messages up to and with `last`, without those that come by the clock.
    pub async fn kinds_up_to(&mut self, last: &str) -> Vec<String> {
        let mut kinds = Vec::new();
        loop {
            let message = self
                .next()
                .await
                .unwrap_or_else(|| panic!("closed before {last}"));
            let kind = message["type"].as_str().unwrap().to_owned();
            let by_the_clock = ["heartbeat", "worker_metrics"].contains(&kind.as_str());
            if !by_the_clock {
                kinds.push(kind.clone());
            }
            if kind == last {
                return kinds;
            }
        }
    }

    pub async fn send(&mut self, message: Value) {
        self.send_text(&message.to_string()).await;
    }

    pub async fn send_text(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    pub async fn authenticated(&mut self) {
        self.send(json!({"type": "authenticated", "status": "ok", "worker_id": "abc12345-6789"}))
            .await;
    }

    pub async fn ack(&mut self, message: &Value) {
        self.send(json!({"type": "ack", "message_id": message["message_id"]}))
            .await;
    }

    /// Closes with a code.
    pub async fn close(self, code: u16) {
        self.close_because(code, "").await;
    }

    /// Closes with a code and a reason.
    pub async fn close_because(mut self, code: u16, reason: &'static str) {
        let frame = CloseFrame {
            code: code.into(),
            reason: reason.into(),
        };
        self.socket.close(Some(frame)).await.unwrap();
        while let Some(Ok(_)) = self.socket.next().await {}
    }

    /// The code with which the worker closes; messages before it are passed over.
    pub async fn close_code(&mut self) -> Option<u16> {
        loop {
            match within("a close", self.socket.next()).await? {
                Ok(Message::Close(frame)) => return frame.map(|frame| frame.code.into()),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }
}

/// Waits for `future`, but not for ever.
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    timeout(DEADLINE, future)
        .await
        .unwrap_or_else(|_| panic!("{what} did not come in time"))
}
