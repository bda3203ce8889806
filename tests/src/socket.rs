//! A WebSocket of a test's own, frame by frame: what a client of another make would do.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::DEADLINE;

/// An open WebSocket to the platform.
pub struct Socket {
    stream: WebSocketStream<TcpStream>,
}

/// What came next on a socket.
#[derive(Debug)]
pub enum Received {
    /// A text frame, read as JSON.
    Json(Value),
    /// The connection is closed, with this code if there was one.
    Closed(Option<u16>),
}

impl Socket {
    /// Opens the socket at `path`; where the platform refuses the upgrade, the HTTP status.
    pub async fn open(address: &str, path: &str) -> Result<Self, u16> {
        let tcp = TcpStream::connect(address)
            .await
            .expect("the platform accepts connections");
        let url = format!("ws://{address}{path}");
        match tokio_tungstenite::client_async(url, tcp).await {
            Ok((stream, _)) => Ok(Self { stream }),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("the upgrade of {path} broke: {error}"),
        }
    }

    /// Opens the socket at `path` of a platform that may be killed at any moment; none where it does not open.
    pub async fn try_open(address: &str, path: &str) -> Option<Self> {
        let tcp = TcpStream::connect(address).await.ok()?;
        let opened = tokio_tungstenite::client_async(format!("ws://{address}{path}"), tcp).await;
        opened.ok().map(|(stream, _)| Self { stream })
    }

    /// Sends one text frame holding `message`.
    pub async fn send(&mut self, message: Value) {
        self.send_text(&message.to_string()).await;
    }

    /// Sends one text frame as it is, JSON or not.
    pub async fn send_text(&mut self, text: &str) {
        self.stream
            .send(Message::text(text))
            .await
            .expect("the socket takes a frame");
    }

    /// Sends one text frame holding `message`, on a connection that may break at any moment; false where it has.
    pub async fn try_send(&mut self, message: Value) -> bool {
        let frame = Message::text(message.to_string());
        self.stream.send(frame).await.is_ok()
    }

    /// The next frame that matters, or `None` when nothing comes within `wait`.
    pub async fn next_within(&mut self, wait: Duration) -> Option<Received> {
        let next = async {
            loop {
                match self.stream.next().await {
                    Some(Ok(Message::Text(text))) => {
                        let value = serde_json::from_str(&text)
                            .unwrap_or_else(|error| panic!("not JSON ({error}): {text}"));
                        return Received::Json(value);
                    }
                    Some(Ok(Message::Close(frame))) => {
                        return Received::Closed(frame.map(|frame| frame.code.into()));
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Received::Closed(None),
                }
            }
        };
        tokio::time::timeout(wait, next).await.ok()
    }

    /// The next JSON message.
    ///
    /// # Panics
    ///
    /// Where the connection closes or nothing comes before the deadline.
    pub async fn receive(&mut self) -> Value {
        match self.next_within(DEADLINE).await {
            Some(Received::Json(value)) => value,
            Some(Received::Closed(code)) => panic!("closed ({code:?}) instead of a message"),
            None => panic!("no message within {DEADLINE:?}"),
        }
    }

    /// The next message for which `wanted` holds; earlier ones go into the returned list of those passed over.
    ///
    /// # Panics
    ///
    /// Where the connection closes or no such message comes before the deadline.
    pub async fn receive_until(&mut self, wanted: impl Fn(&Value) -> bool) -> (Value, Vec<Value>) {
        let end = tokio::time::Instant::now() + DEADLINE;
        let mut passed = Vec::new();
        loop {
            let left = end.saturating_duration_since(tokio::time::Instant::now());
            match self.next_within(left).await {
                Some(Received::Json(value)) if wanted(&value) => return (value, passed),
                Some(Received::Json(value)) => passed.push(value),
                Some(Received::Closed(code)) => {
                    panic!("closed ({code:?}) before the message; received {passed:?}")
                }
                None => panic!("the message did not come; received {passed:?}"),
            }
        }
    }

    /// The next message of type `kind`, passing over others.
    pub async fn receive_type(&mut self, kind: &str) -> Value {
        self.receive_until(|message| message["type"] == kind)
            .await
            .0
    }

    /// Reads until the platform closes the socket, and returns the code.
    ///
    /// # Panics
    ///
    /// Where it stays open beyond `wait`.
    pub async fn closed_within(&mut self, wait: Duration) -> Option<u16> {
        let end = tokio::time::Instant::now() + wait;
        loop {
            let left = end.saturating_duration_since(tokio::time::Instant::now());
            match self.next_within(left).await {
                Some(Received::Closed(code)) => return code,
                Some(Received::Json(_)) => {}
                None => panic!("still open after {wait:?}"),
            }
        }
    }

    /// Closes the socket in the polite way.
    pub async fn close(mut self) {
        let _ = self.stream.close(None).await;
    }

    /// Resets the TCP connection, as a crashed peer or a broken network does.
    pub fn reset(self) {
        self.stream
            .get_ref()
            .set_zero_linger()
            .expect("a socket can be told not to linger");
    }
}
