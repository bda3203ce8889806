//! What is left of sessions that have ended: at the root, among the models, and once they are deleted.

use chrono::TimeDelta;
use diesel::prelude::*;

use super::*;
use crate::database::schema::federated_sessions;
use crate::database::{DatabaseError, now};

async fn stop(user: &Session<'_>, id: i64) {
    let (status, shown) = user
        .post(&format!("/api/coordinators/{id}/stop"), json!({}))
        .await;
    assert_eq!(status, 200, "{shown}");
}

/// The platform started again, and a day later for the session.
async fn a_day_later(platform: Platform, models: &TempDir, id: i64) -> Platform {
    let long_ago = now() - TimeDelta::hours(25);
    let write = move |c: &mut _| {
        diesel::update(federated_sessions::table.find(id))
            .set(federated_sessions::ended_at.eq(long_ago))
            .execute(c)?;
        Ok(())
    };
    let database = &platform.server.state.database;
    database.write::<_, DatabaseError, _>(write).await.unwrap();
    start_in(platform.stop().await, models, &[]).await
}

#[actix_web::test]
async fn at_the_root_the_last_one_tells_of_its_end_for_a_day_and_the_default_one_for_ever() {
    let (platform, models) = platform(&[]).await;
    let admin = platform.admin().await;
    let bitti = json!({"bitti": true});
    let only = open(&admin, "only", json!({})).await;
    let failed = json!({"name": "failed", "base_model": "no/such-model"});
    stop(&admin, only).await;
    let failed = admin.post("/api/coordinators", failed).await.1["id"].clone();
    let path = format!("/api/coordinators/{failed}");
    admin.wait(&path, |shown| shown["status"] == "failed").await;
    assert_eq!(Coordinator::at(&platform, "").task("ali").await, bitti);
    // Of two that have ended it is the one that ended last, whichever was made last.
    let early = open(&admin, "early", json!({})).await;
    let late = open(&admin, "late", json!({})).await;
    stop(&admin, late).await;
    assert_eq!(Coordinator::at(&platform, "").task("ali").await["tur"], 0);
    stop(&admin, early).await;
    let info = Coordinator::at(&platform, "").get("/bilgi").await.1;
    assert_eq!(
        (&info["ad"], &info["bitti"]),
        (&json!("early"), &json!(true))
    );

    let mut platform = platform;
    for id in [only, late, early] {
        platform = a_day_later(platform, &models, id).await;
    }
    let (status, refusal) = Coordinator::at(&platform, "").get("/gorev?isci=ali").await;
    assert_eq!(status, 404, "{refusal}");
    assert_eq!(
        Coordinator::at(&platform, "/c/only").task("ali").await,
        bitti
    );

    let admin = platform.admin().await;
    let default = open(&admin, "default", json!({"default": true})).await;
    stop(&admin, default).await;
    drop(admin);
    let platform = a_day_later(platform, &models, default).await;
    assert_eq!(Coordinator::at(&platform, "").task("ali").await, bitti);
}

#[actix_web::test]
async fn a_session_that_has_ended_is_a_model_until_it_is_deleted_with_all_its_files() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let viewer = platform.user("viewer@example.org", "viewer").await;
    let rows: String = (0..8).map(|n| format!("{{\"text\":\"{n}\"}}\n")).collect();
    let data = admin.upload("name=d", rows).await.1["id"].clone();
    let id = open(&admin, "masal", json!({"en_az": 1, "dataset_id": data})).await;
    let path = format!("/api/coordinators/{id}");
    let session = Coordinator::at(&platform, "/c/masal");
    session.trains("ali", 0.5).await;
    session.wait_for_round(1).await;
    assert_eq!(admin.delete(&path).await.0, 409);
    let (_, models) = admin.get("/api/models").await;
    assert_eq!(models["items"], json!([]));

    stop(&admin, id).await;
    let (_, models) = admin.get("/api/models").await;
    let model = &models["items"][0];
    assert_eq!(model["id"], format!("federated-{id}"));
    assert_eq!(model["federated_session_id"], id);
    assert_eq!(
        (&model["base_model"], &model["kind"], &model["verified"]),
        (&json!("yard/tiny"), &json!("adapter"), &json!(true))
    );
    assert_eq!(member.get("/api/models").await.1["items"], json!([]));
    let (_, chats) = admin.get("/v1/models").await;
    assert_eq!(chats["data"][0]["id"], format!("federated-{id}"));

    assert_eq!(member.delete(&path).await.0, 404);
    assert_eq!(viewer.delete(&path).await.0, 403);
    let measured = json!({"model": format!("federated-{id}"), "dataset_id": data});
    let (_, evaluation) = admin.post("/api/evaluations", measured).await;
    let (status, refusal) = admin.delete(&path).await;
    assert_eq!(
        (status.as_u16(), &refusal["error"]["code"]),
        (409, &json!("in_use"))
    );
    let evaluation = format!("/api/evaluations/{}", evaluation["id"]);
    assert_eq!(admin.delete(&evaluation).await.0, 204);

    let files = platform
        .folder
        .path()
        .join(format!("storage/federated/{id}"));
    assert!(files.exists());
    assert_eq!(admin.delete(&path).await.0, 204);
    assert!(!files.exists());
    assert_eq!(admin.get(&path).await.0, 404);
    assert_eq!(admin.delete(&path).await.0, 404);
    assert_eq!(session.get("/gorev?isci=ali").await.0, 404);
    assert_eq!(Coordinator::at(&platform, "").get("/bilgi").await.0, 404);
    assert_eq!(admin.get("/api/models").await.1["items"], json!([]));
    // Name and data set are free again.
    open(&admin, "masal", json!({})).await;
    assert_eq!(admin.delete(&format!("/api/datasets/{data}")).await.0, 204);
}

#[actix_web::test]
async fn those_who_take_part_are_listed_page_by_page() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let id = open(&admin, "masal", json!({})).await;
    let session = Coordinator::at(&platform, "/c/masal");
    for worker in ["can", "ali", "ece", "veli", "ayse"] {
        session.task(worker).await;
    }
    let path = format!("/api/coordinators/{id}/participants");
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let (status, page) = admin.get(&format!("{path}?limit=2{cursor}")).await;
        assert_eq!(status, 200, "{page}");
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 2);
        names.extend(
            items
                .iter()
                .map(|one| one["isci"].as_str().unwrap().to_owned()),
        );
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(names, ["ali", "ayse", "can", "ece", "veli"]);
    assert_eq!(admin.get(&format!("{path}?limit=0")).await.0, 400);
    assert_eq!(admin.get(&format!("{path}?page=2")).await.0, 400);
}
