//! Which proxies HTTP goes through: those of the environment, by the names that other programs read, but never
//! for this machine itself.

use reqwest::{ClientBuilder, NoProxy, Proxy};

/// Never behind a proxy, whatever `NO_PROXY` says.
const OWN_MACHINE: &str = "localhost,127.0.0.0/8,::1";

/// A client builder that heeds `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` (or the same in lower
/// case) for other machines only. A proxy that cannot be used is left out, with a warning.
pub fn with_proxies(builder: ClientBuilder) -> ClientBuilder {
    with_proxies_of(builder, |name| std::env::var(name).ok())
}

fn with_proxies_of(
    builder: ClientBuilder,
    environment: impl Fn(&str) -> Option<String>,
) -> ClientBuilder {
    let set = |name: &str| {
        let found = environment(&name.to_lowercase()).or_else(|| environment(name));
        found.filter(|value| !value.trim().is_empty())
    };
    let except = match set("NO_PROXY") {
        Some(others) => format!("{others},{OWN_MACHINE}"),
        None => OWN_MACHINE.to_owned(),
    };
    let kinds = [
        ("HTTP_PROXY", set("HTTP_PROXY").map(Proxy::http)),
        ("HTTPS_PROXY", set("HTTPS_PROXY").map(Proxy::https)),
        ("ALL_PROXY", set("ALL_PROXY").map(Proxy::all)),
    ];
    // Only what is named here counts: without this the client would read the environment by itself.
    let mut builder = builder.no_proxy();
    for (name, proxy) in kinds {
        match proxy {
            Some(Ok(proxy)) => {
                builder = builder.proxy(proxy.no_proxy(NoProxy::from_string(&except)));
            }
            // The error's text may hold the proxy's password.
            Some(Err(_)) => tracing::warn!(setting = name, "is no address of a proxy"),
            None => {}
        }
    }
    builder
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A server that answers one request with that text. Its address, and the request's first line.
    fn server(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).unwrap();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
                answer.len()
            )
            .unwrap();
            let text = String::from_utf8_lossy(&request[..read]).into_owned();
            text.lines().next().unwrap_or_default().to_owned()
        });
        (address, serving)
    }

    #[tokio::test]
    async fn this_machine_is_never_asked_through_a_proxy_and_others_are() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (proxy, proxied) = server("proxy");
        let (own, direct) = server("own");
        let client = with_proxies_of(reqwest::Client::builder(), |name| {
            (name == "http_proxy").then(|| format!("http://{proxy}"))
        })
        .build()
        .unwrap();
        let text = async |url: String| client.get(url).send().await.unwrap().text().await.unwrap();
        assert_eq!(text(format!("http://{own}/a")).await, "own");
        assert_eq!(direct.join().unwrap(), "GET /a HTTP/1.1");
        assert_eq!(text("http://yard.invalid/b".to_owned()).await, "proxy");
        assert_eq!(
            proxied.join().unwrap(),
            "GET http://yard.invalid/b HTTP/1.1"
        );
    }

    #[test]
    fn a_proxy_that_is_none_is_left_out() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = with_proxies_of(reqwest::Client::builder(), |_| Some("::no::".to_owned()));
        assert!(builder.build().is_ok());
    }
}
