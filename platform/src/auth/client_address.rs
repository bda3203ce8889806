//! Owns the answer to "from which address does this come".

use actix_web::HttpRequest;
use std::net::{IpAddr, Ipv4Addr};

use crate::config::Config;

/// The client's address: that of the connection or, behind a trusted proxy, the last one in `X-Forwarded-For`
/// (the one that the proxy itself added; earlier ones are whatever the client claims).
pub fn client_address(request: &HttpRequest, config: &Config) -> IpAddr {
    let connected = request
        .peer_addr()
        .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
    if !config.trust_proxy {
        return connected;
    }
    request
        .headers()
        .get_all("x-forwarded-for")
        .last()
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.rsplit(',').next())
        .and_then(|last| last.trim().parse().ok())
        .unwrap_or(connected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;
    use actix_web::test::TestRequest;

    fn seen(trust_proxy: &str, forwarded: &str) -> String {
        let config =
            Config::resolve(&Sources::default().with_flag("TRUST_PROXY", trust_proxy)).unwrap();
        let request = TestRequest::default()
            .peer_addr("10.1.1.1:99".parse().unwrap())
            .insert_header(("x-forwarded-for", forwarded))
            .to_http_request();
        client_address(&request, &config).to_string()
    }

    #[test]
    fn the_forwarded_address_counts_behind_a_trusted_proxy_only() {
        assert_eq!(seen("false", "192.0.2.7"), "10.1.1.1");
        assert_eq!(seen("true", "192.0.2.7"), "192.0.2.7");
        assert_eq!(seen("true", "203.0.113.9, 192.0.2.7"), "192.0.2.7");
        assert_eq!(seen("true", "rubbish"), "10.1.1.1");
    }
}
