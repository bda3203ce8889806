//! Data sets over a real socket: taken in, refused, shown, deleted.

use reqwest::{Method, header};
use serde_json::json;
use std::path::Path;
use tokio::io::AsyncWriteExt;
use trainyard_shared::dataset::DatasetFormat;

use crate::testing::{Platform, answer, eventually};

mod formats;

const CHAT: &str =
    r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;

/// Files below a folder, unfinished ones too.
fn stored_files(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    entries
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            if path.is_dir() {
                stored_files(&path)
            } else {
                1
            }
        })
        .sum()
}

async fn listed(session: &crate::testing::Session<'_>) -> usize {
    session.get("/api/datasets").await.1["items"]
        .as_array()
        .unwrap()
        .len()
}

#[actix_web::test]
async fn a_data_set_is_taken_in_with_its_figures_and_shown() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let file = format!("\u{feff}{CHAT}\r\n\n{{\"text\":\"t\"}}\n{{\"text\":\" \"}}");
    let (status, made) = admin
        .upload("name=my%20chats&format=jsonl", file.clone())
        .await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(
        (made["rows"].as_i64(), made["untrainable_rows"].as_i64()),
        (Some(3), Some(1))
    );
    assert_eq!(made["row_shapes"], json!({ "messages": 1, "text": 2 }));
    assert_eq!(
        (
            made["bytes"].as_u64(),
            made["problems"][0]["line"].as_u64(),
            made["problems"].as_array().map(Vec::len)
        ),
        (Some(file.len() as u64), Some(4), Some(1)),
        "the row with nothing to train on is named: {made}"
    );
    assert_eq!(
        made["sha256"],
        hex::encode(<sha2::Sha256 as sha2::Digest>::digest(file.as_bytes()))
    );
    assert_eq!(made["accepted"], true);

    let path = format!("/api/datasets/{}", made["id"]);
    assert_eq!(admin.get(&path).await.1, made);
    let (_, preview) = admin.get(&format!("{path}/preview?limit=2")).await;
    let lines: Vec<_> = preview["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["line"].as_i64())
        .collect();
    assert_eq!(lines, [Some(1), Some(3)]);
    assert_eq!(preview["items"][0]["shape"], "messages");
    assert_eq!(preview["items"][0]["row"]["messages"][1]["content"], "b");

    assert_eq!(admin.delete(&path).await.0, 204);
    assert_eq!(admin.get(&path).await.0, 404);
    assert_eq!(admin.delete(&path).await.0, 404);
    assert_eq!(stored_files(&platform.folder.path().join("storage")), 0);
}

/// G064: bad rows are named by line; beyond what is allowed nothing is stored.
#[actix_web::test]
async fn g064_bad_rows_are_reported_and_nothing_is_stored() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let mut file = b"{\"text\":\"1\"}\n{\"text\":\"2\"}\n{\"text\":\"".to_vec();
    file.extend_from_slice(b"\xc3\x28\"}\n{\"text\":\"4\"}\n{\"foo\":1}\n");
    let (status, refused) = admin.upload("name=x&max_bad_rows=1", file.clone()).await;
    assert_eq!(
        (status.as_u16(), refused["error"]["code"].as_str()),
        (422, Some("bad_rows"))
    );
    let report = &refused["error"]["details"];
    assert_eq!(
        (report["accepted"].as_bool(), report["bad_rows"].as_i64()),
        (Some(false), Some(2))
    );
    assert_eq!(
        (
            report["problems"][0]["line"].as_i64(),
            report["problems"][1]["line"].as_i64()
        ),
        (Some(3), Some(5))
    );
    assert_eq!(listed(&admin).await, 0);
    assert_eq!(stored_files(&platform.folder.path().join("storage")), 0);

    let (status, made) = admin.upload("name=x&max_bad_rows=2", file).await;
    assert_eq!(
        (
            status.as_u16(),
            made["rows"].as_i64(),
            made["bad_rows"].as_i64()
        ),
        (201, Some(3), Some(2))
    );
    assert_eq!(made["problems"][0]["line"], 3);
    let (status, empty) = admin.upload("name=x", "\n\n").await;
    assert_eq!(
        (status.as_u16(), empty["error"]["code"].as_str()),
        (422, Some("bad_rows"))
    );
}

#[actix_web::test]
async fn uploads_that_cannot_be_taken_are_refused_by_what_is_wrong() {
    let platform = Platform::start(&[("MAX_UPLOAD_BYTES", "1000")]).await;
    let admin = platform.admin().await;
    for (query, field) in [
        ("format=jsonl", "name"),
        ("name=", "name"),
        ("name=x&format=xlsx", "format"),
        ("name=x&name=y", "name"),
        ("name=x&max_bad_rows=-1", "query"),
        ("name=x&nmae=y", "nmae"),
    ] {
        let (status, refused) = admin.upload(query, CHAT).await;
        assert_eq!(
            (
                status.as_u16(),
                refused["error"]["details"][0]["field"].as_str()
            ),
            (400, Some(field)),
            "{query}"
        );
    }
    let form = admin
        .request(Method::POST, "/api/datasets?name=x")
        .header(header::CONTENT_TYPE, "multipart/form-data");
    assert_eq!(form.body(CHAT).send().await.unwrap().status(), 415);

    let (status, large) = admin.upload("name=x", format!("{CHAT}\n").repeat(20)).await;
    assert_eq!(
        (status.as_u16(), large["error"]["code"].as_str()),
        (413, Some("too_large"))
    );
    let lines = (0..5000).map(|_| Ok::<_, std::io::Error>(format!("{CHAT}\n")));
    let unannounced = reqwest::Body::wrap_stream(futures_util::stream::iter(lines));
    let (status, large) = admin.upload("name=x", unannounced).await;
    assert_eq!(
        (status.as_u16(), large["error"]["code"].as_str()),
        (413, Some("too_large"))
    );
    assert_eq!(listed(&admin).await, 0);
    assert_eq!(stored_files(&platform.folder.path().join("storage")), 0);
}

