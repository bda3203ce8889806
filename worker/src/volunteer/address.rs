//! Where a coordinator is: over https, or over plain http on this machine alone.

use std::fmt;
use std::net::{Ipv4Addr, ToSocketAddrs};
use std::str::FromStr;

use url::{Host, Url};

/// A coordinator's base address, which may have a path (`https://yard.example.org/c/name`).
#[derive(Clone, PartialEq, Eq)]
pub struct CoordinatorAddress {
    base: Url,
}

/// Why an address is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It is no address.
    #[error("{0}; write it like https://yard.example.org")]
    NoAddress(String),
    /// It is another kind of address.
    #[error("https:// is expected, not {0}://")]
    Scheme(String),
    /// Weights and key would go over the network in clear.
    #[error("plain http is for 127.0.0.1 alone: use https for {0}")]
    PlainHttp(String),
    /// It has parts that do not belong there.
    #[error("{0}")]
    ExtraParts(&'static str),
}

impl CoordinatorAddress {
    /// The address of an endpoint with these parameters, whose values are percent-encoded: all but letters, digits, `-`,
    /// `.`, `_` and `~`.
    pub fn endpoint(&self, name: &str, parameters: &[(&str, &str)]) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{name}", self.base.path()));
        let query: Vec<String> = parameters
            .iter()
            .map(|(name, value)| format!("{name}={}", percent_encoded(value)))
            .collect();
        url.set_query(Some(query.join("&").as_str()).filter(|query| !query.is_empty()));
        url
    }
}

/// Whether something may be fetched from this address: over https, or over plain http from 127.0.0.1.
///
/// # Errors
/// What is wrong with it.
pub(super) fn check(url: &Url) -> Result<(), AddressError> {
    match url.scheme() {
        "https" => Ok(()),
        "http" if url.host() == Some(Host::Ipv4(Ipv4Addr::LOCALHOST)) => Ok(()),
        "http" => Err(AddressError::PlainHttp(
            url.host_str().unwrap_or_default().to_owned(),
        )),
        other => Err(AddressError::Scheme(other.to_owned())),
    }
}

impl FromStr for CoordinatorAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let mut base =
            Url::parse(text.trim()).map_err(|error| AddressError::NoAddress(error.to_string()))?;
        if base.query().is_some() || base.fragment().is_some() {
            return Err(AddressError::ExtraParts(
                "a base address has neither ? nor #",
            ));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(AddressError::ExtraParts(
                "no user name or password belongs here",
            ));
        }
        if base.scheme() == "http" && base.host_str() == Some("localhost") && is_this_machine(&base)
        {
            // So that what was looked up is what is asked.
            base.set_host(Some("127.0.0.1"))
                .map_err(|error| AddressError::NoAddress(error.to_string()))?;
        }
        check(&base)?;
        if !base.path().ends_with('/') {
            let path = format!("{}/", base.path());
            base.set_path(&path);
        }
        Ok(Self { base })
    }
}

/// Whether the host's name stands for 127.0.0.1, and for no other machine.
fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default().unwrap_or_default();
    let Ok(addresses) = (host, port).to_socket_addrs() else {
        return false;
    };
    let addresses: Vec<_> = addresses.map(|address| address.ip()).collect();
    addresses.iter().all(|address| address.is_loopback())
        && addresses
            .iter()
            .any(|address| *address == Ipv4Addr::LOCALHOST)
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(byte.into());
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

impl fmt::Display for CoordinatorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base.as_str().trim_end_matches('/'))
    }
}

impl fmt::Debug for CoordinatorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<CoordinatorAddress, AddressError> {
        text.parse()
    }

    #[test]
    fn plain_http_is_refused_but_to_127_0_0_1() {
        for accepted in [
            "https://yard.example.org",
            "https://yard.example.org/c/name/",
            "http://127.0.0.1:8765",
            "http://127.0.0.1/c/name",
        ] {
            assert!(parse(accepted).is_ok(), "{accepted}");
        }
        for refused in [
            "http://yard.example.org",
            "http://10.0.0.1:8765",
            "http://127.0.0.2",
            "http://[::1]:8765",
            "http://127.0.0.1.example.org",
            "http://localhost.example.org",
            "http://0.0.0.0:8765",
        ] {
            let error = parse(refused).unwrap_err();
            assert!(
                matches!(error, AddressError::PlainHttp(_)),
                "{refused}: {error}"
            );
        }
    }

    #[test]
    fn localhost_is_asked_by_the_address_that_it_stands_for() {
        let address = parse("http://localhost:8765/c/a").unwrap();
        assert_eq!(address.to_string(), "http://127.0.0.1:8765/c/a");
    }

    #[test]
    fn what_is_no_base_address_is_refused() {
        for refused in [
            "",
            "yard.example.org",
            "ftp://yard.example.org",
            "https://yard.example.org/?a=b",
            "https://user:secret@yard.example.org",
        ] {
            assert!(parse(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn endpoints_keep_the_base_path_and_names_are_percent_encoded() {
        let address = parse("https://yard.example.org/c/masal").unwrap();
        let url = address.endpoint("sonuc", &[("isci", "ali veli+çem/%"), ("tur", "3")]);
        assert_eq!(
            url.as_str(),
            "https://yard.example.org/c/masal/sonuc?isci=ali%20veli%2B%C3%A7em%2F%25&tur=3"
        );
        assert_eq!(
            address.endpoint("bilgi", &[]).as_str(),
            "https://yard.example.org/c/masal/bilgi"
        );
    }
}
