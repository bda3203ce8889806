//! How machines become workers, and how they do not.

use chrono::TimeDelta;
use serde_json::json;
use uuid::Uuid;

use super::{EnrollmentRefused, redeem};
use crate::auth::worker_keys;
use crate::database::{Database, DatabaseError, now};
use crate::testing::Platform;

async fn platform_with_key(body: serde_json::Value) -> (Platform, String) {
    let platform = Platform::start(&[]).await;
    let (status, made) = platform
        .admin()
        .await
        .post("/api/enrollment-keys", body)
        .await;
    assert_eq!(status, 201, "{made}");
    let key = made["key"].as_str().unwrap().to_owned();
    (platform, key)
}

/// Redeems the key; the new worker's number, name and key, or why there is none.
async fn enroll(
    database: &Database,
    key: &str,
    uuid: Uuid,
) -> Result<(i64, String, String), String> {
    let key = key.to_owned();
    let write = move |c: &mut _| redeem(c, &key, uuid, now());
    let outcome = database.write::<_, EnrollmentRefused, _>(write).await;
    outcome
        .map(|done| {
            (
                done.worker_id,
                done.worker_name,
                done.api_key.expose().to_owned(),
            )
        })
        .map_err(|refused| refused.to_string())
}

async fn owner_of(database: &Database, key: &str) -> Option<worker_keys::WorkerKeyOwner> {
    let key = key.to_owned();
    database
        .read::<_, DatabaseError, _>(move |c| worker_keys::find(c, &key))
        .await
        .unwrap()
}

async fn present(database: &Database, key: &str) {
    let worker_id = owner_of(database, key).await.unwrap().worker_id;
    database
        .write::<_, DatabaseError, _>(move |c| worker_keys::mark_used(c, worker_id, now()))
        .await
        .unwrap();
}

#[actix_web::test]
async fn a_key_is_shown_once_with_a_command_to_paste() {
    let platform = Platform::start(&[("PUBLIC_URL", "https://yard.example")]).await;
    let admin = platform.admin().await;
    let (_, made) = admin
        .post(
            "/api/enrollment-keys",
            json!({ "name_prefix": "east", "max_uses": 3 }),
        )
        .await;
    let key = made["key"].as_str().unwrap();
    assert!(key.starts_with("enroll_") && key.len() == 7 + 43, "{key}");
    assert_eq!(
        made["command"],
        format!("PLATFORM_URL=https://yard.example WORKER_KEY={key} trainyard-worker run")
    );
    let (_, list) = admin.get("/api/enrollment-keys").await;
    assert_eq!(
        (
            list["items"][0]["max_uses"].as_i64(),
            list["items"][0]["uses"].as_i64()
        ),
        (Some(3), Some(0))
    );
    assert!(!list.to_string().contains(key));
    for wrong in [
        json!({ "name_prefix": "" }),
        json!({ "name_prefix": "a b" }),
        json!({ "name_prefix": "x".repeat(41) }),
        json!({ "max_uses": 0 }),
        json!({ "expires_in_seconds": 0 }),
        json!({ "expires_in_seconds": 1.5 }),
        json!({ "uses": 1 }),
    ] {
        assert_eq!(
            admin.post("/api/enrollment-keys", wrong.clone()).await.0,
            400,
            "{wrong}"
        );
    }
}

/// G026: the key decides nothing about identity; each UUID is a worker with a name of its own.
#[actix_web::test]
async fn g026_two_machines_with_one_key_become_two_workers() {
    let (platform, key) =
        platform_with_key(json!({ "name_prefix": "gpu_box", "max_uses": 2 })).await;
    let database = &platform.server.state.database;
    let (first, second) = (Uuid::new_v4(), Uuid::new_v4());
    let one = enroll(database, &key, first).await.unwrap();
    let two = enroll(database, &key, second).await.unwrap();
    assert_eq!((one.1.as_str(), two.1.as_str()), ("gpu_box-1", "gpu_box-2"));
    assert_ne!(one.0, two.0);
    let owner = owner_of(database, &one.2).await.unwrap();
    assert_eq!(
        (owner.worker_id, owner.uuid, owner.was_used),
        (one.0, first, false)
    );
    assert_eq!(owner_of(database, &two.2).await.unwrap().uuid, second);
    assert_eq!(
        enroll(database, &key, Uuid::new_v4()).await.unwrap_err(),
        "Invalid API key",
        "used up"
    );
}

