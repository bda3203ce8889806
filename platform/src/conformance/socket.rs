//! A WebSocket of the judge's, frame by frame, with nothing smoothed over.

use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};

use super::report::excerpt;

/// How long the upgrade may take.
const OPEN_WITHIN: Duration = Duration::from_secs(20);

/// What came next.
#[derive(Debug, Clone, PartialEq)]
pub enum Received {
    /// A text frame that is a JSON object with a `type` that is text.
    Message(Value),
    /// Anything else that the protocol does not speak, described.
    Unreadable(String),
    /// The connection is closed, with this code if there was one.
    Closed(Option<u16>),
}

impl Received {
    /// In words, for a report.
    pub fn describe(&self) -> String {
        match self {
            Self::Message(message) => excerpt(&message.to_string()),
            Self::Unreadable(what) => what.clone(),
            Self::Closed(Some(code)) => format!("a close with code {code}"),
            Self::Closed(None) => "a close without a code".to_owned(),
        }
    }
}

/// Why no WebSocket was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotOpened {
    /// The HTTP status, where the other side answered.
    pub status: Option<u16>,
    /// In words.
    pub text: String,
}

type Stream = WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

/// The receiving half of a connection.
pub struct Incoming<S>(SplitStream<WebSocketStream<S>>);

/// The sending half of a connection.
pub struct Outgoing<S>(SplitSink<WebSocketStream<S>, Message>);

/// Frames of any size and content are the other side's business, not the library's.
pub fn anything_goes() -> WebSocketConfig {
    WebSocketConfig::default()
        .max_frame_size(None)
        .max_message_size(None)
}

/// Opens a WebSocket.
pub async fn open(url: &str) -> Result<Stream, NotOpened> {
    let connecting = tokio_tungstenite::connect_async_with_config(url, Some(anything_goes()), true);
    let opened = tokio::time::timeout(OPEN_WITHIN, connecting)
        .await
        .map_err(|_| NotOpened {
            status: None,
            text: format!("no answer to the upgrade within {OPEN_WITHIN:?}"),
        })?;
    match opened {
        Ok((stream, _)) => Ok(stream),
        Err(tungstenite::Error::Http(response)) => Err(NotOpened {
            status: Some(response.status().as_u16()),
            text: format!("HTTP {}", response.status()),
        }),
        Err(error) => Err(NotOpened {
            status: None,
            text: error.to_string(),
        }),
    }
}

/// The two halves of a connection.
pub fn halves<S>(stream: WebSocketStream<S>) -> (Outgoing<S>, Incoming<S>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (sink, stream) = stream.split();
    (Outgoing(sink), Incoming(stream))
}

impl<S: AsyncRead + AsyncWrite + Unpin> Outgoing<S> {
    /// Sends a frame. False where the connection is gone.
    pub async fn send(&mut self, message: Message) -> bool {
        self.0.send(message).await.is_ok()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Incoming<S> {
    /// What comes next; pings and pongs of the WebSocket itself are passed over.
    pub async fn next(&mut self) -> Received {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Text(text))) => return read(&text),
                Some(Ok(Message::Binary(bytes))) => {
                    return Received::Unreadable(format!(
                        "a binary frame of {} bytes",
                        bytes.len()
                    ));
                }
                Some(Ok(Message::Close(frame))) => {
                    return Received::Closed(frame.map(|frame| frame.code.into()));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Received::Closed(None),
            }
        }
    }
}

fn read(text: &str) -> Received {
    match serde_json::from_str::<Value>(text) {
        Ok(message) if message["type"].is_string() => Received::Message(message),
        Ok(other) => Received::Unreadable(format!(
            "JSON that is no object with a type: {}",
            excerpt(&other.to_string())
        )),
        Err(error) => Received::Unreadable(format!("no JSON ({error}): {}", excerpt(text))),
    }
}
