//! Which files are a job's own, and what workers may do with them.

use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;
use trainyard_shared::ids::{DatasetId, JobId, UserId, WorkerId};
use trainyard_shared::message::ArtifactFile;
use uuid::Uuid;

use super::{ArtifactError, check_stored, delete_of_job, key_of_job};
use crate::database::{DatabaseError, now};
use crate::enrollment_keys::{EnrollmentRefused, redeem};
use crate::jobs::store::NewJob;
use crate::storage::{StorageKey, UploadTerms};
use crate::testing::{Platform, Session, answer};

const SHA256_OF_HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
const JOB: JobId = JobId(1);

/// A platform with a data set, and a job on it that the first of two workers has.
async fn platform_with_job() -> (Platform, [String; 2]) {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    admin.upload("name=d", "{\"text\":\"a\"}").await;
    let mut keys = Vec::new();
    for _ in 0..2 {
        let (_, made) = admin.post("/api/enrollment-keys", json!({})).await;
        let key = made["key"].as_str().unwrap().to_owned();
        let write = move |c: &mut _| redeem(c, &key, Uuid::new_v4(), now());
        let worker = platform
            .server
            .state
            .database
            .write::<_, EnrollmentRefused, _>(write)
            .await
            .unwrap();
        keys.push(worker.api_key.into_exposed());
    }
    platform
        .server
        .state
        .database
        .write::<_, DatabaseError, _>(|connection| {
            use crate::database::schema::jobs;
            use diesel::prelude::*;
            let job = NewJob {
                owner: UserId(1),
                name: None,
                dataset: DatasetId(1),
                base_model: "yard/tiny".to_owned(),
                config: serde_json::Map::new(),
                priority: 0,
                max_retries: 0,
                requested_worker: None,
            };
            crate::jobs::store::insert(connection, &job, now())?;
            diesel::update(jobs::table)
                .set(jobs::worker_id.eq(WorkerId(1).get()))
                .execute(connection)?;
            Ok(())
        })
        .await
        .unwrap();
    (platform, [keys.remove(0), keys.remove(0)])
}

fn hello(key: &str) -> Value {
    json!({ "job_id": 1, "key": key, "size": 5, "sha256": SHA256_OF_HELLO })
}

#[actix_web::test]
async fn a_worker_stores_a_file_of_its_job_and_reads_it_again() {
    let (platform, [key, _]) = platform_with_job().await;
    let worker = Session {
        platform: &platform,
        token: key,
    };
    let at = "checkpoints/job-1/step-5/adapter_model.safetensors";
    let (status, grant) = worker.post("/api/worker/uploads", hello(at)).await;
    assert_eq!(
        (status.as_u16(), grant["expires_in"].as_u64()),
        (200, Some(3600)),
        "{grant}"
    );
    let mut put = platform.client.put(grant["url"].as_str().unwrap());
    for (name, value) in grant["headers"].as_object().unwrap() {
        put = put.header(name, value.as_str().unwrap());
    }
    assert_eq!(put.body("hello").send().await.unwrap().status(), 200);

    for key in [at, "datasets/1/data.jsonl"] {
        let (status, grant) = worker
            .get(&format!("/api/worker/downloads?job_id=1&key={key}"))
            .await;
        assert_eq!(status, 200, "{key}: {grant}");
        let file = platform
            .client
            .get(grant["url"].as_str().unwrap())
            .send()
            .await
            .unwrap();
        assert_eq!(file.content_length(), grant["size_bytes"].as_u64());
    }
}

#[actix_web::test]
async fn a_worker_reaches_the_files_of_its_own_jobs_only() {
    let (platform, [own, other]) = platform_with_job().await;
    let worker = Session {
        platform: &platform,
        token: own,
    };
    let stranger = Session {
        platform: &platform,
        token: other,
    };
    let at = "models/job-1/final/x";
    assert_eq!(stranger.post("/api/worker/uploads", hello(at)).await.0, 404);
    assert_eq!(
        stranger
            .get("/api/worker/downloads?job_id=1&key=datasets/1/data.jsonl")
            .await
            .0,
        404
    );
    let missing =
        json!({ "job_id": 99, "key": "models/job-99/x", "size": 5, "sha256": SHA256_OF_HELLO });
    assert_eq!(worker.post("/api/worker/uploads", missing).await.0, 404);
    for key in [
        "datasets/2/data.jsonl",
        "models/job-2/final/x",
        "models/job-1/final/none",
    ] {
        assert_eq!(
            worker
                .get(&format!("/api/worker/downloads?job_id=1&key={key}"))
                .await
                .0,
            404,
            "{key}"
        );
    }
    let admin = platform.admin().await;
    assert_eq!(
        admin.post("/api/worker/uploads", hello(at)).await.0,
        401,
        "a user is no worker"
    );
    assert_eq!(worker.get("/api/me").await.0, 401, "a worker is no user");
    let nobody = platform
        .request(Method::POST, "/api/worker/uploads")
        .json(&hello(at));
    assert_eq!(answer(nobody.send().await.unwrap()).await.0, 401);
}

