//! Requests to the coordinator, and what is looked at in all of its answers.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header::HeaderMap;
use reqwest::{Method, Version};
use serde_json::Value;
use sha2::{Digest, Sha256};
use trainyard_shared::Secret;
use url::{Host, Url};

use super::Target;
use crate::conformance::report::{Outcome, Problem, excerpt};

pub use reqwest::Certificate as Authority;

/// Reads a PEM file of authorities.
///
/// # Errors
/// It is none.
pub fn authorities(pem: &[u8]) -> reqwest::Result<Vec<Authority>> {
    Authority::from_pem_bundle(pem)
}

/// What a request shows as `X-Anahtar`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The shared key, where there is one.
    Key,
    /// Another key.
    WrongKey,
    /// No key.
    Nothing,
}

/// A request.
#[derive(Debug, Clone)]
pub struct Ask {
    pub method: Method,
    /// One of the protocol's paths, without the slash.
    pub path: &'static str,
    /// As it goes over the wire, already percent-encoded.
    pub query: String,
    pub shown: Shown,
    pub headers: Vec<(&'static str, String)>,
    pub body: Option<Bytes>,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    /// What it answers, for reports.
    pub call: String,
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// The coordinator as it is reached.
pub struct Line {
    http: reqwest::Client,
    base: Url,
    key: Option<Secret>,
    answer_within: Duration,
    pub heard: Heard,
}

/// What stood out in all answers: the first of each kind.
#[derive(Debug, Default)]
pub struct Heard {
    /// How many refusals there were.
    pub refusals: u64,
    /// A refusal that is not `{"hata": "…"}`.
    pub without_reason: Option<String>,
    /// How many answers had to be JSON objects.
    pub objects: u64,
    /// One that was none.
    pub no_object: Option<String>,
    /// JSON that was not called so.
    pub other_type: Option<String>,
    /// An answer of another version than HTTP/1.1.
    pub other_version: Option<String>,
}

impl Ask {
    /// GET with the key, where there is one.
    pub fn get(path: &'static str, query: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path,
            query: query.into(),
            shown: Shown::Key,
            headers: Vec::new(),
            body: None,
        }
    }

    /// `POST /sonuc` with that query.
    pub fn result(query: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self {
            method: Method::POST,
            body: Some(body.into()),
            ..Self::get("sonuc", query)
        }
        .with("Content-Type", "application/octet-stream")
    }

    /// The same showing another key.
    pub fn showing(self, shown: Shown) -> Self {
        Self { shown, ..self }
    }

    /// The same by another method.
    pub fn by(self, method: Method) -> Self {
        Self { method, ..self }
    }

    /// The same with a header more.
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Method, path and query.
    pub fn call(&self) -> String {
        let mark = if self.query.is_empty() { "" } else { "?" };
        format!(
            "{} /{}{mark}{}",
            self.method,
            self.path,
            excerpt(&self.query)
        )
    }
}

impl Answer {
    /// The body as a JSON object.
    pub fn object(&self) -> Option<Value> {
        serde_json::from_slice(&self.body)
            .ok()
            .filter(Value::is_object)
    }

    /// Whether it is a success.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether the request was refused as the client's fault.
    pub fn is_refusal(&self) -> bool {
        (400..500).contains(&self.status)
    }

    /// A header that is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// SHA-256 of the body, in lower-case hex digits.
    pub fn sha256(&self) -> String {
        hex::encode(Sha256::digest(&self.body))
    }

    /// `GET /gorev?…: HTTP 200 {…}`
    pub fn describe(&self) -> String {
        let body = match std::str::from_utf8(&self.body) {
            Ok(text) => excerpt(text),
            Err(_) => format!("({} bytes that are no text)", self.body.len()),
        };
        format!("{}: HTTP {} {body}", self.call, self.status)
    }

