//! Rounds: what counts, when they close, and what survives a restart.

use super::*;

/// Promise P12.
#[actix_web::test]
async fn g096_a_result_counts_once_and_a_repeat_closes_nothing() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    open(&admin, "masal", json!({})).await;
    let session = Coordinator::at(&platform, "/c/masal");
    let (_, global) = session.weights().await;
    let first = shifted(&global, 0.25);
    for _ in 0..2 {
        let answer = session.send("ali", 0, first.clone()).await;
        assert_eq!(answer, (StatusCode::OK, json!({"tamam": true, "tur": 0})));
    }
    let (status, refusal) = session.send("ali", 0, shifted(&global, 0.5)).await;
    assert_eq!(status, 409);
    assert!(refusal["hata"].is_string());
    let info = session.get("/bilgi").await.1;
    assert_eq!((&info["tur"], &info["gelen"]), (&json!(0), &json!(1)));

    session.trains("veli", 0.75).await;
    session.wait_for_round(1).await;
    // The mean of what came first from each; the outer step with momentum goes half as far again.
    let (round, merged) = session.weights().await;
    assert_eq!(round, 1);
    let delta = values(&merged)[0] - values(&global)[0];
    assert!((delta - 0.75).abs() < 1e-6, "{delta}");
    // A repeat of what counted is known after the round too; anything else comes too late.
    assert_eq!(session.send("ali", 0, first).await.0, 200);
    assert_eq!(session.send("ali", 0, shifted(&global, 0.5)).await.0, 409);
    assert_eq!(session.send("ayse", 0, shifted(&global, 0.5)).await.0, 409);
}

/// Promise P12.
#[actix_web::test]
async fn g097_results_count_across_a_restart() {
    let (before, models) = platform(&[]).await;
    let admin = before.admin().await;
    let id = open(&admin, "masal", json!({"en_az": 1, "toplam_tur": 5})).await;
    let session = Coordinator::at(&before, "/c/masal");
    for round in 0..2 {
        session.trains("ali", 0.5).await;
        session.wait_for_round(round + 1).await;
    }
    admin
        .post(&format!("/api/coordinators/{id}/stop"), json!({}))
        .await;
    open(&admin, "uzun", json!({})).await;
    let session = Coordinator::at(&before, "/c/uzun");
    session.trains("ali", 0.5).await;
    let (task, (_, weights)) = (session.task("veli").await, session.weights().await);
    let folder = before.stop().await;

    let after = start_in(folder, &models, &[]).await;
    let session = Coordinator::at(&after, "/c/uzun");
    assert_eq!(session.task("veli").await, task);
    assert_eq!(session.task("ali").await, json!({"bekle": true, "tur": 0}));
    assert_eq!(session.weights().await, (0, weights.clone()));
    assert_eq!(session.send("ali", 0, shifted(&weights, 0.5)).await.0, 200);
    assert_eq!(session.get("/bilgi").await.1["gelen"], 1);
    session.trains("veli", 0.25).await;
    session.wait_for_round(1).await;
    let stopped = Coordinator::at(&after, "/c/masal");
    assert_eq!(stopped.task("ali").await, json!({"bitti": true}));
    assert_eq!(stopped.weights().await.0, 2);
}

#[actix_web::test]
async fn g098_at_its_timeout_a_round_closes_with_what_is_there() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let more = json!({"en_az": 3, "tur_zaman_asimi": 0.5});
    let id = open(&admin, "masal", more).await;
    let session = Coordinator::at(&platform, "/c/masal");
    // Without a result nothing happens at the timeout; the first one closes the round then.
    admin
        .wait(&format!("/api/coordinators/{id}"), |shown| {
            shown["waiting_because"]
                .as_str()
                .is_some_and(|why| why.contains("time is over"))
        })
        .await;
    let (_, global) = session.weights().await;
    session.trains("ali", 0.5).await;
    session.wait_for_round(1).await;
    assert_eq!(session.send("ayse", 0, shifted(&global, 0.5)).await.0, 409);
    session.trains("ali", 0.5).await;
    // On a slow machine this one may come a round later; both count either way.
    while session.trains("veli", 0.5).await.0 != 200 {}
    let rounds = admin
        .wait(&format!("/api/coordinators/{id}/rounds"), |rounds| {
            let closed = rounds["items"].as_array().unwrap();
            closed
                .iter()
                .filter_map(|round| round["merged"].as_u64())
                .sum::<u64>()
                == 3
        })
        .await;
    assert!(rounds["items"].as_array().unwrap().len() >= 3, "{rounds}");
    let (_, people) = admin
        .get(&format!("/api/coordinators/{id}/participants"))
        .await;
    assert_eq!(people["items"].as_array().unwrap().len(), 2, "{people}");
}