#[actix_web::test]
async fn members_have_their_own_data_sets_and_viewers_see_all_and_change_nothing() {
    let platform = Platform::start(&[]).await;
    let one = platform.user("one@example.org", "member").await;
    let two = platform.user("two@example.org", "member").await;
    let viewer = platform.user("viewer@example.org", "viewer").await;
    let (_, made) = one.upload("name=mine", CHAT).await;
    let path = format!("/api/datasets/{}", made["id"]);
    for request in [
        two.get(&path).await,
        two.delete(&path).await,
        two.get(&format!("{path}/preview")).await,
    ] {
        assert_eq!(request.0, 404);
    }
    assert_eq!(
        (
            listed(&one).await,
            listed(&two).await,
            listed(&viewer).await
        ),
        (1, 0, 1)
    );
    assert_eq!(viewer.get(&path).await.0, 200);
    assert_eq!(viewer.delete(&path).await.0, 403);
    assert_eq!(viewer.upload("name=x", CHAT).await.0, 403);
    assert_eq!(platform.admin().await.delete(&path).await.0, 204);
}

#[actix_web::test]
async fn a_storage_quota_counts_what_is_kept() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let user = platform.user("user@example.org", "member").await;
    let quota = json!({ "max_storage_bytes": CHAT.len() * 2 });
    admin.send(Method::PATCH, "/api/users/2", Some(quota)).await;
    let (_, first) = user.upload("name=1", CHAT).await;
    assert_eq!(user.upload("name=2", CHAT).await.0, 201);
    let (status, refused) = user.upload("name=3", CHAT).await;
    assert_eq!(
        (status.as_u16(), refused["error"]["code"].as_str()),
        (403, Some("quota_exceeded"))
    );
    user.delete(&format!("/api/datasets/{}", first["id"])).await;
    assert_eq!(user.upload("name=3", CHAT).await.0, 201);
}

/// G043: an upload that breaks off leaves neither a row nor a file.
#[actix_web::test]
async fn g043_an_upload_that_breaks_off_leaves_nothing() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let storage = platform.folder.path().join("storage");
    let mut stream = tokio::net::TcpStream::connect(platform.server.address)
        .await
        .unwrap();
    let head = format!(
        "POST /api/datasets?name=x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: 100000\r\n\r\n",
        admin.token
    );
    stream
        .write_all(format!("{head}{CHAT}\n").as_bytes())
        .await
        .unwrap();
    eventually("the beginning of the upload", async || {
        stored_files(&storage) == 1
    })
    .await;
    assert_eq!(listed(&admin).await, 0);
    drop(stream);
    eventually("its end", async || stored_files(&storage) == 0).await;
    assert_eq!(listed(&admin).await, 0);
}

/// G043: what a crash left in the middle of an upload or a deletion is cleared away at the next start.
#[actix_web::test]
async fn g043_uploads_and_deletions_that_a_crash_interrupted_are_cleared_away() {
    use super::store;
    use crate::database::{DatabaseError, now};
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let (_, kept) = admin.upload("name=kept", CHAT).await;
    let (_, half_deleted) = admin.upload("name=half-deleted", CHAT).await;
    let id = half_deleted["id"].as_i64().unwrap();
    let half_made = platform
        .server
        .state
        .database
        .write::<_, DatabaseError, _>(move |c| {
            store::mark_deleting(c, id)?;
            store::insert_uploading(c, 1, "half-made", DatasetFormat::Jsonl, now())
        })
        .await
        .unwrap();
    let file = platform
        .folder
        .path()
        .join(format!("storage/datasets/{half_made}/data.jsonl"));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, CHAT).unwrap();

    let platform = Platform::start_in(platform.stop().await, &[]).await;
    let admin = platform.admin().await;
    let (_, list) = admin.get("/api/datasets").await;
    assert_eq!(list["items"], json!([kept]));
    assert_eq!(stored_files(&platform.folder.path().join("storage")), 1);
}

/// G065: a long line passes through in pieces.
#[actix_web::test]
async fn g065_a_line_of_ten_megabytes_is_taken() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let long = json!({ "text": "x".repeat(10 << 20) });
    let (status, made) = admin
        .upload("name=long", format!("{CHAT}\n{long}\n{CHAT}\n"))
        .await;
    assert_eq!((status.as_u16(), made["rows"].as_i64()), (201, Some(3)));
    let (_, preview) = admin
        .get(&format!("/api/datasets/{}/preview", made["id"]))
        .await;
    assert_eq!(
        preview["items"].as_array().unwrap().len(),
        1,
        "what lies beyond the first MiB is not shown"
    );
}

#[actix_web::test]
async fn many_uploads_at_once_are_all_kept() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let uploads = (0..20).map(|nth| {
        let admin = &admin;
        async move {
            admin
                .upload(&format!("name={nth}"), format!("{CHAT}\n").repeat(500))
                .await
        }
    });
    let outcomes = futures_util::future::join_all(uploads).await;
    assert!(
        outcomes.iter().all(|(status, _)| *status == 201),
        "{outcomes:?}"
    );
    assert_eq!(listed(&admin).await, 20);
    let (status, _) = answer(
        platform
            .request(Method::GET, "/readyz")
            .send()
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(status, 200);
}
