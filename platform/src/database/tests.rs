//! Transactions, errors told apart, and executors that survive what queries do.

use chrono::NaiveDateTime;
use diesel::connection::SimpleConnection;
use diesel::prelude::*;

use super::schema::users;
use super::{Database, DatabaseError, DbConnection, now};

fn open() -> (tempfile::TempDir, Database) {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::open(&folder.path().join("t.db")).unwrap();
    (folder, database)
}

fn insert(connection: &mut DbConnection, email: &str) -> Result<i64, DatabaseError> {
    diesel::insert_into(users::table)
        .values((
            users::email.eq(email),
            users::password_hash.eq(""),
            users::role.eq("member"),
            users::created_at.eq(now()),
        ))
        .execute(connection)?;
    super::last_insert_id(connection)
}

async fn count(database: &Database) -> i64 {
    database
        .read::<_, DatabaseError, _>(|c| Ok(users::table.count().get_result(c)?))
        .await
        .unwrap()
}

#[actix_web::test]
async fn a_write_that_fails_or_panics_changes_nothing_and_the_writer_goes_on() {
    let (_folder, database) = open();
    let failed = database
        .write::<(), DatabaseError, _>(|c| {
            insert(c, "a")?;
            Err(DatabaseError::NotFound)
        })
        .await;
    assert!(matches!(failed, Err(DatabaseError::NotFound)));
    let panicked = database
        .write::<(), DatabaseError, _>(|c| {
            insert(c, "a")?;
            panic!("a fault in a query");
        })
        .await;
    assert!(matches!(panicked, Err(DatabaseError::Panicked)));
    assert_eq!(count(&database).await, 0);
    assert_eq!(
        database
            .write::<_, DatabaseError, _>(|c| insert(c, "a"))
            .await
            .unwrap(),
        1
    );
    assert_eq!(count(&database).await, 1);
}

#[actix_web::test]
async fn readers_cannot_write() {
    let (_folder, database) = open();
    assert!(
        database
            .read::<_, DatabaseError, _>(|c| insert(c, "a"))
            .await
            .is_err()
    );
    assert_eq!(count(&database).await, 0);
}

#[actix_web::test]
async fn a_duplicate_and_a_missing_row_are_told_apart() {
    let (_folder, database) = open();
    database
        .write::<_, DatabaseError, _>(|c| insert(c, "a"))
        .await
        .unwrap();
    let twice = database
        .write::<_, DatabaseError, _>(|c| insert(c, "a"))
        .await;
    assert!(
        matches!(twice, Err(DatabaseError::Duplicate(_))),
        "{twice:?}"
    );
    let missing: Result<NaiveDateTime, _> = database
        .read::<_, DatabaseError, _>(|c| {
            Ok(users::table.find(99).select(users::created_at).first(c)?)
        })
        .await;
    assert!(matches!(missing, Err(DatabaseError::NotFound)));
    let dangling = database
        .write::<_, DatabaseError, _>(|c| {
            Ok(c.batch_execute(
                "INSERT INTO datasets (owner_id, name, format, storage_key, state, created_at)
                VALUES (99, '', '', '', 'ready', '2026-01-01')",
            )?)
        })
        .await;
    assert!(
        matches!(dangling, Err(DatabaseError::Referenced(_))),
        "{dangling:?}"
    );
}

/// G041: a full disk is told apart, nothing of the transaction stays, and space again is enough.
#[actix_web::test]
async fn g041_a_full_database_is_told_apart_and_heals() {
    let (_folder, database) = open();
    let pages = |limit: &'static str| {
        database.write::<_, DatabaseError, _>(move |c| Ok(c.batch_execute(limit)?))
    };
    let fill = || {
        database.write::<_, DatabaseError, _>(|c| {
            for nth in 0..100 {
                insert(c, &format!("{nth}{}", "x".repeat(10_000)))?;
            }
            Ok(())
        })
    };
    pages("PRAGMA max_page_count = 100").await.unwrap();
    let full = fill().await;
    assert!(matches!(full, Err(DatabaseError::Full)), "{full:?}");
    assert_eq!(count(&database).await, 0);
    pages("PRAGMA max_page_count = 100000").await.unwrap();
    fill().await.unwrap();
    assert_eq!(count(&database).await, 100);
}

/// G040: many writers at once are put in a row; none ever sees a lock.
#[actix_web::test]
async fn g040_parallel_writes_and_reads_never_meet_a_lock() {
    let (_folder, database) = open();
    let writes = (0..200).map(|nth| {
        let database = database.clone();
        async move {
            database
                .write::<_, DatabaseError, _>(move |c| insert(c, &nth.to_string()))
                .await?;
            database
                .read::<i64, DatabaseError, _>(|c| Ok(users::table.count().get_result(c)?))
                .await
        }
    });
    let outcomes = futures_util::future::join_all(writes).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(count(&database).await, 200);
}

#[actix_web::test]
async fn a_database_opened_again_keeps_its_rows_and_runs_no_migration_twice() {
    let (folder, database) = open();
    database
        .write::<_, DatabaseError, _>(|c| insert(c, "a"))
        .await
        .unwrap();
    drop(database);
    let again = Database::open(&folder.path().join("t.db")).unwrap();
    assert_eq!(count(&again).await, 1);
}

#[actix_web::test]
async fn a_file_that_is_no_database_is_refused_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.db");
    std::fs::write(&path, "this is not a database, only some text of more than a hundred characters, which makes up no header at all").unwrap();
    let error = Database::open(&path).err().unwrap().to_string();
    assert!(error.contains("t.db"), "{error}");
}

#[test]
fn only_sqlite_files_are_taken() {
    use super::sqlite_path;
    assert_eq!(
        sqlite_path("sqlite:/a/b.db").unwrap().to_str(),
        Some("/a/b.db")
    );
    assert_eq!(
        sqlite_path("sqlite:///a/b.db").unwrap().to_str(),
        Some("/a/b.db")
    );
    assert_eq!(
        sqlite_path("sqlite://rel.db").unwrap().to_str(),
        Some("rel.db")
    );
    for other in [
        "postgres://x/y",
        "mysql:x",
        "sqlite:",
        "sqlite::memory:",
        "b.db",
    ] {
        assert!(sqlite_path(other).is_err(), "{other}");
    }
}

/// Both dialects make the same tables: each migration exists in both, and names the same tables and columns.
#[test]
fn migrations_of_both_dialects_agree() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
    let names = |dialect: &str| {
        let mut names: Vec<String> = std::fs::read_dir(root.join(dialect))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names("sqlite"), names("postgres"));
    let shape = |dialect: &str, name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(root.join(dialect).join(name).join("up.sql")).unwrap();
        text.lines()
            .map(|line| line.split("--").next().unwrap().trim().to_owned())
            .map(|line| {
                line.replace(
                    "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
                    "INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL",
                )
            })
            .map(|line| {
                line.replace("BYTEA", "BLOB")
                    .replace("DOUBLE PRECISION", "DOUBLE")
            })
            .filter(|line| !line.is_empty())
            .collect()
    };
    for name in names("sqlite") {
        assert_eq!(shape("sqlite", &name), shape("postgres", &name), "{name}");
    }
}
