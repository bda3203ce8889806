//! The platform that the judge plays: one address for WebSocket and HTTP. Whoever connects is let in by the source
//! document's rules, all that is said goes into the story, and files are kept in memory.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use trainyard_shared::Secret;
use uuid::Uuid;

use super::files::{self, Files};
use super::story::{Event, Recorder};
use crate::conformance::socket::{self, Received};

/// How long a client may take to send the beginning of its request.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// How often it is looked whether more of it has come.
const LOOK: Duration = Duration::from_millis(10);
/// A worker is let in after so long, so that one that does not wait for it shows.
const LET_IN_AFTER: Duration = Duration::from_millis(300);
/// With this a request for a WebSocket begins.
const SOCKET_REQUEST: &[u8] = b"GET /ws/";

/// The running host.
pub struct Host {
    /// The http address under which it is reached.
    pub url: String,
    /// The key with which a worker enrols.
    pub enrollment_key: Secret,
    /// The story.
    pub story: Recorder,
    /// Files that were offered or stored.
    pub files: Files,
    shared: Arc<Shared>,
}

/// What is done with the worker's connection.
enum Order {
    Send(Message),
    Cut,
}

struct Shared {
    story: Recorder,
    enrollment_key: Secret,
    issued: Mutex<Vec<String>>,
    current: Mutex<Option<mpsc::UnboundedSender<Order>>>,
    refusing: AtomicBool,
    http: SocketAddr,
}

impl Host {
    /// Starts to listen. Where no URL is given, it is reached at the address that is bound.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn start(bind: SocketAddr, url: Option<String>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(bind).await?;
        let address = listener.local_addr()?;
        let url = url.unwrap_or_else(|| format!("http://{address}"));
        let story = Recorder::new();
        let files = Files::new(url.clone(), story.clone());
        let shared = Arc::new(Shared {
            story: story.clone(),
            enrollment_key: Secret::from(format!("enroll_{}", key_text())),
            issued: Mutex::default(),
            current: Mutex::default(),
            refusing: AtomicBool::new(false),
            http: files::serve(files.clone())?,
        });
        let host = Self {
            url,
            enrollment_key: shared.enrollment_key.clone(),
            story,
            files,
            shared: shared.clone(),
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(shared.clone().serve(stream));
            }
        });
        Ok(host)
    }

    /// Tells the worker something. Nothing happens where it is not connected.
    pub fn say(&self, message: Value) {
        self.shared.say(message);
    }

    /// Sends the worker a text frame as it is.
    pub fn say_text(&self, text: &str) {
        self.shared.send(Message::text(text));
    }

    /// Cuts the worker's connection without a word.
    pub fn cut(&self) {
        self.story.note(Event::Cut);
        self.shared.order(Order::Cut);
    }

    /// Turns workers away from now on, or lets them in again.
    pub fn refuse(&self, refusing: bool) {
        self.shared.refusing.store(refusing, Ordering::Relaxed);
    }
}

impl Shared {
    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        if !wants_a_socket(&stream).await {
            if let Ok(mut inner) = TcpStream::connect(self.http).await {
                // A connection that breaks is noticed by whoever waits for it.
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut inner).await;
            }
            return;
        }
        self.story.note(Event::Tried);
        if self.refusing.load(Ordering::Relaxed) {
            return;
        }
        let mut target = String::new();
        #[expect(clippy::result_large_err, reason = "the library asks for this type")]
        let look = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
            target = request.uri().to_string();
            Ok(response)
        };
        let accepting = tokio_tungstenite::accept_hdr_async_with_config(
            stream,
            look,
            Some(socket::anything_goes()),
        );
        let Ok(opened) = accepting.await else { return };
        self.story.note(Event::Opened(target));
        let (mut outgoing, mut incoming) = socket::halves(opened);
        let (sender, mut orders) = mpsc::unbounded_channel();
        *self.current.lock().expect("no holder panics") = Some(sender);
        loop {
            tokio::select! {
                Some(order) = orders.recv() => match order {
                    Order::Send(message) => {
                        outgoing.send(message).await;
                    }
                    Order::Cut => return,
                },
                received = incoming.next() => {
                    self.story.note(Event::Heard(received.clone()));
                    match received {
                        Received::Message(message) => self.clone().answer(message),
                        Received::Unreadable(_) => {}
                        Received::Closed(_) => return,
                    }
                }
            }
        }
    }

    /// What a platform answers by itself: the way in, and acknowledgements.
    fn answer(self: Arc<Self>, message: Value) {
        if message["type"] == "authenticate" {
            tokio::spawn(async move {
                tokio::time::sleep(LET_IN_AFTER).await;
                self.let_in(&message);
            });
        } else if let Some(id) = message.get("message_id") {
            self.say(json!({"type": "ack", "message_id": id}));
        }
    }

    fn let_in(&self, message: &Value) {
        let key = message["api_key"].as_str().unwrap_or_default();
        let is_own = self
            .issued
            .lock()
            .expect("no holder panics")
            .iter()
            .any(|issued| issued == key);
        if key == self.enrollment_key.expose() {
            let issued = format!("wkr_{}", key_text());
            self.issued
                .lock()
                .expect("no holder panics")
                .push(issued.clone());
            self.say(json!({
                "type": "enrollment_complete",
                "data": {"worker_id": 42, "worker_name": "conformance-1", "api_key": issued}
            }));
        } else if !is_own {
            self.say(json!({"type": "auth_failed", "reason": "Invalid API key"}));
            return self.send(Message::Close(None));
        }
        let worker = &message["worker_uuid"];
        self.say(json!({"type": "authenticated", "status": "ok", "worker_id": worker}));
    }

    fn say(&self, message: Value) {
        let text = message.to_string();
        self.story.note(Event::Said(message));
        self.send(Message::text(text));
    }

    fn send(&self, message: Message) {
        self.order(Order::Send(message));
    }

    fn order(&self, order: Order) {
        let current = self.current.lock().expect("no holder panics");
        if let Some(sender) = &*current {
            // Fails where the connection has ended, which is in the story.
            let _ = sender.send(order);
        }
    }
}

/// Whether the request that begins on `stream`, which is not taken from it, is for a WebSocket.
async fn wants_a_socket(stream: &TcpStream) -> bool {
    let looking = async {
        let mut begin = [0; SOCKET_REQUEST.len()];
        loop {
            match stream.peek(&mut begin).await {
                Ok(0) | Err(_) => return false,
                Ok(count)
                    if count == begin.len() || !SOCKET_REQUEST.starts_with(&begin[..count]) =>
                {
                    return begin == SOCKET_REQUEST;
                }
                Ok(_) => tokio::time::sleep(LOOK).await,
            }
        }
    };
    tokio::time::timeout(REQUEST_WITHIN, looking)
        .await
        .unwrap_or(false)
}

/// 43 letters that nobody guesses.
fn key_text() -> String {
    let text = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
    text[..43].to_owned()
}
