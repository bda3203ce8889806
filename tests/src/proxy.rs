//! A proxy before a platform that has one fault of the test's choice: it alters, drops or repeats WebSocket messages
//! of one kind and passes everything else on as it is.

use std::collections::HashSet;
use std::io::Cursor;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes, BytesMut};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{Frame, FrameHeader};

/// What becomes of a message once it was altered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    Pass,
    /// It is lost.
    Drop,
    /// It goes on twice.
    Twice,
    /// A text that is no JSON goes before it.
    AfterGarbage,
}

type Alter = Box<dyn Fn(&mut Value) -> Fate + Send + Sync>;

/// What the proxy does wrong.
pub struct Fault {
    to_client: Alter,
    to_platform: Alter,
    close: (u16, u16),
    opens: fn(&Refused) -> bool,
}

/// An upgrade that the platform refused.
#[derive(Debug)]
pub struct Refused {
    /// Path and query.
    pub target: String,
    /// Whether the same was accepted before.
    pub opened_before: bool,
}

impl Fault {
    fn none() -> Self {
        Self {
            to_client: Box::new(|_| Fate::Pass),
            to_platform: Box::new(|_| Fate::Pass),
            close: (0, 0),
            opens: |_| false,
        }
    }

    /// Alters what the platform says with that type.
    pub fn in_message(
        kind: &'static str,
        alter: impl Fn(&mut Value) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let to_client = move |message: &mut Value| match message["type"] == kind {
            true => alter(message),
            false => Fate::Pass,
        };
        Self::in_any_message(to_client)
    }

    /// Alters everything that the platform says.
    pub fn in_any_message(alter: impl Fn(&mut Value) -> Fate + Send + Sync + 'static) -> Self {
        Self {
            to_client: Box::new(alter),
            ..Self::none()
        }
    }

    /// Keeps messages for which `holds` from the platform.
    pub fn deaf_where(holds: impl Fn(&Value) -> bool + Send + Sync + 'static) -> Self {
        let to_platform = move |message: &mut Value| match holds(message) {
            true => Fate::Drop,
            false => Fate::Pass,
        };
        Self {
            to_platform: Box::new(to_platform),
            ..Self::none()
        }
    }

    /// Keeps messages of that type from the platform.
    pub fn deaf_to(kind: &'static str) -> Self {
        Self::deaf_where(move |message| message["type"] == kind)
    }

    /// Looks at what the platform says, and from when on `begins` holds for it keeps messages of that type from the
    /// platform.
    pub fn deaf_once(
        begins: impl Fn(&Value) -> bool + Send + Sync + 'static,
        kind: &'static str,
    ) -> Self {
        let is_deaf = Arc::new(AtomicBool::new(false));
        let deaf = is_deaf.clone();
        let to_client = move |message: &mut Value| {
            if begins(message) {
                deaf.store(true, Ordering::SeqCst);
            }
            Fate::Pass
        };
        let is_kept =
            move |message: &Value| message["type"] == kind && is_deaf.load(Ordering::SeqCst);
        Self {
            to_client: Box::new(to_client),
            ..Self::deaf_where(is_kept)
        }
    }

    /// Closes with the second code where the platform closes with the first.
    pub fn in_close(code: u16, instead: u16) -> Self {
        Self {
            close: (code, instead),
            ..Self::none()
        }
    }

    /// Opens connections that the platform refuses, where `opens` holds; nothing is said on them.
    pub fn in_upgrade(opens: fn(&Refused) -> bool) -> Self {
        Self {
            opens,
            ..Self::none()
        }
    }
}

/// A running proxy. It ends with the test's runtime.
pub struct Proxy {
    address: String,
}

struct Shared {
    upstream: String,
    fault: Fault,
    opened: Mutex<HashSet<String>>,
}

