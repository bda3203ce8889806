//! Requests that an HTTP library would not send: heads without a body, bodies without a length, broken off ones.

use bytes::Bytes;
use reqwest::Version;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::line::{Answer, Ask, Line};
use crate::conformance::report::{Outcome, Problem};

/// What the request says of its body's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// `Content-Length`
    Bytes(usize),
    /// `Transfer-Encoding: chunked`, in one chunk.
    Chunked,
}

impl Line {
    /// Sends the head of a request with that length, then the body that it has, and waits for the answer.
    ///
    /// # Errors
    /// No answer came; or the coordinator is not reached over plain http.
    pub async fn ask_raw(&mut self, ask: &Ask, length: Length) -> Outcome<Answer> {
        let call = format!("{} ({length:?})", ask.call());
        let expected = format!("an answer to {call}");
        let mut stream = self.send_raw(ask, length).await?;
        let read = tokio::time::timeout(self.answer_within(), read_answer(&mut stream)).await;
        let (status, headers, body) = match read {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => return Err(Problem::broken(expected, error.to_string())),
            Err(_) => return Err(Problem::broken(expected, "nothing")),
        };
        let answer = Answer {
            call,
            status,
            headers,
            body,
        };
        self.heard.note(&answer, ask.path, Version::HTTP_11);
        Ok(answer)
    }

    /// Sends the head of a request and the body that it has, and breaks off.
    ///
    /// # Errors
    /// The coordinator is not reached over plain http.
    pub async fn break_off(&mut self, ask: &Ask, length: Length) -> Outcome {
        let mut stream = self.send_raw(ask, length).await?;
        // Whether it answers is the other side's business; once it closes, it has seen the end.
        let seen = async {
            stream.shutdown().await?;
            stream.read_to_end(&mut Vec::new()).await
        };
        let _ = tokio::time::timeout(self.answer_within(), seen).await;
        Ok(())
    }

    async fn send_raw(&self, ask: &Ask, length: Length) -> Outcome<TcpStream> {
        let url = self.url(ask);
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err(Problem::Blocked("the address has no host".to_owned()));
        };
        if url.scheme() != "http" {
            let why = "only looked at over plain http, since it takes a connection of the judge's own making";
            return Err(Problem::Blocked(why.to_owned()));
        }
        let target = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let mut head = format!(
            "{} {target} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n",
            ask.method
        );
        if let Some(key) = self.key_shown(ask.shown) {
            head += &format!("X-Anahtar: {key}\r\n");
        }
        for (name, value) in &ask.headers {
            head += &format!("{name}: {value}\r\n");
        }
        let body = ask.body.clone().unwrap_or_default();
        let (length, body) = match length {
            Length::Bytes(bytes) => (format!("Content-Length: {bytes}"), body),
            Length::Chunked => {
                let size = format!("{:x}\r\n", body.len());
                let chunks = [size.as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
                ("Transfer-Encoding: chunked".to_owned(), chunks.into())
            }
        };
        head += &format!("{length}\r\n\r\n");
        let send = async {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let mut stream = TcpStream::connect((host, port)).await?;
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&body).await?;
            Ok(stream)
        };
        let sent: std::io::Result<TcpStream> = send.await;
        sent.map_err(|error| {
            Problem::broken(format!("{} to be read", ask.call()), error.to_string())
        })
    }
}

/// Reads an answer until the other side closes, or until the length that it says.
async fn read_answer(stream: &mut TcpStream) -> std::io::Result<(u16, HeaderMap, Bytes)> {
    let mut read = Vec::new();
    loop {
        if let Some(answer) = parse(&read, false) {
            return Ok(answer);
        }
        if stream.read_buf(&mut read).await? == 0 {
            let cut = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            return parse(&read, true).ok_or_else(cut);
        }
    }
}

/// The final answer, once it is all there.
fn parse(read: &[u8], is_end: bool) -> Option<(u16, HeaderMap, Bytes)> {
    let end = read.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&read[..end]);
    let mut lines = head.split("\r\n");
    let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let behind = &read[end + 4..];
    if status < 200 {
        // `100 Continue` and the like; the answer comes behind it.
        return parse(behind, is_end);
    }
    let headers: HeaderMap = lines
        .filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            let value = HeaderValue::from_str(value.trim()).ok()?;
            Some((name.parse::<HeaderName>().ok()?, value))
        })
        .collect();
    let said = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let length = said("content-length").and_then(|length| length.parse::<usize>().ok());
    let body = if said("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        unchunked(behind)?
    } else {
        match length {
            Some(length) => behind.get(..length)?.to_vec(),
            None if is_end => behind.to_vec(),
            None => return None,
        }
    };
    Some((status, headers, body.into()))
}

/// A body in chunks, once the last one is there.
fn unchunked(mut chunks: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = chunks.windows(2).position(|two| two == b"\r\n")?;
        let line = std::str::from_utf8(&chunks[..end]).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        let from = end + 2;
        body.extend_from_slice(chunks.get(from..from.checked_add(size)?)?);
        chunks = chunks.get(from + size + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_once_it_is_whole() {
        let plain = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\n{}";
        for cut in 0..plain.len() {
            assert!(parse(&plain[..cut], false).is_none(), "{cut}");
        }
        let (status, _, body) = parse(plain, false).unwrap();
        assert_eq!((status, &body[..]), (413, &b"{}"[..]));

        let chunked = b"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{\"\r\n3;x\r\na\":\r\n0\r\n\r\n";
        let (_, _, body) = parse(chunked, false).unwrap();
        assert_eq!(&body[..], b"{\"a\":");

        let until_the_end = b"HTTP/1.1 401 No\r\n\r\nabc";
        assert!(parse(until_the_end, false).is_none());
        assert_eq!(&parse(until_the_end, true).unwrap().2[..], b"abc");
    }
}