#[actix_web::test]
async fn leave_to_store_is_given_for_well_formed_requests_only() {
    let (platform, [key, _]) = platform_with_job().await;
    let worker = Session {
        platform: &platform,
        token: key,
    };
    let at = "models/job-1/final/x";
    for (field, wrong) in [
        (
            "sha256",
            json!({ "job_id": 1, "key": at, "size": 5, "sha256": "00" }),
        ),
        (
            "sha256",
            json!({ "job_id": 1, "key": at, "size": 5, "sha256": SHA256_OF_HELLO.to_uppercase() }),
        ),
        (
            "size",
            json!({ "job_id": 1, "key": at, "size": -5, "sha256": SHA256_OF_HELLO }),
        ),
        (
            "job_id",
            json!({ "job_id": "1", "key": at, "size": 5, "sha256": SHA256_OF_HELLO }),
        ),
        ("key", hello("models/job-1/../job-2/x")),
        ("key", hello("models/job-11/x")),
    ] {
        let (status, refused) = worker.post("/api/worker/uploads", wrong.clone()).await;
        let named = refused["error"]["details"][0]["field"].as_str();
        assert_eq!(
            (status.as_u16(), named),
            (400, Some(field)),
            "{wrong}: {refused}"
        );
    }
    let large = json!({ "job_id": 1, "key": at, "size": 1_u64 << 40, "sha256": SHA256_OF_HELLO });
    assert_eq!(worker.post("/api/worker/uploads", large).await.0, 413);
}

/// Promise P7, G044: what a worker calls its files and folders never leaves its job's own.
#[test]
fn g044_only_keys_below_the_job_s_own_folders_are_its_own() {
    for own in [
        "checkpoints/job-1/step-5/",
        "checkpoints/job-1/step-5/x",
        "models/job-1/final",
    ] {
        assert!(key_of_job(JOB, own).is_ok(), "{own}");
    }
    for foreign in [
        "../../x",
        "checkpoints/job-1/../job-2/x",
        "checkpoints/job-1",
        "checkpoints/job-1/",
        "checkpoints/job-1//",
        "checkpoints/job-12/x",
        "checkpoints/job-2/x",
        "/models/job-1/x",
        "models/job-1\\x",
        "datasets/1/data.jsonl",
        "",
        "/",
    ] {
        assert!(
            matches!(
                key_of_job(JOB, foreign),
                Err(ArtifactError::ForeignKey { .. })
            ),
            "{foreign}"
        );
    }
}

#[actix_web::test]
async fn files_count_only_when_they_are_stored_as_announced() {
    let (platform, _) = platform_with_job().await;
    let storage = platform.server.state.storage.as_ref();
    let key = "models/job-1/final/x";
    let terms = UploadTerms {
        size_bytes: 5,
        sha256: SHA256_OF_HELLO.to_owned(),
    };
    let target = storage.upload_target(
        &StorageKey::parse(key).unwrap(),
        &terms,
        Duration::from_secs(60),
    );
    let file = |size_bytes, sha256: &str| ArtifactFile {
        key: key.to_owned(),
        size_bytes,
        sha256: sha256.to_owned(),
    };
    let right = [file(5, SHA256_OF_HELLO)];
    let missing = check_stored(storage, JOB, &right).await.unwrap_err();
    assert!(missing.to_string().contains("no such file"), "{missing}");
    platform
        .client
        .put(target.url.expose())
        .body("hello")
        .send()
        .await
        .unwrap();
    check_stored(storage, JOB, &right).await.unwrap();
    for wrong in [file(6, SHA256_OF_HELLO), file(5, &"0".repeat(64))] {
        assert!(matches!(
            check_stored(storage, JOB, &[wrong]).await,
            Err(ArtifactError::NotStored { .. })
        ));
    }
    let foreign = check_stored(storage, JobId(2), &right).await;
    assert!(matches!(foreign, Err(ArtifactError::ForeignKey { .. })));
    delete_of_job(storage, JOB).await.unwrap();
    assert!(check_stored(storage, JOB, &right).await.is_err());
}

#[actix_web::test]
async fn a_data_set_of_a_job_that_has_not_ended_or_could_go_on_stays() {
    let (platform, _) = platform_with_job().await;
    let admin = platform.admin().await;
    let (status, refused) = admin.delete("/api/datasets/1").await;
    assert_eq!(
        (status.as_u16(), refused["error"]["code"].as_str()),
        (409, Some("in_use"))
    );
    platform
        .server
        .state
        .database
        .write::<_, DatabaseError, _>(|connection| {
            use crate::database::schema::{checkpoints, jobs};
            use diesel::prelude::*;
            diesel::update(jobs::table)
                .set((jobs::ended_at.eq(now()), jobs::status.eq("stopped")))
                .execute(connection)?;
            diesel::insert_into(checkpoints::table)
                .values((
                    checkpoints::job_id.eq(1),
                    checkpoints::attempt.eq(1),
                    checkpoints::step.eq(10),
                    checkpoints::path.eq("checkpoint-10"),
                    checkpoints::metrics.eq("{}"),
                    checkpoints::verified.eq(true),
                    checkpoints::created_at.eq(now()),
                ))
                .execute(connection)?;
            Ok(())
        })
        .await
        .unwrap();
    let (status, refused) = admin.delete("/api/datasets/1").await;
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(status, 409, "{refused}");
    assert!(message.contains("stopped or failed jobs"), "{message}");
    assert_eq!(admin.delete("/api/datasets/1?force=true").await.0, 204);
}
