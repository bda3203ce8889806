//! One socket to the platform: opening it within limits, and the queue in front of it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use actix::SpawnHandle;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, client_async_tls_with_config};
use trainyard_shared::frame::MAX_FRAME_BYTES;
use url::Url;

use super::backoff::NextTry;
use crate::config::LinkTimeouts;

/// Frames that wait for the network; beyond that, what may be lost is dropped and the rest waits on disk.
const QUEUE_FRAMES: usize = 1024;

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// The reading half of a socket.
pub(super) type Incoming = SplitStream<Socket>;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("the platform cannot be reached: {0}")]
    Unreachable(String),
    #[error("the platform does not answer within {0:?}")]
    Late(Duration),
    #[error("the platform asks for {wait:?} of patience (429)")]
    RateLimited { wait: Duration },
    #[error("the platform has many workers coming back; this one's turn is in {turn:?} (503)")]
    Busy { turn: Duration },
    #[error("the platform answered {status} instead of opening a websocket{hint}")]
    Refused { status: u16, hint: &'static str },
    #[error("{0}")]
    Protocol(String),
}

/// An open socket, split in two.
pub(super) struct Opened {
    pub(super) incoming: Incoming,
    outgoing: SplitSink<Socket, Message>,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opened")
    }
}

/// An open socket.
pub(super) struct Link {
    pub(super) queue: Queue,
    /// The future that reads.
    pub(super) reader: SpawnHandle,
    pub(super) opened: Instant,
    pub(super) last_heard: Instant,
    /// Whether the platform was pinged since it was last heard.
    pub(super) pinged: bool,
    pub(super) state: LinkState,
    /// What the platform's close, or our own knowledge, says about the next try.
    pub(super) next_try: NextTry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkState {
    Authenticating,
    Registered,
    Closing,
}

impl Link {
    /// Something came.
    pub(super) fn heard(&mut self) {
        self.last_heard = Instant::now();
        self.pinged = false;
    }
}

/// Opens a socket. The answer's head may have 64 KiB at most (that limit is tungstenite's own).
pub(super) async fn open(
    address: Url,
    tls: Arc<ClientConfig>,
    limits: LinkTimeouts,
) -> Result<Opened, OpenError> {
    let stream = timeout(limits.connect, connect(&address, limits.connect))
        .await
        .map_err(|_| OpenError::Late(limits.connect))??;
    stream
        .set_nodelay(true)
        .map_err(|error| OpenError::Unreachable(error.to_string()))?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_FRAME_BYTES))
        .max_frame_size(Some(MAX_FRAME_BYTES))
        .read_buffer_size(16 * 1024)
        .write_buffer_size(16 * 1024)
        .max_write_buffer_size(4 * MAX_FRAME_BYTES);
    let upgrade = client_async_tls_with_config(
        address.as_str(),
        stream,
        Some(config),
        Some(Connector::Rustls(tls)),
    );
    let (socket, _) = timeout(limits.connect, upgrade)
        .await
        .map_err(|_| OpenError::Late(limits.connect))?
        .map_err(refusal)?;
    let (outgoing, incoming) = socket.split();
    Ok(Opened { incoming, outgoing })
}

/// Tries every address of the host in turn; none may use up all the time that there is.
async fn connect(address: &Url, limit: Duration) -> Result<TcpStream, OpenError> {
    let unreachable = |error: io::Error| OpenError::Unreachable(error.to_string());
    let host = address
        .host_str()
        .ok_or_else(|| OpenError::Unreachable("the address has no host".to_owned()))?;
    let port = address.port_or_known_default().unwrap_or(80);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    for address in tokio::net::lookup_host((bare, port))
        .await
        .map_err(unreachable)?
    {
        match timeout(limit / 2, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(unreachable(last))
}

fn refusal(error: tungstenite::Error) -> OpenError {
    match error {
        tungstenite::Error::Http(response) => {
            let status = response.status().as_u16();
            let wait = response
                .headers()
                .get("retry-after")
                .and_then(|value| value.to_str().ok()?.trim().parse().ok())
                .map(Duration::from_secs);
            match (status, wait) {
                (429, wait) => OpenError::RateLimited {
                    wait: wait.unwrap_or(Duration::from_secs(60)),
                },
                (503, Some(turn)) => OpenError::Busy { turn },
                (404, _) => OpenError::Refused {
                    status,
                    hint: "; is PLATFORM_URL the platform's base address?",
                },
                _ => OpenError::Refused { status, hint: "" },
            }
        }
        tungstenite::Error::Io(error) => OpenError::Unreachable(error.to_string()),
        other => OpenError::Protocol(other.to_string()),
    }
}

/// The queue in front of a socket's writing half.
#[derive(Debug, Clone)]
pub(super) struct Queue(mpsc::Sender<Message>);

impl Queue {
    /// Puts a frame into the queue; false when it is full or the socket is gone.
    pub(super) fn push(&self, frame: Message) -> bool {
        self.0.try_send(frame).is_ok()
    }

    /// Whether so many more frames find a place.
    pub(super) fn has_room_for(&self, frames: usize) -> bool {
        self.0.capacity() >= frames
    }
}

impl Opened {
    /// The reading half, the queue, and the future that empties it into the network. The future ends
    /// when the queue is dropped, with none, or when the network takes nothing for `limit`.
    pub(super) fn into_parts(
        self,
        limit: Duration,
    ) -> (
        Incoming,
        Queue,
        impl Future<Output = Option<String>> + use<>,
    ) {
        let (sender, receiver) = mpsc::channel(QUEUE_FRAMES);
        (
            self.incoming,
            Queue(sender),
            write(self.outgoing, receiver, limit),
        )
    }
}

async fn write(
    mut socket: SplitSink<Socket, Message>,
    mut queue: mpsc::Receiver<Message>,
    limit: Duration,
) -> Option<String> {
    while let Some(frame) = queue.recv().await {
        match timeout(limit, socket.send(frame)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Some(error.to_string()),
            Err(_) => return Some(format!("the network took nothing for {limit:?}")),
        }
    }
    None
}
