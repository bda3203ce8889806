//! Sessions as they are made and ended over REST.

use super::*;

#[actix_web::test]
async fn a_fresh_adapter_has_a_by_the_seed_and_b_zero() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let mut bodies = Vec::new();
    for (name, seed) in [("one", 7), ("two", 7), ("three", 8)] {
        open(&admin, name, json!({"seed": seed})).await;
        let session = Coordinator::at(&platform, &format!("/c/{name}"));
        bodies.push(session.weights().await.1);
    }
    assert!(bodies[0] == bodies[1]);
    assert!(bodies[0] != bodies[2]);
    let header: Value = serde_json::from_slice(&bodies[0][8..values_at(&bodies[0])]).unwrap();
    let zeros = values(&bodies[0]).iter().filter(|x| **x == 0.0).count();
    let mut b_values = 0;
    for (name, tensor) in header.as_object().unwrap() {
        if name.contains("lora_B") {
            let shape = tensor["shape"].as_array().unwrap();
            b_values += shape.iter().map(|n| n.as_u64().unwrap()).product::<u64>();
        }
    }
    assert_eq!(zeros as u64, b_values);
    let info = Coordinator::at(&platform, "/c/one").get("/bilgi").await.1;
    assert_eq!(info["protokol"], 1);
    assert_eq!(info["model"], json!({"huggingface_id": "yard/tiny"}));
    assert_eq!(
        (&info["adaptor"]["r"], &info["adaptor"]["hedefler"]),
        (&json!(2), &json!(["q_proj", "v_proj"]))
    );
    assert_eq!(info["adaptor"]["peft"]["peft_type"], "LORA");
}

#[actix_web::test]
async fn a_session_that_cannot_be_prepared_says_why_and_is_not_there_for_volunteers() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let body = json!({"name": "lost", "base_model": "no/such-model"});
    let (status, made) = admin.post("/api/coordinators", body.clone()).await;
    assert_eq!(
        (status.as_u16(), &made["status"]),
        (201, &json!("preparing"))
    );
    let id = made["id"].as_i64().unwrap();
    let shown = admin
        .wait(&format!("/api/coordinators/{id}"), |shown| {
            shown["status"] == "failed"
        })
        .await;
    assert!(
        shown["error"].as_str().unwrap().contains("no/such-model"),
        "{shown}"
    );
    let session = Coordinator::at(&platform, "/c/lost");
    let (status, refusal) = session.get("/gorev?isci=ali").await;
    assert_eq!(status, 404, "{refusal}");
    let stop = format!("/api/coordinators/{id}/stop");
    assert_eq!(admin.post(&stop, json!({})).await.0, 409);
    // The name is free again; that of a session that is there is not.
    open(&admin, "lost", json!({})).await;
    assert_eq!(session.task("ali").await["tur"], 0);
    assert_eq!(admin.post("/api/coordinators", body).await.0, 409);
}

#[actix_web::test]
async fn a_stopped_session_keeps_what_was_merged_and_takes_nothing_more() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let id = open(&admin, "masal", json!({"en_az": 1})).await;
    let session = Coordinator::at(&platform, "/c/masal");
    session.trains("ali", 0.5).await;
    session.wait_for_round(1).await;
    let (_, weights) = session.weights().await;
    let (status, shown) = admin
        .post(&format!("/api/coordinators/{id}/stop"), json!({}))
        .await;
    assert_eq!(
        (status.as_u16(), &shown["status"]),
        (200, &json!("stopped"))
    );
    let stop = format!("/api/coordinators/{id}/stop");
    assert_eq!(admin.post(&stop, json!({})).await.0, 200);
    assert_eq!(session.task("ali").await, json!({"bitti": true}));
    assert_eq!(session.trains("veli", 0.5).await.0, 409);
    let path = format!("/api/coordinators/{id}/artifacts/adapter_model.safetensors");
    let response = admin.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(response.status(), 302);
    let url = response.headers()["location"].to_str().unwrap().to_owned();
    let file = platform.client.get(url).send().await.unwrap();
    assert!(file.bytes().await.unwrap() == weights);
    let (status, _) = admin
        .get(&format!("/api/coordinators/{id}/artifacts/nothing"))
        .await;
    assert_eq!(status, 404);
}

#[actix_web::test]
async fn others_sessions_are_neither_seen_nor_stopped() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let viewer = platform.user("viewer@example.org", "viewer").await;
    let id = open(&admin, "masal", json!({})).await;
    let path = format!("/api/coordinators/{id}");
    assert_eq!(member.get(&path).await.0, 404);
    assert_eq!(member.get(&format!("{path}/rounds")).await.0, 404);
    assert_eq!(viewer.get(&path).await.0, 200);
    assert_eq!(viewer.post(&format!("{path}/stop"), json!({})).await.0, 403);
    let body = json!({"name": "x", "base_model": "yard/tiny"});
    assert_eq!(viewer.post("/api/coordinators", body).await.0, 403);
    let (_, list) = member.get("/api/coordinators").await;
    assert!(list["items"].as_array().unwrap().is_empty());
    let body = json!({"name": "y", "base_model": "yard/tiny", "n_parça": 3});
    let (status, refusal) = member.post("/api/coordinators", body).await;
    assert_eq!(status, 400);
    assert!(
        refusal["error"]["details"][0]["hint"]
            .as_str()
            .unwrap()
            .contains("n_parca")
    );
}
