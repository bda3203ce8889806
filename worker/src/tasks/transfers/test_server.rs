//! A small HTTP server for tests: every request is answered by a function of the test's own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// What a client asked for. Header names are in lower case.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    /// The first byte of a `Range: bytes=N-`.
    pub fn range_start(&self) -> Option<usize> {
        let range = self.headers.get("range")?;
        range
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    }
}

/// What the server says.
#[derive(Debug, Clone)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    sent_bytes: usize,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self {
            status,
            headers: Vec::new(),
            sent_bytes: body.len(),
            body,
        }
    }

    pub fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    /// The connection is cut after so many bytes of the body.
    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.sent_bytes = bytes;
        self
    }

    /// The whole of `content`, or the part of it that the request's range asks for.
    pub fn ranged(request: &Request, content: &[u8]) -> Self {
        match request.range_start() {
            Some(start) if start >= content.len() => {
                Self::new(416, "").header("Content-Range", format!("bytes */{}", content.len()))
            }
            Some(start) => Self::new(206, &content[start..]).header(
                "Content-Range",
                format!("bytes {start}-{}/{}", content.len() - 1, content.len()),
            ),
            None => Self::new(200, content),
        }
    }
}

/// A server on a free port of this machine; it ends with the test's runtime.
pub struct TestServer {
    address: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl TestServer {
    /// `answer` gets the number of the request, from 0, and the request.
    pub async fn start(answer: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_gated(Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)), answer).await
    }

    /// As [`TestServer::start`]; every answer waits for a permit and uses it up.
    pub async fn start_gated(
        gate: Arc<Semaphore>,
        answer: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (requests.clone(), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, answer, gate) = (seen.clone(), answer.clone(), gate.clone());
                tokio::spawn(async move {
                    if let Some((request, stream)) = read(stream).await {
                        let number = {
                            let mut seen = seen.lock().unwrap();
                            seen.push(request.clone());
                            seen.len() - 1
                        };
                        if let Ok(permit) = gate.acquire().await {
                            permit.forget();
                            write(stream, answer(number, &request)).await;
                        }
                    }
                });
            }
        });
        Self { address, requests }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

async fn read(stream: TcpStream) -> Option<(Request, TcpStream)> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).await.ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).await.ok()?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                headers.insert(name.to_lowercase(), value.trim().to_owned());
            }
            None => break,
        }
    }
    let length = headers
        .get("content-length")
        .and_then(|length| length.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await.ok()?;
    let request = Request {
        method,
        target,
        headers,
        body,
    };
    Some((request, reader.into_inner()))
}

async fn write(mut stream: TcpStream, reply: Reply) {
    let mut head = format!("HTTP/1.1 {} -\r\nConnection: close\r\n", reply.status);
    head.push_str(&format!("Content-Length: {}\r\n", reply.body.len()));
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    // A client that has gone away is the test's own doing.
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(&reply.body[..reply.sent_bytes]).await;
    let _ = stream.shutdown().await;
}
