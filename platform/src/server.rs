//! Wires the platform together, top to bottom, and takes it apart in the opposite order.

use actix_web::dev::ServerHandle;
use actix_web::middleware::from_fn;
use actix_web::{App, HttpServer, web};
use socket2::SockRef;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use url::Url;

use crate::actors::{Actors, RunningActors};
use crate::auth::rate_limit::FailureLimiter;
use crate::auth::{Revocations, SecretKey};
use crate::config::Config;
use crate::dashboards::socket::carry_revocations;
use crate::database::{Database, DatabaseError};
use crate::error::ApiError;
use crate::rounds::scratch::Scratch;
use crate::sockets::caps::ConnectionCaps;
use crate::storage::{LocalStore, ObjectStore, UrlSigner};
use crate::tls::TlsError;
use crate::users::first_admin::{self, FirstAdmin};
use crate::workers::returning::Returning;
use crate::{datasets, http, workers};

/// A connection that has sent no whole request head by then is closed.
const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an idle connection is kept for its next request.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// A peer that acknowledges nothing, or takes nothing, for so long loses its connection.
const UNTAKEN_TIMEOUT: Duration = Duration::from_secs(120);
/// How long requests may take to end once the platform stops.
const SHUTDOWN_SECONDS: u64 = 10;
/// Threads that serve connections.
const HTTP_THREADS: usize = 4;
/// Connections per thread.
const MAX_CONNECTIONS: usize = 16_384;

/// What every handler and every session can reach.
pub struct AppState {
    /// The settings.
    pub config: Arc<Config>,
    /// The address under which workers and people reach the platform; its path ends with a slash.
    pub public_url: Url,
    /// The database.
    pub database: Database,
    /// The object store.
    pub storage: Arc<dyn ObjectStore>,
    /// Checks the signed URLs of local storage.
    pub url_signer: UrlSigner,
    /// Derives what is signed.
    pub secret: SecretKey,
    /// News of credentials that are void.
    pub revocations: Revocations,
    /// Failed logins.
    pub login_failures: FailureLimiter,
    /// Failed authentications of workers.
    pub worker_failures: FailureLimiter,
    /// How many WebSockets are open.
    pub connection_caps: ConnectionCaps,
    /// Gives workers their turns that come back all at once.
    pub returning: Mutex<Returning>,
    /// Sockets, jobs, workers: everything that lives.
    pub actors: Actors,
}

/// A platform that serves requests.
pub struct RunningServer {
    /// The address that is bound.
    pub address: SocketAddr,
    /// What is spoken there: `http` or `https`.
    pub scheme: &'static str,
    /// The address under which workers and people reach the platform.
    pub public_url: Url,
    /// The administrator that was made because there was none, for the terminal and for nothing else.
    pub first_admin: Option<FirstAdmin>,
    /// What its handlers reach.
    pub state: web::Data<AppState>,
    handle: ServerHandle,
    serving: JoinHandle<io::Result<()>>,
    actors: RunningActors,
    revocations: JoinHandle<()>,
    _lock: DataDirLock,
}