#[actix_web::test]
async fn g099_weights_digest_and_round_belong_together_when_a_round_closes() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    open(&admin, "masal", json!({"en_az": 1})).await;
    let session = Coordinator::at(&platform, "/c/masal");
    let task = session.task("ali").await;
    let (_, global) = session.weights().await;
    assert_eq!(task["agirlik_sha256"], sha256(&global));
    // Whoever fetches while the round closes gets the one or the other, never a mixture.
    let fetched = async {
        loop {
            let (round, weights) = session.weights().await;
            if round > 0 {
                return (round, weights);
            }
            assert!(weights == global);
        }
    };
    let (_, (round, weights)) = tokio::join!(session.trains("veli", 0.5), fetched);
    assert_eq!(round, 1);
    assert_ne!(task["agirlik_sha256"], sha256(&weights));
    let again = session.task("ali").await;
    assert_eq!(again["tur"], 1);
    assert_eq!(again["agirlik_sha256"], sha256(&weights));
    // What was trained for the old task comes too late, whichever weights it began with.
    for began_with in [&global, &weights] {
        let (status, refusal) = session.send("ali", 0, shifted(began_with, 0.5)).await;
        assert_eq!(status, 409, "{refusal}");
    }
    assert_eq!(session.get("/bilgi").await.1["gelen"], 0);
}

#[actix_web::test]
async fn g104_one_task_a_round_then_waiting_then_the_end() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let id = open(&admin, "masal", json!({"toplam_tur": 1})).await;
    let session = Coordinator::at(&platform, "/c/masal");
    let first = session.task("ali").await;
    for _ in 0..9 {
        assert_eq!(session.task("ali").await, first);
    }
    let mut shards = Vec::new();
    for worker in ["ali", "veli", "ayse", "can"] {
        shards.push(session.task(worker).await["parca"].as_u64().unwrap());
    }
    assert_eq!(shards, [0, 1, 0, 1]);
    let mut dashboard = admin.dashboard().await;
    session.trains("ali", 0.5).await;
    assert_eq!(session.task("ali").await, json!({"bekle": true, "tur": 0}));
    let told = dashboard.receive("federated_round").await;
    assert_eq!(
        (&told["session_id"], &told["data"]["updates"]),
        (&json!(id), &json!(1))
    );
    let (_, global) = session.weights().await;
    session.trains("veli", 0.5).await;
    session.wait_for_round(1).await;
    assert_eq!(session.task("ali").await, json!({"bitti": true}));
    assert_eq!(session.task("new").await, json!({"bitti": true}));
    assert_eq!(session.send("ali", 0, shifted(&global, 0.5)).await.0, 200);
    assert_eq!(session.send("ali", 1, shifted(&global, 0.5)).await.0, 409);
    assert_eq!(session.get("/bilgi").await.1["bitti"], true);

    // The final adapter is a model like a job's.
    let shown = admin.get(&format!("/api/coordinators/{id}")).await.1;
    assert_eq!(
        (&shown["status"], &shown["model"]),
        (&json!("finished"), &json!(format!("federated-{id}")))
    );
    let (_, files) = admin
        .get(&format!("/api/coordinators/{id}/artifacts"))
        .await;
    let weights = session.weights().await.1;
    let named = files["items"].as_array().unwrap();
    assert_eq!(named.len(), 3, "{files}");
    assert_eq!(named[2]["sha256"], sha256(&weights));
    let data = admin.upload("name=d", r#"{"text":"a"}"#).await.1["id"].clone();
    let body = json!({"model": format!("federated-{id}"), "dataset_id": data});
    let (status, evaluation) = admin.post("/api/evaluations", body).await;
    assert_eq!(status, 201, "{evaluation}");
}

