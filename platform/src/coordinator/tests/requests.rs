//! Requests: who may ask for what, and how everything else is refused.

use super::uploads::{is_refused, raw};
use super::*;

#[actix_web::test]
async fn g100_one_worker_by_any_spelling_of_its_name() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    open(&admin, "masal", json!({})).await;
    let session = Coordinator::at(&platform, "/c/masal");
    session.task("other").await;
    let task = session.task("ali%2Dveli").await;
    assert_eq!(session.task("ali-veli").await, task);
    assert_eq!(task["parca"], 1);
    let longest = "a".repeat(60);
    session.task(&longest).await;
    for name in [
        "ali%20veli",
        "ali+veli",
        "%C3%A7em",
        "",
        &format!("{longest}a"),
        "..%2Fx",
    ] {
        let (status, refusal) = session.get(&format!("/gorev?isci={name}")).await;
        assert_eq!(status, 400, "{name}");
        assert!(
            refusal["hata"].as_str().unwrap().contains("isci"),
            "{refusal}"
        );
    }
}

#[actix_web::test]
async fn g101_shards_have_the_digest_of_the_task_and_others_do_not_exist() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    open(&admin, "bare", json!({})).await;
    let bare = Coordinator::at(&platform, "/c/bare");
    assert_eq!(bare.get("/veri?parca=0").await.0, 404);
    assert!(bare.task("ali").await.get("veri_sha256").is_none());

    let rows: String = (0..40)
        .map(|n| format!("{{\"text\":\"row number {n}\"}}\n"))
        .collect();
    let data = admin.upload("name=d", rows).await.1["id"].clone();
    for (name, mode) in [("cpt", "cpt"), ("sft", "sft")] {
        let data = match mode {
            "cpt" => data.clone(),
            _ => {
                let row = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
                admin
                    .upload("name=chat", format!("{row}\n{row}\n{row}\n{row}"))
                    .await
                    .1["id"]
                    .clone()
            }
        };
        open(
            &admin,
            name,
            json!({"dataset_id": data, "n_parca": 4, "mod": mode}),
        )
        .await;
        let session = Coordinator::at(&platform, &format!("/c/{name}"));
        let info = session.get("/bilgi").await.1;
        assert_eq!(
            info["veri"],
            json!({"bicim": "safetensors-ids-v1", "parca": 4})
        );
        let task = session.task("ali").await;
        assert_eq!(task["mod"], mode);
        let (status, headers, body) = session.file("/veri?parca=0").await;
        assert_eq!(status, 200);
        assert_eq!(headers["x-sha256"], sha256(&body));
        assert_eq!(task["veri_sha256"], sha256(&body));
        let header: Value = serde_json::from_slice(&body[8..values_at(&body)]).unwrap();
        assert_eq!(header["ids"]["dtype"], "I32");
        assert_eq!(header["ids"]["shape"][0], task["veri_belirtec"]);
        assert_eq!(header.get("etiket").is_some(), mode == "sft");
        for parca in ["4", "99999999999999999999", "-1", "x", "", "0&parca=0"] {
            let (status, refusal) = session.get(&format!("/veri?parca={parca}")).await;
            assert_eq!(status, 400, "{parca}: {refusal}");
            assert!(refusal["hata"].is_string());
        }
        assert_eq!(session.get("/veri").await.0, 400);
    }
}

#[actix_web::test]
async fn g102_the_key_is_asked_for_everywhere_but_at_bilgi() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    open(&admin, "locked", json!({"anahtar": "sesame"})).await;
    open(&admin, "free", json!({})).await;
    let mut session = Coordinator::at(&platform, "/c/locked");
    assert_eq!(session.get("/bilgi").await.1["kilitli"], true);
    for key in [None, Some("Sesame"), Some("sesame2"), Some("")] {
        session.key = key.map(str::to_owned);
        for path in ["/gorev?isci=ali", "/agirlik", "/veri?parca=0"] {
            let (status, refusal) = session.get(path).await;
            assert_eq!(status, 401, "{path}");
            assert!(refusal["hata"].is_string(), "{refusal}");
        }
        let (status, refusal) = session.send("ali", 0, vec![0; 100]).await;
        assert_eq!(status, 401, "{refusal}");
    }
    // The key comes before everything else: nothing of a body is waited for, and nothing else is said of the request.
    let scratch = platform.folder.path().join("scratch");
    for (query, length) in [
        ("isci=ali&tur=0", 1 << 10),
        ("isci=ali&tur=0", 10_u64 << 30),
        ("isci=&tur=x", 10),
    ] {
        let head = format!(
            "POST /c/locked/sonuc?{query} HTTP/1.1\r\nHost: x\r\nX-Anahtar: no\r\nContent-Length: {length}\r\n\r\n"
        );
        let answer = raw(&platform, head, std::iter::empty()).await;
        assert!(is_refused(&answer, 401), "{query}, {length}: {answer}");
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0);
    }
    session.key = Some("sesame".to_owned());
    let twice = session.request(Method::GET, "/gorev?isci=ali");
    let twice = twice.header("X-Anahtar", "sesame").send().await.unwrap();
    assert_eq!(twice.status(), 401);
    assert_eq!(session.task("ali").await["tur"], 0);
    assert_eq!(session.trains("ali", 0.5).await.0, 200);
    let mut free = Coordinator::at(&platform, "/c/free");
    free.key = Some("whatever".to_owned());
    assert_eq!(free.task("ali").await["tur"], 0);
    // The key itself is nowhere.
    let shown = admin.get("/api/coordinators").await.1.to_string();
    assert!(!shown.contains("sesame"), "{shown}");
}

