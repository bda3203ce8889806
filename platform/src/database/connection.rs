//! Owns how a database connection is opened and set up. Every query of the platform goes through [`DbConnection`].

use diesel::connection::{Connection, SimpleConnection};
use diesel::r2d2::{ConnectionManager, CustomizeConnection, Error as SetupError, Pool};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::DatabaseError;

/// The one connection type of the platform.
pub type DbConnection = diesel::sqlite::SqliteConnection;

/// A pool of connections of one role.
pub(super) type DbPool = Pool<ConnectionManager<DbConnection>>;

/// How long a connection waits for another's lock, and a caller for a pooled connection.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What the connections of a pool may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    /// The one connection that changes things; a commit is on the disk when it returns.
    Writer,
    /// Reads only: SQLite itself refuses anything else.
    Reader,
}

/// The SQLite file that `DATABASE_URL` names: `sqlite:PATH`, `sqlite://PATH` or `file:PATH`.
///
/// # Errors
/// Says which databases are supported when it names another.
pub fn sqlite_path(url: &str) -> Result<PathBuf, String> {
    let path = url
        .strip_prefix("sqlite://")
        .or_else(|| url.strip_prefix("sqlite:"))
        .or_else(|| url.strip_prefix("file:"));
    match path {
        Some("") => Err("names no file".to_owned()),
        Some(path) if path.starts_with(":memory:") => {
            Err("an in-memory database would lose everything; give a file".to_owned())
        }
        Some(path) => Ok(PathBuf::from(path)),
        None => {
            let scheme = url.split(':').next().unwrap_or_default();
            Err(format!(
                "{scheme:?} databases are not supported by this version; use sqlite:PATH"
            ))
        }
    }
}

/// Opens one connection, which shows at once what is wrong with the file.
pub(super) fn connect(path: &Path, role: ConnectionRole) -> Result<DbConnection, DatabaseError> {
    let failed = |reason: String| DatabaseError::Open {
        path: path.to_owned(),
        reason,
    };
    let file = path
        .to_str()
        .ok_or_else(|| failed("the path is not UTF-8".to_owned()))?;
    let mut connection =
        DbConnection::establish(file).map_err(|error| failed(error.to_string()))?;
    set_up(&mut connection, role).map_err(|error| failed(error.to_string()))?;
    Ok(connection)
}

/// Opens a pool of `size` connections.
pub(super) fn open_pool(
    path: &Path,
    role: ConnectionRole,
    size: u32,
) -> Result<DbPool, DatabaseError> {
    let failed = |reason: String| DatabaseError::Open {
        path: path.to_owned(),
        reason,
    };
    let file = path
        .to_str()
        .ok_or_else(|| failed("the path is not UTF-8".to_owned()))?;
    Pool::builder()
        .max_size(size)
        .min_idle(Some(1))
        .connection_timeout(BUSY_TIMEOUT)
        .error_handler(Box::new(LogPoolError))
        .connection_customizer(Box::new(Setup { role }))
        .build(ConnectionManager::new(file))
        .map_err(|error| failed(error.to_string()))
}

fn set_up(connection: &mut DbConnection, role: ConnectionRole) -> diesel::QueryResult<()> {
    // temp_store: SQLite would put its scratch files into TMPDIR, which may be another, smaller disk.
    let common = format!(
        "PRAGMA busy_timeout = {}; PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY;",
        BUSY_TIMEOUT.as_millis()
    );
    let own = match role {
        ConnectionRole::Writer => "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;",
        ConnectionRole::Reader => "PRAGMA query_only = ON;",
    };
    connection.batch_execute(&format!("{common}{own}"))
}

#[derive(Debug)]
struct Setup {
    role: ConnectionRole,
}

impl CustomizeConnection<DbConnection, SetupError> for Setup {
    fn on_acquire(&self, connection: &mut DbConnection) -> Result<(), SetupError> {
        set_up(connection, self.role).map_err(SetupError::QueryError)
    }
}

#[derive(Debug)]
struct LogPoolError;

impl<E: std::error::Error> diesel::r2d2::HandleError<E> for LogPoolError {
    fn handle_error(&self, error: E) {
        tracing::warn!(%error, "database connection failed");
    }
}