#[actix_web::test]
async fn g107_the_result_that_is_left_out_is_named_and_the_others_make_the_round() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let id = open(&admin, "masal", json!({"en_az": 4})).await;
    let session = Coordinator::at(&platform, "/c/masal");
    let (_, global) = session.weights().await;
    for (worker, delta) in [("a", 1.0), ("b", 1.1), ("c", 0.9), ("d", 1e6)] {
        let (status, answer) = session.trains(worker, delta).await;
        assert_eq!(status, 200, "{answer}");
    }
    session.wait_for_round(1).await;
    // The outer step goes one and a half times the mean of the three.
    let merged = session.weights().await.1;
    for (new, old) in values(&merged).iter().zip(values(&global)) {
        assert!((new - old - 1.5).abs() < 1e-5, "{old} became {new}");
    }
    let rounds = admin.get(&format!("/api/coordinators/{id}/rounds")).await.1;
    let results = rounds["items"][1]["results"].as_array().unwrap();
    let left_out: Vec<_> = results
        .iter()
        .filter(|result| !result["eliminated_because"].is_null())
        .collect();
    assert_eq!(left_out.len(), 1, "{rounds}");
    assert_eq!(left_out[0]["isci"], "d");
    let why = left_out[0]["eliminated_because"].as_str().unwrap();
    assert!(why.contains("median"), "{why}");
    assert_eq!(rounds["items"][1]["merged"], 3);
}

#[actix_web::test]
async fn g109_the_mean_is_taken_over_those_that_sent_and_not_over_the_shards() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let more = json!({"n_parca": 4, "en_az": 2, "outer_momentum": 0});
    open(&admin, "masal", more).await;
    let session = Coordinator::at(&platform, "/c/masal");
    let (_, global) = session.weights().await;
    for (worker, delta) in [("ali", 1.0), ("veli", 3.0)] {
        assert_eq!(session.trains(worker, delta).await.0, 200);
    }
    session.wait_for_round(1).await;
    let merged = session.weights().await.1;
    for (new, old) in values(&merged).iter().zip(values(&global)) {
        assert!((new - old - 2.0).abs() < 1e-5, "{old} became {new}");
    }
}

/// Promise P14.
#[actix_web::test]
async fn g110_the_bytes_do_not_depend_on_the_order_of_arrival_and_an_outlier_is_left_out() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let mut outcomes = Vec::new();
    let deltas = [
        ("a", 0.5),
        ("b", 0.25),
        ("c", 1e6),
        ("d", 0.125),
        ("e", 0.3),
    ];
    for turn in 0..3 {
        let name = format!("s{turn}");
        let id = open(&admin, &name, json!({"en_az": 5})).await;
        let session = Coordinator::at(&platform, &format!("/c/{name}"));
        let mut order = deltas;
        order.rotate_left(turn * 2);
        for (worker, delta) in order {
            let (status, answer) = session.trains(worker, delta).await;
            assert_eq!(status, 200, "{answer}");
        }
        session.wait_for_round(1).await;
        outcomes.push(sha256(&session.weights().await.1));
        let (_, rounds) = admin.get(&format!("/api/coordinators/{id}/rounds")).await;
        let closed = &rounds["items"][1];
        assert_eq!(closed["merged"], 4, "{closed}");
        assert!(closed["results"][2]["eliminated_because"].is_string());
        let people = admin
            .get(&format!("/api/coordinators/{id}/participants"))
            .await
            .1;
        assert_eq!(people["items"][2]["eliminated"], 1);
    }
    assert!(outcomes.iter().all(|sha256| *sha256 == outcomes[0]));
}
