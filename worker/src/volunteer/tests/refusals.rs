//! What a volunteer does not take, and says so.

use super::*;

#[actix_rt::test]
async fn a_key_that_is_not_taken_ends_it_as_bad_arguments() {
    let bench = Bench::new();
    let session = Session::of(
        &bench,
        1,
        Box::new(|request| {
            let refused = Reply::new(401, json!({"hata": "wrong key"}).to_string());
            (!request.target.contains("bilgi")).then_some(refused)
        }),
    );
    let server = serve(&session).await;
    let (result, _) = volunteer(&bench.config(&server.url("/c/a"))).await;
    let error = result.unwrap_err();
    assert!(
        error.is_about_arguments() && error.to_string().contains("wrong key"),
        "{error}"
    );
    assert!(!error.to_string().contains("sesame"));
}

#[actix_rt::test]
async fn redirects_to_plain_http_or_with_the_key_to_another_server_are_refused() {
    let bench = Bench::new();
    let elsewhere = TestServer::start(|_, _| Reply::new(200, "{}")).await;
    for target in [
        elsewhere.url("/gorev"),
        "http://yard.example.org/gorev".to_owned(),
    ] {
        let told = target.clone();
        let session = Session::of(
            &bench,
            1,
            Box::new(move |request| {
                let away = Reply::new(307, "").header("Location", &told);
                request.target.contains("gorev").then_some(away)
            }),
        );
        let server = serve(&session).await;
        let (result, _) = volunteer(&bench.config(&server.url("/c/a"))).await;
        let error = result.unwrap_err();
        assert!(error.is_about_arguments(), "{target}: {error}");
    }
    assert_eq!(elsewhere.requests().len(), 0);
}

#[actix_rt::test]
async fn a_task_that_is_out_of_range_is_refused_before_anything_is_fetched() {
    for (field, value) in [
        ("ic_adim", json!(0)),
        ("bs", json!(1_000_000_000)),
        ("lr", json!(0.0)),
        ("parca", json!(1)),
        ("toplam_tur", json!((1_u64 << 53) - 1)),
    ] {
        let bench = Bench::new();
        let session = Session::of(&bench, 1, Box::new(|_| None));
        let inner = session.clone();
        let server = TestServer::start(move |_, request| {
            let mut session = inner.lock().unwrap();
            if !request.target.contains("gorev") {
                return session.answer(request);
            }
            let mut task = json!({
                "tur": 0, "toplam_tur": 1, "parca": 0, "n_parca": 1, "ic_adim": 2, "bs": 2, "seq": 16, "lr": 0.01,
                "tohum": 0, "agirlik_sha256": sha256(&session.weights),
            });
            task[field] = value.clone();
            json_reply(task)
        })
        .await;
        let (result, _) = volunteer(&bench.config(&server.url("/c/a"))).await;
        let error = result.unwrap_err().to_string();
        assert!(error.contains(field), "{error} does not name {field}");
        let is_file = |request: &Request| request.target.contains("agirlik");
        assert!(!server.requests().iter().any(is_file), "{field}");
    }
}

#[actix_rt::test]
async fn a_shard_without_labels_is_not_trained_on_where_only_answers_are_learned() {
    let bench = Bench::new();
    let session = Session::of(&bench, 1, Box::new(|_| None));
    let inner = session.clone();
    let server = TestServer::start(move |_, request| {
        let mut session = inner.lock().unwrap();
        if !request.target.contains("gorev") {
            return session.answer(request);
        }
        json_reply(json!({
            "tur": 0, "toplam_tur": 1, "parca": 0, "n_parca": 1, "ic_adim": 2, "bs": 2, "seq": 16, "lr": 0.01,
            "tohum": 0, "agirlik_sha256": sha256(&session.weights), "veri_sha256": sha256(&session.shard), "mod": "sft",
        }))
    })
    .await;
    let (result, _) = volunteer(&bench.config(&server.url("/c/a"))).await;
    let error = result.unwrap_err().to_string();
    assert!(error.contains("etiket") && error.contains("sft"), "{error}");
}

#[actix_rt::test]
async fn where_there_is_no_session_that_is_said_and_nothing_else() {
    let bench = Bench::new();
    let nothing = |_, _: &Request| Reply::new(404, json!({"hata": "no session here"}).to_string());
    let server = TestServer::start(nothing).await;
    let (result, _) = volunteer(&bench.config(&server.url("/c/a"))).await;
    let error = result.unwrap_err();
    assert!(error.is_about_arguments(), "{error}");
    let error = error.to_string();
    assert!(
        error.contains("no session here") && !error.contains("--model"),
        "{error}"
    );
}
