//! The platform's REST API, seen from the client: requests with the token, answers as JSON, refusals as errors.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;
use trainyard_shared::Secret;
use url::Url;

use super::credentials::Credentials;
use super::error::CliError;
use super::output::remark;

/// The platform that is asked where none is named.
const DEFAULT_PLATFORM: &str = "http://127.0.0.1:8080/";
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the platform may be silent in the middle of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(300);
/// First and longest wait before a platform that is away is asked again.
const AGAIN: Duration = Duration::from_secs(1);
const LONGEST_AGAIN: Duration = Duration::from_secs(30);
/// Items that are asked for at once where all of a list is wanted.
const PAGE: &str = "200";

/// A platform and the right to use it.
pub struct Platform {
    base: Url,
    token: Option<Secret>,
    http: reqwest::Client,
}

impl Platform {
    /// The platform that was named, with the token of `TRAINYARD_TOKEN` or of the last login there.
    pub fn with_credentials(named: Option<&Url>) -> Result<Self, CliError> {
        let from_environment = std::env::var("TRAINYARD_TOKEN")
            .ok()
            .filter(|token| !token.is_empty());
        // With both given there is no need for a file, nor for a folder that could hold one.
        if let (Some(url), Some(token)) = (named, &from_environment) {
            return Self::new(url.clone(), Some(Secret::from(token.as_str())));
        }
        let credentials = Credentials::load()?;
        let base = base_url(named, &credentials)?;
        let stored = credentials
            .logins
            .get(base.as_str())
            .map(|login| login.token.clone());
        let token = from_environment.map(Secret::from).or(stored);
        Self::new(base, token)
    }

    /// The platform that was named, without a token.
    pub fn anonymous(named: Option<&Url>) -> Result<Self, CliError> {
        let base = match named {
            Some(url) => url.clone(),
            None => base_url(None, &Credentials::load()?)?,
        };
        Self::new(base, None)
    }

    /// The platform at `base`, with a token or without.
    pub fn new(base: Url, token: Option<Secret>) -> Result<Self, CliError> {
        let base = with_slash(base)?;
        let mut builder = reqwest::Client::builder();
        if is_own_machine(&base) {
            // A proxy would look for the platform on its own machine.
            builder = builder.no_proxy();
        }
        let http = builder
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .user_agent(concat!("trainyard/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| {
                CliError::Input(format!("the HTTP client does not start: {}", chain(&error)))
            })?;
        Ok(Self { base, token, http })
    }

    /// The platform's address; its path ends with a slash.
    pub fn base(&self) -> &Url {
        &self.base
    }

    /// The token, where there is one.
    pub fn token(&self) -> Option<&Secret> {
        self.token.as_ref()
    }

    /// The address of a path below the platform's, made of segments that are escaped as needed.
    pub fn url(&self, segments: &[&str]) -> Url {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .expect("an http address has a path")
            .pop_if_empty()
            .extend(segments);
        url
    }

    /// GET.
    pub async fn get(
        &self,
        segments: &[&str],
        query: &[(&str, String)],
    ) -> Result<Value, CliError> {
        self.json(self.request(Method::GET, segments)?.query(query))
            .await
    }

    /// GET of what was there before: while the platform is away it is asked again and again.
    pub async fn get_again(&self, segments: &[&str]) -> Result<Value, CliError> {
        let mut wait = AGAIN;
        loop {
            match self.get(segments, &[]).await {
                Err(error) if error.is_passing() => remark(&format!("{error}; trying again")),
                answered => return answered,
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_AGAIN);
        }
    }

    /// POST with a JSON body.
    pub async fn post(&self, segments: &[&str], body: &Value) -> Result<Value, CliError> {
        self.json(self.request(Method::POST, segments)?.json(body))
            .await
    }

    /// PATCH with a JSON body.
    pub async fn patch(&self, segments: &[&str], body: &Value) -> Result<Value, CliError> {
        self.json(self.request(Method::PATCH, segments)?.json(body))
            .await
    }

    /// DELETE.
    pub async fn delete(&self, segments: &[&str]) -> Result<Value, CliError> {
        self.json(self.request(Method::DELETE, segments)?).await
    }

