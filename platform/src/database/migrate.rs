//! Owns the embedded migrations: the tables are brought up to date when the platform starts.

use diesel_migrations::{EmbeddedMigrations, MigrationHarness, embed_migrations};

use super::DatabaseError;
use super::connection::DbConnection;

const MIGRATIONS: EmbeddedMigrations = embed_migrations!("../migrations/sqlite");

/// Runs the migrations that this database has not seen yet, each in its own transaction.
///
/// # Errors
/// [`DatabaseError::Migration`] with the migration's own error.
pub(super) fn run(connection: &mut DbConnection) -> Result<(), DatabaseError> {
    let done = connection
        .run_pending_migrations(MIGRATIONS)
        .map_err(|error| DatabaseError::Migration(error.to_string()))?;
    for version in done {
        tracing::info!(migration.version = %version, "migration run");
    }
    Ok(())
}