/// Why the platform did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder cannot be used.
    #[error("data folder {path}: {source}", path = path.display())]
    DataDir {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another platform works in the data folder.
    #[error("data folder {path} is in use by another platform", path = path.display())]
    DataDirInUse {
        /// The folder.
        path: PathBuf,
    },
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The database cannot be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Something was refused while starting.
    #[error(transparent)]
    Refused(#[from] ApiError),
}

/// Starts the platform and returns once it accepts connections. Needs a running actix system.
///
/// Order: data folder and its lock; address; secret key; database; object store and what crashes left in it;
/// the first administrator; the actors; the server.
///
/// # Errors
/// [`StartError`]; nothing is left running.
pub async fn start(config: Config) -> Result<RunningServer, StartError> {
    warn_when_exposed(&config);
    let lock = DataDirLock::take(&config.data_dir)?;
    let in_data_dir = |source| StartError::DataDir {
        path: config.data_dir.clone(),
        source,
    };
    let cannot_bind = |source| StartError::Bind {
        address: config.bind,
        source,
    };
    let listener = TcpListener::bind(config.bind).map_err(cannot_bind)?;
    let address = listener.local_addr().map_err(cannot_bind)?;
    limit_untaken(&listener);
    let tls = match &config.tls {
        Some(files) => Some(files.load()?),
        None => None,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let public_url = config
        .public_url
        .clone()
        .unwrap_or_else(|| local_url(scheme, address));

    let secret = match &config.secret_key {
        Some(setting) => SecretKey::from_setting(setting),
        None => SecretKey::load_or_create(&config.data_dir).map_err(in_data_dir)?,
    };
    let database = Database::open(&config.database_path)?;
    let url_signer = UrlSigner::new(&secret.derive("storage url"), public_url.clone());
    let store = LocalStore::open(&config.storage_root, url_signer.clone()).map_err(|source| {
        StartError::DataDir {
            path: config.storage_root.clone(),
            source,
        }
    })?;
    let storage: Arc<dyn ObjectStore> = Arc::new(store);
    datasets::remove_unfinished(&database, storage.as_ref()).await?;
    let first_admin = first_admin::make_if_none(&database, &config).await?;

    let scratch = Scratch::open(&config.data_dir).map_err(in_data_dir)?;
    let config = Arc::new(config);
    let (actors, running_actors) =
        Actors::start(config.clone(), database.clone(), storage.clone(), scratch).await?;
    let enrolled = database.read(workers::store::all).await?.len();
    let returning = Returning::new(
        enrolled,
        config.worker_heartbeat_timeout,
        actors.clock.now(),
    );
    let revocations = Revocations::default();
    let carrying = tokio::spawn(carry_revocations(
        actors.clone(),
        database.clone(),
        revocations.clone(),
    ));

    let state = web::Data::new(AppState {
        config,
        public_url: public_url.clone(),
        database,
        storage,
        url_signer,
        secret,
        revocations,
        login_failures: FailureLimiter::default(),
        worker_failures: FailureLimiter::default(),
        connection_caps: ConnectionCaps::default(),
        returning: Mutex::new(returning),
        actors,
    });
    let shared = state.clone();
    let server = HttpServer::new(move || {
        App::new()
            .app_data(shared.clone())
            .configure(http::configure)
            .wrap(from_fn(http::watch_only_chats))
            .wrap(from_fn(http::head_limit))
            .wrap(from_fn(http::close_where_unread))
            .wrap(from_fn(http::security_headers))
            .wrap(from_fn(http::access_log))
    })
    .on_connect(http::watch)
    .workers(HTTP_THREADS)
    .max_connections(MAX_CONNECTIONS)
    .client_request_timeout(REQUEST_HEAD_TIMEOUT)
    .keep_alive(KEEP_ALIVE)
    .tcp_nodelay(true)
    .tls_handshake_timeout(REQUEST_HEAD_TIMEOUT)
    .shutdown_timeout(SHUTDOWN_SECONDS)
    .disable_signals();
    let server = match tls {
        Some(tls) => server.listen_rustls_0_23(listener, tls),
        None => server.listen(listener),
    };
    let server = server
        .map_err(|source| StartError::Bind { address, source })?
        .run();
    let handle = server.handle();
    let serving = tokio::spawn(server);
    tracing::info!(%address, public_url = %public_url, "platform started");
    Ok(RunningServer {
        address,
        scheme,
        public_url,
        first_admin,
        state,
        handle,
        serving,
        actors: running_actors,
        revocations: carrying,
        _lock: lock,
    })
}

impl RunningServer {
    /// Stops in order: no new connections, answers fail, and sockets are closed; open requests end (within ten seconds); what
    /// is buffered is written; the data folder is released.
    pub async fn stop(self) {
        tokio::join!(self.handle.stop(true), self.actors.end_sessions());
        if let Ok(Err(error)) = self.serving.await {
            tracing::error!(%error, "server ended with an error");
        }
        self.revocations.abort();
        self.actors.stop().await;
        tracing::info!("platform stopped");
    }
}

/// Lets the kernel end a connection whose peer is gone or does not read: nobody else would notice while bytes
/// wait to be sent. Connections inherit it from the listener. Other systems than Linux have their own, longer
/// limits.
fn limit_untaken(listener: &TcpListener) {
    #[cfg(target_os = "linux")]
    if let Err(error) = SockRef::from(listener).set_tcp_user_timeout(Some(UNTAKEN_TIMEOUT)) {
        tracing::debug!(%error, "no limit for what a peer does not take");
    }
}

fn warn_when_exposed(config: &Config) {
    if config.public_url.is_none() && config.bind.ip().is_unspecified() {
        tracing::warn!(
            "PUBLIC_URL is not set: only workers on this machine will find the platform"
        );
    }
    if config.is_exposed_without_tls() {
        tracing::warn!(
            bind = %config.bind,
            "LISTENING BEYOND THIS MACHINE WITHOUT TLS: passwords and keys can be read on the way. \
             Set TLS_CERT and TLS_KEY, or put a proxy with TLS in front and set TRUST_PROXY=true, or bind to \
             127.0.0.1"
        );
    }
}

/// The address that this machine itself can use for what is bound.
fn local_url(scheme: &str, address: SocketAddr) -> Url {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let text = format!("{scheme}://{}/", SocketAddr::new(ip, address.port()));
    Url::parse(&text).expect("a socket address makes a URL")
}

/// Keeps a second platform out of the data folder, for as long as it lives.
struct DataDirLock {
    _file: fs::File,
}

impl DataDirLock {
    fn take(data_dir: &Path) -> Result<Self, StartError> {
        let failed = |source| StartError::DataDir {
            path: data_dir.to_owned(),
            source,
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(data_dir)
            .map_err(failed)?;
        let path = data_dir.join("lock");
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(fs::TryLockError::WouldBlock) => Err(StartError::DataDirInUse {
                path: data_dir.to_owned(),
            }),
            Err(fs::TryLockError::Error(source)) => Err(failed(source)),
        }
    }
}
