//! Tasks: work of minutes on trained models, which occupies a worker as a job does. An evaluation measures a model,
//! an export writes a job's result in another form. Here stands what both share: how one comes to a worker, what
//! becomes of it there, and how it is ended; [`Kind`] is what tells them apart.

pub mod actor;
pub mod directory;
mod routes;
pub mod state;
mod table;

use std::fmt;
use std::hash::Hash;

use chrono::NaiveDateTime;
use trainyard_shared::FailureKind;
use trainyard_shared::ids::{TaskId, UserId, WorkerId};
use trainyard_shared::message::{FromWorker, TaskProgressData, ToDashboard, ToWorker};

use crate::actors::Actors;
use crate::artifacts::ArtifactError;
use crate::database::{DatabaseError, DbConnection};
use crate::error::ApiError;
use crate::workers::event::WorkerNews;
use crate::workers::placement::Abilities;
use directory::Directory;
use state::{End, Event, Failure, Phase, Said};

pub use routes::{ProgressView, cancel};
pub(crate) use table::task_queries;

/// What a worker says, and of which task.
pub type About<K> = (<K as Kind>::Id, Said<<K as Kind>::Product>);

/// A kind of task.
pub trait Kind: Sized + Unpin + 'static {
    /// What one is called, as `evaluation`.
    const NOUN: &'static str;
    /// Its number.
    type Id: Copy + Eq + Hash + fmt::Display + Into<TaskId> + Send + Sync + Unpin + 'static;
    /// Its row in the database.
    type Row: Clone + Send + Sync + Unpin + 'static;
    /// What comes of it.
    type Product: Clone + Send + Unpin + 'static;

    /// Those under way.
    fn directory(actors: &Actors) -> &Directory<Self>;

    /// What matters of a row, whatever the kind.
    fn facts(row: &Self::Row) -> Facts<'_, Self::Id>;

    /// Whether a worker that takes inference can do it.
    fn can(abilities: &Abilities) -> bool;

    /// The message that brings it to a worker.
    ///
    /// # Errors
    /// When what it names is not there (any more), or the database fails.
    fn start(actors: &Actors, row: &Self::Row) -> impl Future<Output = Result<ToWorker, ApiError>>;

    /// The message that ends it at a worker.
    fn stop(id: Self::Id) -> ToWorker;

    /// What a message says of such a task, or the message where it is about something else.
    ///
    /// # Errors
    /// The message.
    fn said(message: FromWorker) -> Result<About<Self>, Box<FromWorker>>;

    /// Makes sure that what a worker says to have made is there, before it counts.
    ///
    /// # Errors
    /// What is not, or is not as it was said to be.
    fn check(
        actors: &Actors,
        row: &Self::Row,
        product: &Self::Product,
    ) -> impl Future<Output = Result<(), ArtifactError>>;

    /// Removes what a task leaves behind of which nothing came.
    fn clear_away(actors: &Actors, row: &Self::Row) -> impl Future<Output = ()>;

    /// Tells dashboards how far it is.
    fn progress_message(id: Self::Id, data: TaskProgressData) -> ToDashboard;

    /// Tells dashboards what came of it.
    fn completed_message(row: &Self::Row, product: Self::Product) -> ToDashboard;

    /// Tells dashboards that nothing came of it.
    fn failed_message(id: Self::Id, error: String, kind: Option<FailureKind>) -> ToDashboard;

    /// A row.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`] when there is none.
    fn row(connection: &mut DbConnection, id: Self::Id) -> Result<Self::Row, DatabaseError>;

    /// Those that have not ended, oldest first.
    ///
    /// # Errors
    /// Those of the database.
    fn under_way(connection: &mut DbConnection) -> Result<Vec<Self::Row>, DatabaseError>;

    /// The front of the queue, oldest first.
    ///
    /// # Errors
    /// Those of the database.
    fn queue(connection: &mut DbConnection) -> Result<Vec<Self::Id>, DatabaseError>;

    /// Writes down where one stands. Its actor is the only one that does, so a repeat after an outcome that is not
    /// known writes the same again.
    ///
    /// # Errors
    /// Those of the database.
    fn save(
        connection: &mut DbConnection,
        row: &Self::Row,
        phase: Phase,
        end: Option<&End<Self::Product>>,
        now: NaiveDateTime,
    ) -> Result<(), DatabaseError>;
}

/// What matters of a task's row, whatever its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts<'a, Id> {
    /// Its number.
    pub id: Id,
    /// Whose it is.
    pub owner: UserId,
    /// The worker that has it, or had it when it ended.
    pub worker: Option<WorkerId>,
    /// The word for where it stands.
    pub status: &'a str,
}

/// Why an event could not be taken in. Nothing has happened.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A file is not there, or not as it was said to be.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl From<TaskError> for ApiError {
    fn from(error: TaskError) -> Self {
        match error {
            TaskError::Artifact(error) => error.into(),
            TaskError::Database(error) => error.into(),
        }
    }
}

/// What a task must know of what became of its worker, if anything.
pub fn event_of_news<P>(worker: WorkerId, news: WorkerNews) -> Option<Event<P>> {
    match news {
        WorkerNews::Registered | WorkerNews::Disconnected => None,
        WorkerNews::Holds { holds, .. } => Some(Event::WorkerHolds { worker, holds }),
        WorkerNews::Lost => Some(Event::WorkerLost(worker)),
    }
}

/// A failure as the columns of a row hold it.
pub fn stored_failure(kind: Option<&str>, error: Option<&str>) -> Option<Failure> {
    let kind = FailureKind::from_word(kind?);
    Some(Failure {
        error: error.unwrap_or_default().to_owned(),
        kind: kind.unwrap_or(FailureKind::Internal),
    })
}