#[actix_web::test]
async fn weights_are_served_in_ranges_and_their_head_alone() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    open(&admin, "masal", json!({})).await;
    let session = Coordinator::at(&platform, "/c/masal");
    let (_, body) = session.weights().await;
    let range = session
        .request(Method::GET, "/agirlik")
        .header("Range", "bytes=10-19");
    let response = range.send().await.unwrap();
    assert_eq!(response.status(), 206);
    assert_eq!(response.headers()["x-sha256"], sha256(&body));
    assert_eq!(response.bytes().await.unwrap(), &body[10..20]);
    let beyond = session
        .request(Method::GET, "/agirlik")
        .header("Range", "bytes=99999999-");
    let (status, refusal) = answer(beyond.send().await.unwrap()).await;
    assert_eq!(status, 416);
    assert!(refusal["hata"].is_string());
    let head = session
        .request(Method::HEAD, "/agirlik")
        .send()
        .await
        .unwrap();
    assert_eq!(head.status(), 200);
    assert_eq!(head.headers()["x-tur"], "0");
    assert_eq!(head.headers()["content-length"], body.len().to_string());
    assert!(head.bytes().await.unwrap().is_empty());
}

#[actix_web::test]
async fn everything_else_is_refused_in_the_protocol_s_form() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let root = Coordinator::at(&platform, "");
    assert_eq!(root.get("/bilgi").await.0, 404);
    open(&admin, "one", json!({})).await;
    for (method, path, expected) in [
        (Method::GET, "/c/none/gorev?isci=a", 404),
        (Method::GET, "/c/one/nothing", 404),
        (Method::GET, "/c/one", 404),
        (Method::GET, "/c/", 404),
        (Method::POST, "/c/one/gorev?isci=a", 405),
        (Method::GET, "/c/one/sonuc?isci=a&tur=0", 405),
        (Method::DELETE, "/sonuc", 405),
        (Method::GET, "/sonuc", 405),
        (Method::GET, "/gorev", 400),
        (Method::GET, "/veri?parca=0", 404),
    ] {
        let (status, refusal) =
            answer(root.request(method.clone(), path).send().await.unwrap()).await;
        assert_eq!(status, expected, "{method} {path}: {refusal}");
        assert!(refusal["hata"].is_string(), "{method} {path}: {refusal}");
    }
    let long = root
        .request(Method::GET, "/gorev")
        .header("x-long", "a".repeat(70_000));
    if let Ok(response) = long.send().await {
        let (status, refusal) = answer(response).await;
        assert_eq!(status, 431, "{refusal}");
    }
}

#[actix_web::test]
async fn the_root_is_the_only_open_session_or_the_default_one() {
    let (platform, _models) = platform(&[]).await;
    let admin = platform.admin().await;
    let root = Coordinator::at(&platform, "");
    let one = open(&admin, "one", json!({})).await;
    assert_eq!(root.get("/bilgi").await.1["ad"], "one");
    open(&admin, "two", json!({})).await;
    assert_eq!(root.get("/bilgi").await.0, 404);
    admin
        .post(&format!("/api/coordinators/{one}/stop"), json!({}))
        .await;
    assert_eq!(root.get("/bilgi").await.1["ad"], "two");
    open(&admin, "three", json!({"default": true})).await;
    assert_eq!(root.get("/bilgi").await.1["ad"], "three");
    assert_eq!(root.task("ali").await["tur"], 0);
}
