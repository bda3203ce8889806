//! Faults of disk and store, and a platform that stops in the midst of work.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use super::*;
use crate::database::Database;
use crate::rounds::store;
use trainyard_shared::ids::FederatedSessionId;

fn stored(platform: &Platform, id: i64) -> PathBuf {
    platform
        .folder
        .path()
        .join(format!("storage/federated/{id}"))
}

#[actix_web::test]
async fn a_result_that_cannot_be_read_costs_its_sender_the_round_and_nobody_else() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let id = open(&admin, "masal", json!({})).await;
    let session = Coordinator::at(&platform, "/c/masal");
    session.trains("ali", 0.5).await;
    let updates = stored(&platform, id).join("rounds/0/updates");
    let result = std::fs::read_dir(&updates).unwrap().next().unwrap();
    let result = result.unwrap().path();
    // The store reads over no link; to the round that is the same as a disk that cannot read.
    let elsewhere = platform.folder.path().join("elsewhere");
    std::fs::rename(&result, &elsewhere).unwrap();
    symlink(&elsewhere, &result).unwrap();

    session.trains("veli", 0.25).await;
    admin
        .wait(&format!("/api/coordinators/{id}"), |shown| {
            shown["round_status"] == "open" && shown["results"] == 1
        })
        .await;
    assert_eq!(session.task("veli").await["bekle"], true);
    let path = format!("/api/coordinators/{id}/participants");
    let people = admin.get(&path).await.1;
    assert_eq!(people["items"][0]["accepted"], 0, "{people}");
    assert_eq!(people["items"][1]["accepted"], 1, "{people}");
    assert_eq!(session.trains("ali", 0.5).await.0, 200);
    session.wait_for_round(1).await;
}

#[actix_web::test]
async fn a_session_whose_adapter_is_lost_can_be_stopped_and_says_so() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let id = open(&admin, "masal", json!({})).await;
    std::fs::remove_file(stored(&platform, id).join("rounds/0/adapter_model.safetensors")).unwrap();
    let (status, shown) = admin
        .post(&format!("/api/coordinators/{id}/stop"), json!({}))
        .await;
    assert_eq!(
        (status.as_u16(), &shown["status"]),
        (200, &json!("stopped"))
    );
    assert!(shown["error"].as_str().unwrap().contains("lost"), "{shown}");
    assert_eq!(shown["model"], Value::Null);
    let files = format!("/api/coordinators/{id}/artifacts");
    assert_eq!(admin.get(&files).await.1["items"], json!([]));
    assert_eq!(admin.get("/api/models").await.1["items"], json!([]));
    let session = Coordinator::at(&platform, "/c/masal");
    assert_eq!(session.task("ali").await, json!({"bitti": true}));
}

#[actix_web::test]
async fn a_session_that_could_not_be_prepared_leaves_no_files() {
    let (platform, models) = platform(&[]).await;
    let admin = platform.admin().await;
    // The weights are made and stored before the data is looked at.
    let chats =
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
    let data = admin.upload("name=d", chats).await.1["id"].clone();
    let tokenizer = models.path().join("yard/tiny/tokenizer.json");
    std::fs::write(tokenizer, "{}").unwrap();
    let body = json!({"name": "lost", "base_model": "yard/tiny", "dataset_id": data});
    let id = admin.post("/api/coordinators", body).await.1["id"].clone();
    let path = format!("/api/coordinators/{id}");
    admin.wait(&path, |shown| shown["status"] == "failed").await;
    let files = stored(&platform, id.as_i64().unwrap());
    eventually("its files are gone", async || !files.exists()).await;
    assert_eq!(admin.delete(&path).await.0, 204);
}

/// A second platform in the same folder goes on with what the first one has broken off.
#[actix_web::test]
async fn a_platform_that_stops_breaks_off_what_it_prepares_and_goes_on_at_the_next_start() {
    let (before, models) = platform(&[]).await;
    let admin = before.admin().await;
    let data = admin
        .upload("name=d", "{\"text\":\"a\"}\n{\"text\":\"b\"}")
        .await;
    let stopping = before.server.state.actors.stopping.clone();
    stopping.store(true, Ordering::Relaxed);
    let body = json!({
        "name": "masal", "base_model": "yard/tiny", "dataset_id": data.1["id"], "n_parca": 2, "lora": {"r": 2},
    });
    let (status, made) = admin.post("/api/coordinators", body).await;
    assert_eq!(status, 201, "{made}");
    let id = FederatedSessionId(made["id"].as_i64().unwrap());
    drop(admin);
    let folder = before.stop().await;
    let database = Database::open(&folder.path().join("trainyard.db")).unwrap();
    let row = database.read(move |c| store::row(c, id)).await.unwrap();
    assert_eq!(row.status, "preparing");
    drop(database);

    let after = start_in(folder, &models, &[]).await;
    let session = Coordinator::at(&after, "/c/masal");
    eventually("it is open", async || {
        session.get("/gorev?isci=ali").await.0 == 200
    })
    .await;
}

#[actix_web::test]
async fn a_session_whose_making_breaks_the_platform_off_again_and_again_is_given_up() {
    let (before, models) = platform(&[]).await;
    let admin = before.admin().await;
    let stopping = before.server.state.actors.stopping.clone();
    stopping.store(true, Ordering::Relaxed);
    let mut ids = Vec::new();
    for name in ["twice", "thrice"] {
        let body = json!({"name": name, "base_model": "yard/tiny", "lora": {"r": 2}});
        let (status, made) = admin.post("/api/coordinators", body).await;
        assert_eq!(status, 201, "{made}");
        ids.push(made["id"].as_i64().unwrap());
    }
    drop(admin);
    let tries: Vec<_> = ids
        .iter()
        .map(|id| stored(&before, *id).join("tries"))
        .collect();
    let folder = before.stop().await;
    for (tries, count) in tries.iter().zip([2, 3]) {
        std::fs::create_dir_all(tries).unwrap();
        for number in 0..count {
            std::fs::write(tries.join(number.to_string()), "").unwrap();
        }
    }

    let after = start_in(folder, &models, &[]).await;
    let admin = after.admin().await;
    let ended = async |id: i64| {
        let path = format!("/api/coordinators/{id}");
        admin
            .wait(&path, |shown| shown["status"] != "preparing")
            .await
    };
    assert_eq!(ended(ids[0]).await["status"], "open");
    let shown = ended(ids[1]).await;
    assert_eq!(shown["status"], "failed");
    assert!(
        shown["error"].as_str().unwrap().contains("broke off"),
        "{shown}"
    );
    eventually("no mark is left", async || {
        tries.iter().all(|tries| !tries.exists())
    })
    .await;
}
