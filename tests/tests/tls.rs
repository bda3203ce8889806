//! Platform and worker over TLS, with an authority of the test's own.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use reqwest::{Certificate, Client};
use serde_json::{Value, json};
use trainyard_tests::process::{Process, binary};
use trainyard_tests::{Platform, eventually};

/// Writes `ca.pem`, `cert.pem` and `key.pem`.
fn make_certificates(folder: &Path) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .unwrap()
        .signed_by(&key, &authority)
        .unwrap();
    fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
    fs::write(folder.join("cert.pem"), own.pem()).unwrap();
    fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}

fn worker(platform: &Platform, folder: &Path, key: &str, ca_file: Option<&Path>) -> Process {
    let mut command = tokio::process::Command::new(binary("trainyard-worker"));
    command.arg("run").env_clear();
    let url = format!("https://{}", platform.address());
    command
        .env("PLATFORM_URL", url)
        .env("WORKER_KEY", key)
        .env("STATE_DIR", folder)
        .env("RECONNECT_DELAY", "0.2")
        .env("BENCHMARK_SECONDS", "0.2")
        .env("HF_HUB_OFFLINE", "1");
    if let Some(ca_file) = ca_file {
        command.env("PLATFORM_CA_FILE", ca_file);
    }
    Process::start("trainyard-worker run", command)
}

#[tokio::test]
async fn a_worker_that_trusts_the_authority_joins_over_wss_and_another_does_not() {
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let platform = Platform::start_with(&[
        ("TLS_CERT", &file("cert.pem")),
        ("TLS_KEY", &file("key.pem")),
    ])
    .await;
    let ca = fs::read(folder.path().join("ca.pem")).unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder()
        .no_proxy()
        .tls_certs_only([Certificate::from_pem(&ca).unwrap()])
        .build()
        .unwrap();
    let at = |path: &str| format!("https://{}{path}", platform.address());
    let login = json!({"email": "admin@example.org", "password": "correct horse battery staple"});
    let answer = client.post(at("/api/auth/login")).json(&login).send();
    let answer: Value = answer.await.unwrap().json().await.unwrap();
    let token = answer["token"].as_str().unwrap().to_owned();
    let key = client.post(at("/api/enrollment-keys")).bearer_auth(&token);
    let key: Value = key
        .json(&json!({"max_uses": 1}))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let key = key["key"].as_str().unwrap();

    let (stranger_state, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut stranger = worker(&platform, stranger_state.path(), key, None);
    stranger
        .line("that the certificate is not trusted", |line| {
            line.to_lowercase().contains("certificate").then_some(())
        })
        .await;
    let ca_file = folder.path().join("ca.pem");
    let _trusting = worker(&platform, state.path(), key, Some(&ca_file));
    eventually("the worker to be idle", async || {
        let workers = client.get(at("/api/workers")).bearer_auth(&token).send();
        let workers: Value = workers.await.unwrap().json().await.unwrap();
        (workers["items"][0]["status"] == "idle").then_some(())
    })
    .await;
}
