//! TLS with certificates that the tests make.

use super::*;
use futures_util::{SinkExt, StreamExt};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_tungstenite::Connector;
use tokio_tungstenite::tungstenite::Message;
use uuid::Uuid;

use crate::testing::{ADMIN_EMAIL, ADMIN_PASSWORD, Platform};

/// A certificate for this machine, signed by an authority that is made with it.
struct Made {
    folder: tempfile::TempDir,
    authority: CertificateDer<'static>,
    files: TlsFiles,
}

fn made() -> Made {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let own = CertificateParams::new(names)
        .unwrap()
        .signed_by(&key, &authority)
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let files = TlsFiles {
        cert: folder.path().join("cert.pem"),
        key: folder.path().join("key.pem"),
    };
    fs::write(&files.cert, own.pem()).unwrap();
    fs::write(&files.key, key.serialize_pem()).unwrap();
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
    Made {
        folder,
        authority: authority.der().clone(),
        files,
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_name() {
    let made = made();
    let told = |files: &TlsFiles| files.load().unwrap_err().to_string();
    assert!(made.files.load().is_ok());
    let missing = TlsFiles {
        cert: made.folder.path().join("none.pem"),
        ..made.files.clone()
    };
    assert!(
        told(&missing).contains("none.pem: there is no such file"),
        "{}",
        told(&missing)
    );
    let endless = TlsFiles {
        cert: "/dev/zero".into(),
        ..made.files.clone()
    };
    assert!(told(&endless).contains("/dev/zero: is no file"));
    let swapped = TlsFiles {
        cert: made.files.key.clone(),
        key: made.files.cert.clone(),
    };
    assert!(
        told(&swapped).contains("holds no certificate"),
        "{}",
        told(&swapped)
    );
    let no_key = TlsFiles {
        key: made.files.cert.clone(),
        ..made.files.clone()
    };
    assert!(told(&no_key).starts_with("TLS_KEY: "), "{}", told(&no_key));
    let other = self::made();
    let foreign = TlsFiles {
        key: other.files.key.clone(),
        ..made.files.clone()
    };
    let told = told(&foreign);
    assert!(
        told.contains("cert.pem") && told.contains("key.pem"),
        "{told}"
    );
}

#[test]
fn a_key_that_every_user_can_read_is_noticed() {
    let made = made();
    assert!(!is_readable_by_others(&made.files.key));
    fs::set_permissions(&made.files.key, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(is_readable_by_others(&made.files.key));
}

#[actix_web::test]
async fn rest_and_sockets_are_served_over_tls() {
    let made = made();
    let platform = Platform::start(&[
        ("TLS_CERT", made.files.cert.to_str().unwrap()),
        ("TLS_KEY", made.files.key.to_str().unwrap()),
    ])
    .await;
    assert_eq!(platform.server.public_url.scheme(), "https");
    let authority = reqwest::Certificate::from_der(&made.authority).unwrap();
    let client = reqwest::Client::builder()
        .tls_certs_only([authority])
        .build()
        .unwrap();
    let url = platform.server.public_url.join("api/auth/login").unwrap();
    let body = json!({ "email": ADMIN_EMAIL, "password": ADMIN_PASSWORD });
    let answer = client.post(url).json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let cookie = answer.headers()["set-cookie"].to_str().unwrap();
    assert!(cookie.contains("Secure"), "{cookie}");

    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.authority.clone()).unwrap();
    let config = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = TcpStream::connect(platform.server.address).await.unwrap();
    let uuid = Uuid::new_v4();
    let url = format!(
        "wss://{}/ws/worker?worker_uuid={uuid}",
        platform.server.address
    );
    let connector = Some(Connector::Rustls(Arc::new(config)));
    let opened = tokio_tungstenite::client_async_tls_with_config(url, tcp, None, connector).await;
    let (mut socket, _) = opened.unwrap();
    let hello = json!({"type": "authenticate", "api_key": "wkr_x", "worker_uuid": uuid});
    socket.send(Message::text(hello.to_string())).await.unwrap();
    let answer = socket.next().await.unwrap().unwrap().into_text().unwrap();
    assert!(answer.contains("auth_failed"), "{answer}");
}