/// G027: the answer was lost; the same machine gets a new key, the old one is void, and that costs no use.
#[actix_web::test]
async fn g027_a_lost_answer_is_repeated_with_a_new_key() {
    let (platform, key) = platform_with_key(json!({ "max_uses": 1 })).await;
    let database = &platform.server.state.database;
    let uuid = Uuid::new_v4();
    let lost = enroll(database, &key, uuid).await.unwrap();
    let again = enroll(database, &key, uuid).await.unwrap();
    assert_eq!((again.0, &again.1), (lost.0, &lost.1));
    assert!(
        owner_of(database, &lost.2).await.is_none(),
        "never two live keys"
    );
    assert!(owner_of(database, &again.2).await.is_some());

    present(database, &again.2).await;
    let refused = enroll(database, &key, uuid).await.unwrap_err();
    assert!(refused.contains("delete the worker"), "{refused}");
    assert!(
        owner_of(database, &again.2).await.is_some(),
        "a leaked key takes nobody over"
    );
}

/// G027: of twenty machines at once with a single-use key exactly one becomes a worker.
#[actix_web::test]
async fn g027_a_single_use_key_enrols_exactly_one_of_twenty_at_once() {
    let (platform, key) = platform_with_key(json!({ "max_uses": 1 })).await;
    let database = &platform.server.state.database;
    let tries = (0..20).map(|_| enroll(database, &key, Uuid::new_v4()));
    let outcomes = futures_util::future::join_all(tries).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
}

#[actix_web::test]
async fn refusals_never_say_whether_a_key_exists() {
    let (platform, key) = platform_with_key(json!({ "expires_in_seconds": 60 })).await;
    let database = &platform.server.state.database;
    let unknown = format!("enroll_{}", "A".repeat(43));
    for wrong in [
        "",
        "enroll_",
        &unknown,
        &key[..key.len() - 1],
        &key.replace("enroll_", "wkr_"),
    ] {
        assert_eq!(
            enroll(database, wrong, Uuid::new_v4()).await.unwrap_err(),
            "Invalid API key",
            "{wrong:?}"
        );
    }
    let (late, uuid) = (key.clone(), Uuid::new_v4());
    let write = move |c: &mut _| redeem(c, &late, uuid, now() + TimeDelta::seconds(61));
    let expired = database
        .write::<_, EnrollmentRefused, _>(write)
        .await
        .unwrap_err();
    assert_eq!(expired.to_string(), "Invalid API key");
    let admin = platform.admin().await;
    let (_, list) = admin.get("/api/enrollment-keys").await;
    let path = format!("/api/enrollment-keys/{}", list["items"][0]["id"]);
    assert_eq!(admin.delete(&path).await.0, 204);
    assert_eq!(
        admin.delete(&path).await.0,
        204,
        "revoking twice is the same as once"
    );
    assert_eq!(
        enroll(database, &key, Uuid::new_v4()).await.unwrap_err(),
        "Invalid API key",
        "revoked"
    );
    assert_eq!(admin.delete("/api/enrollment-keys/99").await.0, 404);
}

#[actix_web::test]
async fn another_enrolment_key_replaces_an_unused_key_only_with_a_use_of_its_own() {
    let (platform, first_key) = platform_with_key(json!({})).await;
    let database = &platform.server.state.database;
    let (_, made) = platform
        .admin()
        .await
        .post("/api/enrollment-keys", json!({ "max_uses": 1 }))
        .await;
    let second_key = made["key"].as_str().unwrap();
    let uuid = Uuid::new_v4();
    enroll(database, &first_key, uuid).await.unwrap();
    enroll(database, second_key, uuid).await.unwrap();
    assert_eq!(
        enroll(database, second_key, uuid).await.unwrap_err(),
        "Invalid API key"
    );
}

/// A rotated key voids the one before it.
#[actix_web::test]
async fn a_replaced_key_is_void() {
    let (platform, key) = platform_with_key(json!({})).await;
    let database = &platform.server.state.database;
    let worker = enroll(database, &key, Uuid::new_v4()).await.unwrap();
    present(database, &worker.2).await;
    let id = worker.0;
    let new = database
        .write::<_, DatabaseError, _>(move |c| worker_keys::replace(c, id))
        .await
        .unwrap();
    assert!(owner_of(database, &worker.2).await.is_none());
    let owner = owner_of(database, new.secret.expose()).await.unwrap();
    assert_eq!((owner.worker_id, owner.was_used), (id, false));
}
