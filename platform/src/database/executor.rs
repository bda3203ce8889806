//! Owns the threads on which queries run: one writer, a few readers, each an actix `SyncArbiter` actor.

use actix::prelude::*;
use diesel::connection::Connection as _;
use diesel::result::Error as DieselError;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::DatabaseError;
use super::connection::{ConnectionRole, DbConnection, DbPool, connect, open_pool};
use super::migrate;

/// Threads that answer queries which change nothing.
const READERS: u32 = 4;

/// The platform's database: a cheap handle that is cloned to whoever needs it.
#[derive(Clone)]
pub struct Database {
    writer: Addr<Executor>,
    readers: Addr<Executor>,
}

impl Database {
    /// Opens the SQLite file (made when it is absent), brings its tables up to date and starts the executors.
    /// Needs a running actix system.
    ///
    /// # Errors
    /// When the file cannot be opened, or a migration fails.
    pub fn open(path: &Path) -> Result<Self, DatabaseError> {
        migrate::run(&mut connect(path, ConnectionRole::Writer)?)?;
        let writers = open_pool(path, ConnectionRole::Writer, 1)?;
        let readers = open_pool(path, ConnectionRole::Reader, READERS)?;
        Ok(Self {
            writer: SyncArbiter::start(1, move || Executor {
                pool: writers.clone(),
                role: ConnectionRole::Writer,
            }),
            readers: SyncArbiter::start(READERS as usize, move || Executor {
                pool: readers.clone(),
                role: ConnectionRole::Reader,
            }),
        })
    }

    /// Runs `query` as one transaction on the writer. `Ok` means committed and on the disk; on `Err`, and when
    /// the query panics, nothing has changed. Once it has been queued it runs even if the caller is dropped.
    ///
    /// # Errors
    /// Those of the query, and [`DatabaseError`] turned into its error type.
    pub async fn write<T, E, F>(&self, query: F) -> Result<T, E>
    where
        F: FnOnce(&mut DbConnection) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<DatabaseError> + Send + 'static,
    {
        run_on(&self.writer, query).await
    }

    /// Runs `query` against one consistent state of the database. Changing anything is refused.
    ///
    /// # Errors
    /// Those of the query, and [`DatabaseError`] turned into its error type.
    pub async fn read<T, E, F>(&self, query: F) -> Result<T, E>
    where
        F: FnOnce(&mut DbConnection) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<DatabaseError> + Send + 'static,
    {
        run_on(&self.readers, query).await
    }
}

async fn run_on<T, E, F>(executor: &Addr<Executor>, query: F) -> Result<T, E>
where
    F: FnOnce(&mut DbConnection) -> Result<T, E> + Send + 'static,
    T: Send + 'static,
    E: From<DatabaseError> + Send + 'static,
{
    match executor
        .send(RunQuery {
            query,
            result: PhantomData,
        })
        .await
    {
        Ok(result) => result,
        Err(_) => Err(DatabaseError::Stopped.into()),
    }
}

struct Executor {
    pool: DbPool,
    role: ConnectionRole,
}

impl Actor for Executor {
    type Context = SyncContext<Self>;
}

struct RunQuery<F, T, E> {
    query: F,
    result: PhantomData<fn() -> Result<T, E>>,
}

impl<F, T: Send + 'static, E: Send + 'static> Message for RunQuery<F, T, E> {
    type Result = Result<T, E>;
}

impl<F, T, E> Handler<RunQuery<F, T, E>> for Executor
where
    F: FnOnce(&mut DbConnection) -> Result<T, E> + Send + 'static,
    T: Send + 'static,
    E: From<DatabaseError> + Send + 'static,
{
    type Result = Result<T, E>;

    fn handle(&mut self, message: RunQuery<F, T, E>, _: &mut SyncContext<Self>) -> Self::Result {
        let mut pooled = checkout(&self.pool)?;
        let connection: &mut DbConnection = &mut pooled;
        // Kept aside: on some errors (a full disk) SQLite rolls back by itself, and the rollback that follows
        // fails with an error of its own, which says nothing.
        let mut failure = None;
        // A panic must not end the executor's thread: it becomes an error, and the transaction is rolled back.
        let guarded = |connection: &mut DbConnection| {
            catch_unwind(AssertUnwindSafe(|| (message.query)(connection)))
                .unwrap_or_else(|_| Err(DatabaseError::Panicked.into()))
                .map_err(|error| {
                    failure = Some(error);
                    DieselError::RollbackTransaction
                })
        };
        let outcome = match self.role {
            ConnectionRole::Writer => connection.immediate_transaction(guarded),
            ConnectionRole::Reader => connection.transaction(guarded),
        };
        match failure {
            Some(error) => Err(error),
            None => outcome.map_err(|error| DatabaseError::from(error).into()),
        }
    }
}

fn checkout(
    pool: &DbPool,
) -> Result<
    diesel::r2d2::PooledConnection<diesel::r2d2::ConnectionManager<DbConnection>>,
    DatabaseError,
> {
    pool.get().map_err(|error| {
        tracing::error!(%error, "no database connection");
        DatabaseError::Busy
    })
}
