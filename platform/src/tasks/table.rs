//! The SQL that the tables of all kinds of tasks share. Each has the columns `id`, `job_id`, `status`, `worker_id`,
//! `result` (JSON), `failure_kind`, `error`, `started_at` and `ended_at`.

/// Defines the queries of a task's table over its row and id.
macro_rules! task_queries {
    ($table:ident, $row:ident, $id:ident) => {
        /// Most of the queue that is looked at in one round of the dispatcher.
        const QUEUE_WINDOW: i64 = 1_000;
        const QUEUED: &str = $crate::tasks::state::Phase::Queued.as_str();
        const RUNNING: &str = "running";

        impl $row {
            /// Its number.
            pub fn id(&self) -> $id {
                $id(self.id)
            }

            /// What matters of it, whatever its kind.
            pub fn facts(&self) -> $crate::tasks::Facts<'_, $id> {
                $crate::tasks::Facts {
                    id: self.id(),
                    owner: ::trainyard_shared::ids::UserId(self.owner_id),
                    worker: self.worker_id.map(::trainyard_shared::ids::WorkerId),
                    status: &self.status,
                }
            }

            /// Why nothing came of it.
            pub fn failure(&self) -> Option<$crate::tasks::state::Failure> {
                $crate::tasks::stored_failure(self.failure_kind.as_deref(), self.error.as_deref())
            }
        }

        /// A row.
        ///
        /// # Errors
        /// [`DatabaseError::NotFound`] when there is none.
        pub fn row(connection: &mut DbConnection, id: $id) -> Result<$row, DatabaseError> {
            Ok($table::table
                .find(id.get())
                .select($row::as_select())
                .first(connection)?)
        }

        /// Those that have not ended, oldest first.
        ///
        /// # Errors
        /// Those of the database.
        pub fn under_way(connection: &mut DbConnection) -> Result<Vec<$row>, DatabaseError> {
            Ok($table::table
                .filter($table::ended_at.is_null())
                .order($table::id.asc())
                .select($row::as_select())
                .load(connection)?)
        }

        /// The front of the queue, oldest first.
        ///
        /// # Errors
        /// Those of the database.
        pub fn queue(connection: &mut DbConnection) -> Result<Vec<$id>, DatabaseError> {
            let ids: Vec<i64> = $table::table
                .filter($table::status.eq(QUEUED))
                .order($table::id.asc())
                .limit(QUEUE_WINDOW)
                .select($table::id)
                .load(connection)?;
            Ok(ids.into_iter().map($id).collect())
        }

        /// Whether one that has not ended uses the job's result.
        ///
        /// # Errors
        /// Those of the database.
        pub fn uses_job(
            connection: &mut DbConnection,
            job: ::trainyard_shared::ids::JobId,
        ) -> Result<bool, DatabaseError> {
            let found: Option<i64> = $table::table
                .filter($table::job_id.eq(job.get()))
                .filter($table::ended_at.is_null())
                .select($table::id)
                .first(connection)
                .optional()?;
            Ok(found.is_some())
        }

        /// Whether the worker has one at the moment that uses the job's result.
        ///
        /// # Errors
        /// Those of the database.
        pub fn needs_result(
            connection: &mut DbConnection,
            worker: ::trainyard_shared::ids::WorkerId,
            job: ::trainyard_shared::ids::JobId,
        ) -> Result<bool, DatabaseError> {
            let found: Option<i64> = $table::table
                .filter($table::job_id.eq(job.get()))
                .filter($table::worker_id.eq(worker.get()))
                .filter($table::ended_at.is_null())
                .select($table::id)
                .first(connection)
                .optional()?;
            Ok(found.is_some())
        }

        /// Writes down where one stands; a repeat writes the same again.
        ///
        /// # Errors
        /// Those of the database.
        pub fn save<P: ::serde::Serialize>(
            connection: &mut DbConnection,
            id: $id,
            phase: $crate::tasks::state::Phase,
            end: Option<&$crate::tasks::state::End<P>>,
            now: NaiveDateTime,
        ) -> Result<(), DatabaseError> {
            use $crate::tasks::state::End;
            let worker = phase.worker().map(::trainyard_shared::ids::WorkerId::get);
            let row = $table::table.find(id.get());
            let Some(end) = end else {
                diesel::update(row)
                    .set((
                        $table::status.eq(RUNNING),
                        $table::worker_id.eq(worker),
                        $table::started_at.eq(now),
                    ))
                    .execute(connection)?;
                return Ok(());
            };
            let (result, failure) = match end {
                End::Product(product) => (Some($crate::database::to_json_text(product)?), None),
                End::Failure(failure) => (None, Some(failure)),
                End::Cancelled => (None, None),
            };
            diesel::update(row)
                .set((
                    $table::status.eq(phase.as_str()),
                    $table::worker_id.eq(worker),
                    $table::result.eq(result),
                    $table::failure_kind.eq(failure.map(|failure| failure.kind.as_str())),
                    $table::error.eq(failure.map(|failure| failure.error.as_str())),
                    $table::ended_at.eq(now),
                ))
                .execute(connection)?;
            Ok(())
        }
    };
}
pub(crate) use task_queries;