    /// Broken unless the status is that.
    pub fn expect_status(&self, status: u16) -> Outcome {
        match self.status == status {
            true => Ok(()),
            false => Err(Problem::broken(format!("HTTP {status}"), self.describe())),
        }
    }
}

impl Line {
    /// The coordinator of that address.
    ///
    /// # Errors
    /// The HTTP client does not start.
    pub fn new(target: Target, answer_within: Duration) -> reqwest::Result<Self> {
        let mut builder = reqwest::Client::builder()
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(answer_within)
            .read_timeout(answer_within)
            // A connection that the other side closes after a refusal is not used again.
            .pool_max_idle_per_host(0)
            .user_agent(concat!("trainyard/", env!("CARGO_PKG_VERSION")))
            .tls_certs_merge(target.authorities);
        if is_loopback(&target.url) {
            builder = builder.no_proxy();
        }
        Ok(Self {
            http: builder.build()?,
            base: target.url,
            key: target.key,
            answer_within,
            heard: Heard::default(),
        })
    }

    /// What all paths are below.
    pub fn base(&self) -> &Url {
        &self.base
    }

    /// Whether there is a shared key.
    pub fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// How long an answer may take.
    pub fn answer_within(&self) -> Duration {
        self.answer_within
    }

    /// The value of `X-Anahtar` for that request.
    pub fn key_shown(&self, shown: Shown) -> Option<String> {
        match shown {
            Shown::Key => self.key.as_ref().map(|key| key.expose().to_owned()),
            Shown::WrongKey => Some("not-the-shared-key".to_owned()),
            Shown::Nothing => None,
        }
    }

    /// The address of a request.
    pub fn url(&self, ask: &Ask) -> Url {
        let mut url = self.base.clone();
        let path = format!("{}/{}", url.path().trim_end_matches('/'), ask.path);
        url.set_path(&path);
        url.set_query(Some(ask.query.as_str()).filter(|query| !query.is_empty()));
        url
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// Nothing whole came.
    pub async fn ask(&mut self, ask: Ask) -> Outcome<Answer> {
        let call = ask.call();
        let mut request = self.http.request(ask.method.clone(), self.url(&ask));
        if let Some(key) = self.key_shown(ask.shown) {
            request = request.header("X-Anahtar", key);
        }
        for (name, value) in &ask.headers {
            request = request.header(*name, value);
        }
        if let Some(body) = ask.body {
            // For an empty one the library would not say so.
            request = request.header("Content-Length", body.len()).body(body);
        }
        let whole = async {
            let response = request.send().await?;
            let (version, status) = (response.version(), response.status().as_u16());
            let headers = response.headers().clone();
            let body = response.bytes().await?;
            Ok((version, status, headers, body))
        };
        let came: reqwest::Result<_> = whole.await;
        let (version, status, headers, body) = came
            .map_err(|error| Problem::broken(format!("an answer to {call}"), in_words(&error)))?;
        let answer = Answer {
            call,
            status,
            headers,
            body,
        };
        if ask.method != Method::HEAD {
            self.heard.note(&answer, ask.path, version);
        }
        Ok(answer)
    }
}

impl Heard {
    /// Looks at an answer.
    pub fn note(&mut self, answer: &Answer, path: &str, version: Version) {
        if version != Version::HTTP_11 {
            note_first(&mut self.other_version, || {
                format!("{}: {version:?}", answer.call)
            });
        }
        let object = answer.object();
        let is_json = serde_json::from_slice::<Value>(&answer.body).is_ok();
        let media_type = answer.header("content-type").unwrap_or("none");
        let is_file = matches!(path, "agirlik" | "veri");
        if answer.status >= 400 {
            self.refusals += 1;
            let reason = object.as_ref().and_then(|object| object["hata"].as_str());
            if reason.is_none_or(str::is_empty) {
                note_first(&mut self.without_reason, || answer.describe());
            }
        } else if is_file {
            return;
        } else {
            self.objects += 1;
            if object.is_none() {
                note_first(&mut self.no_object, || answer.describe());
            }
        }
        if is_json && !media_type.starts_with("application/json") {
            note_first(&mut self.other_type, || {
                format!("{}: Content-Type {media_type}", answer.call)
            });
        }
    }
}

fn note_first(place: &mut Option<String>, what: impl FnOnce() -> String) {
    if place.is_none() {
        *place = Some(what());
    }
}

/// Whether an address is one of this machine.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// An error with its causes; the address stands in the call already.
fn in_words(error: &reqwest::Error) -> String {
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}