impl Proxy {
    /// Starts a proxy before the platform at `upstream` (`host:port`).
    pub async fn start(upstream: &str, fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port can be bound");
        let address = listener.local_addr().expect("it is bound").to_string();
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            fault,
            opened: Mutex::default(),
        });
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let shared = shared.clone();
                // A connection that breaks is the client's and the platform's business.
                tokio::spawn(async move { shared.serve(client).await.ok() });
            }
        });
        Self { address }
    }

    /// The proxy's base address, `http://…`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Shared {
    async fn serve(&self, mut client: TcpStream) -> std::io::Result<()> {
        let mut platform = TcpStream::connect(&self.upstream).await?;
        let (head, after) = read_head(&mut client).await?;
        platform.write_all(head.as_bytes()).await?;
        platform.write_all(&after).await?;
        if header(&head, "upgrade").is_none() {
            tokio::io::copy_bidirectional(&mut client, &mut platform).await?;
            return Ok(());
        }
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let (answer, first) = read_head(&mut platform).await?;
        if !answer.starts_with("HTTP/1.1 101") {
            let refused = Refused {
                opened_before: self
                    .opened
                    .lock()
                    .expect("no holder panics")
                    .contains(&target),
                target,
            };
            if (self.fault.opens)(&refused) {
                return open_by_itself(&mut client, &head).await;
            }
            client.write_all(answer.as_bytes()).await?;
            client.write_all(&first).await?;
            tokio::io::copy(&mut platform, &mut client).await?;
            return Ok(());
        }
        self.opened.lock().expect("no holder panics").insert(target);
        client.write_all(answer.as_bytes()).await?;
        let (from_client, to_client) = client.into_split();
        let (from_platform, to_platform) = platform.into_split();
        let up = self.relay(
            Bytes::new(),
            from_client,
            to_platform,
            &self.fault.to_platform,
        );
        let down = self.relay(first, from_platform, to_client, &self.fault.to_client);
        tokio::try_join!(up, down)?;
        Ok(())
    }

    /// Passes frames on until there are no more.
    async fn relay(
        &self,
        first: Bytes,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        alter: &Alter,
    ) -> std::io::Result<()> {
        let mut buffer = BytesMut::from(&first[..]);
        loop {
            while let Some((header, payload)) = take_frame(&mut buffer)? {
                let mut out = Vec::new();
                for (header, payload) in self.altered(header, payload, alter) {
                    Frame::from_payload(header, payload)
                        .format(&mut out)
                        .map_err(std::io::Error::other)?;
                }
                to.write_all(&out).await?;
            }
            if from.read_buf(&mut buffer).await? == 0 {
                return to.shutdown().await;
            }
        }
    }

    fn altered(
        &self,
        header: FrameHeader,
        payload: Bytes,
        alter: &Alter,
    ) -> Vec<(FrameHeader, Bytes)> {
        let code = self.fault.close.0.to_be_bytes();
        if header.opcode == OpCode::Control(Control::Close) && payload.starts_with(&code) {
            let instead = self.fault.close.1.to_be_bytes();
            return vec![(header, [&instead[..], &payload[2..]].concat().into())];
        }
        let whole = header.opcode == OpCode::Data(Data::Text) && header.is_final;
        let message = whole.then(|| serde_json::from_slice::<Value>(&payload).ok());
        let Some(mut message) = message.flatten() else {
            return vec![(header, payload)];
        };
        let before = message.clone();
        let fate = alter(&mut message);
        let payload = match message == before {
            true => payload,
            false => message.to_string().into(),
        };
        let frame = (header.clone(), payload);
        match fate {
            Fate::Pass => vec![frame],
            Fate::Drop => Vec::new(),
            Fate::Twice => vec![frame.clone(), frame],
            Fate::AfterGarbage => vec![(header, Bytes::from_static(b"hello")), frame],
        }
    }
}

/// Accepts an upgrade in the platform's place and says nothing until the client goes.
async fn open_by_itself(client: &mut TcpStream, head: &str) -> std::io::Result<()> {
    let key = header(head, "sec-websocket-key").unwrap_or_default();
    let accept = derive_accept_key(key.as_bytes());
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    client.write_all(answer.as_bytes()).await?;
    tokio::io::copy(client, &mut tokio::io::sink()).await?;
    Ok(())
}

/// The value of a header, where there is one.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}

/// The head of a request or answer, and what was read behind it.
async fn read_head(from: &mut TcpStream) -> std::io::Result<(String, Bytes)> {
    let mut buffer = BytesMut::new();
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = buffer.split_to(end + 4);
            return Ok((String::from_utf8_lossy(&head).into_owned(), buffer.freeze()));
        }
        if from.read_buf(&mut buffer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The first frame of the buffer, its payload unmasked, once it is all there.
fn take_frame(buffer: &mut BytesMut) -> std::io::Result<Option<(FrameHeader, Bytes)>> {
    let mut cursor = Cursor::new(&buffer[..]);
    let Some((header, length)) = FrameHeader::parse(&mut cursor).map_err(std::io::Error::other)?
    else {
        return Ok(None);
    };
    let begin = usize::try_from(cursor.position()).expect("within the buffer");
    let length = usize::try_from(length).map_err(std::io::Error::other)?;
    if buffer.len() - begin < length {
        return Ok(None);
    }
    buffer.advance(begin);
    let mut payload = buffer.split_to(length);
    if let Some(mask) = header.mask {
        payload
            .iter_mut()
            .zip(mask.iter().cycle())
            .for_each(|(byte, mask)| *byte ^= mask);
    }
    Ok(Some((header, payload.freeze())))
}
