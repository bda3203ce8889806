//! Owns what is logged and how. Crates of others log warnings and errors only: their other lines may hold
//! headers and queries, and with them secrets.

use std::io::IsTerminal;

use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::config::{Config, LogFormat};

/// Starts logging to standard error. Where logging has been started already, that stays.
pub fn init(config: &Config) {
    let lines = tracing_subscriber::registry().with(layer(config, std::io::stderr));
    if lines.try_init().is_err() {
        tracing::debug!("logging had been started before");
    }
}

fn layer<W>(config: &Config, writer: W) -> impl Layer<Registry> + use<W>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = fmt::layer::<Registry>()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(writer);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match config.log_format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    // The directives were checked when the settings were read.
    lines.with_filter(EnvFilter::new(&config.log).and(filter_fn(may_be_logged)))
}

fn may_be_logged(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::WARN || metadata.target().starts_with("trainyard")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;
    use crate::testing::{ADMIN_PASSWORD, Platform};
    use reqwest::Method;
    use serde_json::json;
    use std::io;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// G022: whatever the level, no token, key, password or signature is logged; the access log holds paths
    /// without queries.
    #[actix_web::test]
    async fn g022_no_secret_is_logged_at_the_most_talkative_level() {
        let captured = Captured::default();
        let config = Config::resolve(&Sources::default().with_flag("LOG", "trace")).unwrap();
        let writer = captured.clone();
        let lines = layer(&config, move || writer.clone());
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines))
            .unwrap();

        let platform = Platform::start(&[]).await;
        let admin = platform.admin().await;
        let (_, ws) = admin.post("/api/ws-token", json!({})).await;
        let (_, key) = admin.post("/api/enrollment-keys", json!({})).await;
        let (_, api) = admin.post("/api/api-tokens", json!({ "name": "ci" })).await;
        let secrets = [
            admin.token.clone(),
            ws["token"].as_str().unwrap().to_owned(),
            key["key"].as_str().unwrap().to_owned(),
            api["token"].as_str().unwrap().to_owned(),
            ADMIN_PASSWORD.to_owned(),
            "secretsignature".to_owned(),
        ];
        for path in [
            format!("/ws/user/1?token={}", secrets[1]),
            "/storage/a/b?expires=99999999999&signature=secretsignature".to_owned(),
            format!("/nowhere?token={}", secrets[1]),
            format!("/api/datasets?name={}&name=x", secrets[2]),
        ] {
            platform
                .request(Method::GET, &path)
                .bearer_auth(&secrets[3])
                .send()
                .await
                .unwrap();
        }
        let wrong = json!({ "email": "x@y", "password": secrets[4] });
        platform
            .request(Method::POST, "/api/auth/login")
            .json(&wrong)
            .send()
            .await
            .unwrap();
        platform.stop().await;

        let log = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        assert!(
            log.contains("/storage/a/b"),
            "the access log is captured: {log}"
        );
        for secret in &secrets {
            let line = log.lines().find(|line| line.contains(secret.as_str()));
            assert!(line.is_none(), "a secret was logged: {line:?}");
        }
    }
}