    /// All items of a list, page after page, as one answer.
    pub async fn all(
        &self,
        segments: &[&str],
        query: &[(&str, String)],
    ) -> Result<Value, CliError> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut query = query.to_vec();
            query.push(("limit", PAGE.to_owned()));
            query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
            let mut page = self.get(segments, &query).await?;
            if let Value::Array(more) = page["items"].take() {
                items.extend(more);
            }
            match &page["next_cursor"] {
                Value::String(next) => cursor = Some(next.clone()),
                Value::Number(next) => cursor = Some(next.to_string()),
                _ => return Ok(serde_json::json!({ "items": items, "next_cursor": null })),
            }
        }
    }

    /// A request with the token, to be filled further and given to [`Platform::json`] or [`Platform::send`].
    pub fn request(&self, method: Method, segments: &[&str]) -> Result<RequestBuilder, CliError> {
        let token = self.token.as_ref().ok_or_else(|| CliError::NotLoggedIn {
            platform: self.base.to_string(),
        })?;
        Ok(self
            .http
            .request(method, self.url(segments))
            .bearer_auth(token.expose()))
    }

    /// POST without a token.
    pub async fn post_anonymous(&self, segments: &[&str], body: &Value) -> Result<Value, CliError> {
        self.json(self.http.post(self.url(segments)).json(body))
            .await
    }

    /// Sends a request and reads the JSON of a good answer; null where that is empty.
    pub async fn json(&self, request: RequestBuilder) -> Result<Value, CliError> {
        let body = self
            .send(request)
            .await?
            .text()
            .await
            .map_err(|error| self.unreachable(&error))?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&body).map_err(|error| CliError::UnexpectedAnswer(error.to_string()))
    }

    /// Sends a request; anything but a good answer is an error.
    pub async fn send(&self, request: RequestBuilder) -> Result<Response, CliError> {
        let response = request
            .send()
            .await
            .map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(refusal(response).await)
        }
    }

    /// What is told of a network that does not work.
    pub fn unreachable(&self, error: &reqwest::Error) -> CliError {
        let mut reason = causes(error);
        if is_refused(error) {
            reason.push_str("; is the platform running?");
        }
        CliError::Unreachable {
            platform: self.base.to_string(),
            reason,
        }
    }
}

async fn refusal(response: Response) -> CliError {
    let status = response.status();
    let body = response.text().await.unwrap_or_default();
    let body: Value = serde_json::from_str(&body).unwrap_or_default();
    let error = &body["error"];
    match error["message"].as_str() {
        Some(message) => CliError::Refused {
            status: status.as_u16(),
            code: error["code"].as_str().unwrap_or_default().to_owned(),
            message: message.to_owned(),
            details: error["details"].clone(),
        },
        None => CliError::UnexpectedAnswer(format!("HTTP {status}")),
    }
}

fn is_own_machine(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

fn base_url(named: Option<&Url>, credentials: &Credentials) -> Result<Url, CliError> {
    if let Some(named) = named {
        return with_slash(named.clone());
    }
    let text = credentials.platform.as_deref().unwrap_or(DEFAULT_PLATFORM);
    with_slash(
        text.parse()
            .map_err(|error| CliError::Input(format!("{text}: {error}")))?,
    )
}

/// The same address with a path that ends with a slash, so that one platform has one name.
fn with_slash(mut url: Url) -> Result<Url, CliError> {
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(CliError::Input(format!(
            "{url} is no http or https address of a platform"
        )));
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

/// Why a request failed, without the address, which is told before: the innermost cause says most.
fn causes(error: &reqwest::Error) -> String {
    let mut text = if error.is_timeout() {
        "no answer in time".to_owned()
    } else if error.is_connect() {
        "cannot connect".to_owned()
    } else {
        "the connection broke off".to_owned()
    };
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        cause = source.source();
        if cause.is_none() {
            text = format!("{text}: {source}");
        }
    }
    text
}

/// Whether nobody listens there.
fn is_refused(error: &reqwest::Error) -> bool {
    let first = std::error::Error::source(error);
    std::iter::successors(first, |cause| cause.source())
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// The error with its causes: reqwest's own text does not say why.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(base: &str) -> Platform {
        // Fails where another test has installed it: that is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Platform::new(base.parse().unwrap(), None).unwrap()
    }

    #[test]
    fn paths_are_made_below_the_platforms_own_and_escaped() {
        let root = platform("http://h:1");
        assert_eq!(
            root.url(&["api", "jobs", "1"]).as_str(),
            "http://h:1/api/jobs/1"
        );
        let below = platform("https://h/yard");
        assert_eq!(below.url(&["api", "me"]).as_str(), "https://h/yard/api/me");
        assert_eq!(
            below.url(&["api", "a b/c?d"]).as_str(),
            "https://h/yard/api/a%20b%2Fc%3Fd"
        );
    }

    #[tokio::test]
    async fn a_platform_that_does_not_run_is_named_once() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let platform = platform(&format!("http://{address}"));
        let asked = platform.post_anonymous(&["api", "auth", "login"], &Value::Null);
        let told = asked.await.unwrap_err().to_string();
        assert_eq!(told.matches(&address).count(), 1, "{told}");
        assert!(told.ends_with("; is the platform running?"), "{told}");
    }

    #[test]
    fn an_address_that_is_not_http_is_refused() {
        assert!(Platform::new("ftp://h/".parse().unwrap(), None).is_err());
    }

    #[test]
    fn without_a_token_one_is_told_to_log_in() {
        let told = platform("http://h:1")
            .request(Method::GET, &["api", "me"])
            .unwrap_err()
            .to_string();
        assert!(told.contains("trainyard login"), "{told}");
    }
}
