use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use tempfile::TempDir;
use trainyard_shared::Secret;

use super::test_server::{Reply, Request, TestServer};
use super::*;

fn http() -> Http {
    Http::new(RetryPolicy {
        tries: 4,
        first_delay: Duration::from_millis(2),
        longest_delay: Duration::from_millis(10),
    })
    .unwrap()
}

fn content() -> Vec<u8> {
    (0..500_000_u32)
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

struct Target {
    folder: TempDir,
    sha256: String,
    size_bytes: u64,
}

impl Target {
    fn of(content: &[u8]) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            sha256: digest(content),
            size_bytes: content.len() as u64,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("data.jsonl")
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    async fn fetch(&self, url: String) -> Result<(), TransferError> {
        self.fetch_renewing(url, async || Ok(None)).await
    }

    async fn fetch_renewing(
        &self,
        url: String,
        renew: impl AsyncFn() -> Result<Option<Secret>, TransferError>,
    ) -> Result<(), TransferError> {
        let path = self.path();
        let file = Download {
            name: "datasets/1/data.jsonl",
            url: Secret::from(url),
            bearer: None,
            size_bytes: Some(self.size_bytes),
            sha256: Some(&self.sha256),
            digest_header: None,
            max_bytes: None,
            destination: &path,
        };
        http().download(&file, renew, |_| {}).await
    }
}

#[actix_rt::test]
async fn a_file_arrives_whole_and_leaves_no_part() {
    let server = TestServer::start(|_, request| Reply::ranged(request, &content())).await;
    let target = Target::of(&content());
    target.fetch(server.url("/data")).await.unwrap();
    assert_eq!(std::fs::read(target.path()).unwrap(), content());
    assert_eq!(target.files(), ["data.jsonl"]);
}

#[actix_rt::test]
async fn a_body_that_breaks_off_is_gone_on_with_by_range() {
    let server = TestServer::start(|number, request| {
        let reply = Reply::ranged(request, &content()).header("ETag", "\"one\"");
        if number < 3 {
            reply.cut_after(400_000)
        } else {
            reply
        }
    })
    .await;
    let target = Target::of(&content());
    target.fetch(server.url("/data")).await.unwrap();
    assert_eq!(std::fs::read(target.path()).unwrap(), content());
    let starts: Vec<_> = server.requests().iter().map(Request::range_start).collect();
    assert_eq!(
        starts,
        [None, Some(400_000), Some(800_000), Some(1_200_000)]
    );
    assert_eq!(server.requests()[1].headers["if-range"], "\"one\"");
}

#[actix_rt::test]
async fn a_server_that_takes_no_ranges_is_read_from_the_start_again() {
    let server = TestServer::start(|number, _| {
        let reply = Reply::new(200, content());
        if number == 0 {
            reply.cut_after(400_000)
        } else {
            reply
        }
    })
    .await;
    let target = Target::of(&content());
    target.fetch(server.url("/data")).await.unwrap();
    assert_eq!(std::fs::read(target.path()).unwrap(), content());
}

#[actix_rt::test]
async fn a_part_of_an_earlier_run_is_gone_on_with() {
    let server = TestServer::start(|_, request| Reply::ranged(request, &content())).await;
    let target = Target::of(&content());
    std::fs::write(
        target.folder.path().join("data.jsonl.part"),
        &content()[..700_000],
    )
    .unwrap();
    target.fetch(server.url("/data")).await.unwrap();
    assert_eq!(std::fs::read(target.path()).unwrap(), content());
    assert_eq!(server.requests()[0].range_start(), Some(700_000));
}

#[actix_rt::test]
async fn a_part_of_other_content_is_found_out_and_fetched_afresh() {
    let server = TestServer::start(|_, request| Reply::ranged(request, &content())).await;
    let target = Target::of(&content());
    std::fs::write(
        target.folder.path().join("data.jsonl.part"),
        vec![7; 700_000],
    )
    .unwrap();
    target.fetch(server.url("/data")).await.unwrap();
    assert_eq!(std::fs::read(target.path()).unwrap(), content());
    let starts: Vec<_> = server.requests().iter().map(Request::range_start).collect();
    assert_eq!(starts, [Some(700_000), None]);
}

#[actix_rt::test]
async fn g049_busy_answers_are_waited_out() {
    let server = TestServer::start(|number, request| match number {
        0 => Reply::new(503, "slow down").header("Retry-After", 1),
        1 => Reply::new(500, ""),
        2 => Reply::new(429, ""),
        _ => Reply::ranged(request, &content()),
    })
    .await;
    let target = Target::of(&content());
    target.fetch(server.url("/data")).await.unwrap();
    assert_eq!(server.requests().len(), 4);
}

#[actix_rt::test]
async fn faults_that_do_not_pass_end_after_the_allowed_tries() {
    let server = TestServer::start(|_, _| Reply::new(503, "")).await;
    let target = Target::of(&content());
    let error = target
        .fetch(server.url("/data?signature=s3cret"))
        .await
        .unwrap_err();
    assert!(error.may_pass());
    assert_eq!(server.requests().len(), 4);
    let text = error.to_string();
    assert!(
        text.contains("datasets/1/data.jsonl") && text.contains("503"),
        "{text}"
    );
    assert!(!text.contains("s3cret"), "{text}");
}

#[actix_rt::test]
async fn a_server_that_is_not_there_is_named_without_its_address() {
    let target = Target::of(&content());
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "http://{}/data?signature=s3cret",
        unused.local_addr().unwrap()
    );
    drop(unused);
    let text = target.fetch(url).await.unwrap_err().to_string();
    assert!(
        text.contains("onnection refused") && !text.contains("s3cret"),
        "{text}"
    );
}

#[actix_rt::test]
async fn g049_a_missing_file_is_not_asked_for_again() {
    let server = TestServer::start(|_, _| {
        Reply::new(
            404,
            r#"{"error":{"code":"not_found","message":"no such object"}}"#,
        )
    })
    .await;
    let target = Target::of(&content());
    let error = target.fetch(server.url("/data")).await.unwrap_err();
    assert_eq!(server.requests().len(), 1);
    assert!(error.to_string().contains("no such object"), "{error}");
    assert!(!error.may_pass());
}

#[actix_rt::test]
async fn g046_an_expired_address_is_renewed_and_the_download_goes_on() {
    let server = TestServer::start(|_, request| match request.target.as_str() {
        "/data?signature=new" => Reply::ranged(request, &content()),
        _ if request.range_start().is_none() => {
            Reply::ranged(request, &content()).cut_after(400_000)
        }
        _ => Reply::new(403, "Request has expired"),
    })
    .await;
    let target = Target::of(&content());
    let renewals = Cell::new(0);
    let renew = async || {
        renewals.set(renewals.get() + 1);
        Ok(Some(Secret::from(server.url("/data?signature=new"))))
    };
    target
        .fetch_renewing(server.url("/data?signature=old"), renew)
        .await
        .unwrap();
    assert_eq!(std::fs::read(target.path()).unwrap(), content());
    assert_eq!(renewals.get(), 1);
    assert_eq!(
        server.requests().last().unwrap().range_start(),
        Some(400_000)
    );
}

#[actix_rt::test]
async fn renewing_without_progress_ends() {
    let server = TestServer::start(|_, _| Reply::new(403, "no")).await;
    let target = Target::of(&content());
    let url = server.url("/data");
    let error = target
        .fetch_renewing(url.clone(), async || Ok(Some(Secret::from(url.as_str()))))
        .await
        .unwrap_err();
    assert!(
        matches!(error, TransferError::Refused { status, .. } if status == 403),
        "{error}"
    );
    assert_eq!(server.requests().len(), 3);
}

#[actix_rt::test]
async fn wrong_content_is_refused_after_one_fresh_start_and_leaves_nothing() {
    let mut other = content();
    other[1000] ^= 1;
    let server = TestServer::start(move |_, request| Reply::ranged(request, &other)).await;
    let target = Target::of(&content());
    let error = target.fetch(server.url("/data")).await.unwrap_err();
    assert!(error.to_string().contains("SHA-256"), "{error}");
    assert_eq!(server.requests().len(), 2);
    assert!(target.files().is_empty(), "{:?}", target.files());
}

#[actix_rt::test]
async fn more_bytes_than_announced_are_not_stored() {
    let server = TestServer::start(|_, _| Reply::new(200, [content(), content()].concat())).await;
    let target = Target::of(&content());
    let error = target.fetch(server.url("/data")).await.unwrap_err();
    assert!(error.to_string().contains("more came"), "{error}");
}

#[actix_rt::test]
async fn an_upload_is_tried_again_with_a_fresh_address() {
    let server = TestServer::start(|number, request| match number {
        0 => Reply::new(503, ""),
        1 => Reply::new(403, "expired"),
        _ if request.body == content() => Reply::new(200, ""),
        _ => Reply::new(400, "wrong body"),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter");
    std::fs::write(&path, content()).unwrap();
    let file = Upload {
        name: "models/job-1/final/adapter",
        path: &path,
        size_bytes: content().len() as u64,
    };
    let asked = Cell::new(0);
    let ask = async || {
        asked.set(asked.get() + 1);
        Ok(Ok(Grant {
            url: Secret::from(server.url(&format!("/put?n={}", asked.get()))),
            headers: [("x-checked".to_owned(), "yes".to_owned())].into(),
            expires_in: Some(3600),
        }))
    };
    http().upload(&file, ask).await.unwrap();
    let requests = server.requests();
    let targets: Vec<&str> = requests
        .iter()
        .map(|request| request.target.as_str())
        .collect();
    assert_eq!(targets, ["/put?n=1", "/put?n=2", "/put?n=3"]);
    assert_eq!(requests[2].method, "PUT");
    assert_eq!(requests[2].headers["x-checked"], "yes");
}

#[actix_rt::test]
async fn an_upload_that_is_refused_for_good_ends_at_once() {
    let server = TestServer::start(|_, _| Reply::new(413, "too large")).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter");
    std::fs::write(&path, b"weights").unwrap();
    let file = Upload {
        name: "models/job-1/final/adapter",
        path: &path,
        size_bytes: 7,
    };
    let ask = async || {
        Ok(Ok(Grant {
            url: Secret::from(server.url("/put")),
            headers: BTreeMap::new(),
            expires_in: None,
        }))
    };
    let error = http().upload(&file, ask).await.unwrap_err();
    assert!(error.to_string().contains("too large"), "{error}");
    assert_eq!(server.requests().len(), 1);
}

#[actix_rt::test]
async fn an_upload_whose_fresh_address_is_refused_twice_ends() {
    let server = TestServer::start(|_, _| Reply::new(403, "no")).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter");
    std::fs::write(&path, b"weights").unwrap();
    let file = Upload {
        name: "models/job-1/final/adapter",
        path: &path,
        size_bytes: 7,
    };
    let ask = async || {
        Ok(Ok(Grant {
            url: Secret::from(server.url("/put")),
            headers: BTreeMap::new(),
            expires_in: Some(3600),
        }))
    };
    let error = http().upload(&file, ask).await.unwrap_err();
    assert!(
        matches!(error, TransferError::Refused { status, .. } if status == 403),
        "{error}"
    );
    assert_eq!(server.requests().len(), 2);
}

#[actix_rt::test]
async fn g046_a_platform_that_is_away_when_an_address_expires_is_waited_for() {
    let server = TestServer::start(|_, request| match request.target.as_str() {
        "/data?signature=new" => Reply::ranged(request, &content()),
        _ => Reply::new(403, "Request has expired"),
    })
    .await;
    let target = Target::of(&content());
    let asked = Cell::new(0);
    let renew = async || {
        asked.set(asked.get() + 1);
        if asked.get() < 3 {
            return Err(TransferError::GivenUp {
                name: "x".to_owned(),
                tries: 1,
                last: "connection refused".to_owned(),
            });
        }
        Ok(Some(Secret::from(server.url("/data?signature=new"))))
    };
    target
        .fetch_renewing(server.url("/data?signature=old"), renew)
        .await
        .unwrap();
    assert_eq!(std::fs::read(target.path()).unwrap(), content());
}

#[actix_rt::test]
async fn g048_an_entity_tag_is_never_taken_for_a_digest() {
    for tag in [
        "\"d41d8cd98f00b204e9800998ecf8427e-3\"",
        "\"0\"",
        "W/\"x\"",
        "opaque",
    ] {
        let server = TestServer::start(move |number, request| {
            let reply = Reply::ranged(request, &content()).header("ETag", tag);
            if number == 0 {
                reply.cut_after(400_000)
            } else {
                reply
            }
        })
        .await;
        let target = Target::of(&content());
        target.fetch(server.url("/data")).await.unwrap();
        assert_eq!(std::fs::read(target.path()).unwrap(), content(), "{tag}");
    }
}

#[actix_rt::test]
async fn a_file_that_changes_while_it_is_fetched_is_never_mixed_of_both() {
    // The server has another version from the second request on, and heeds If-Range.
    let old = vec![b'o'; content().len()];
    let server = TestServer::start(move |number, request| {
        let (tag, body) = if number == 0 {
            ("\"old\"", old.clone())
        } else {
            ("\"new\"", content())
        };
        let heeds = request
            .headers
            .get("if-range")
            .is_none_or(|asked| asked == tag);
        let reply = if heeds {
            Reply::ranged(request, &body)
        } else {
            Reply::new(200, body)
        };
        let reply = reply.header("ETag", tag);
        if number == 0 {
            reply.cut_after(400_000)
        } else {
            reply
        }
    })
    .await;
    let path = tempfile::tempdir().unwrap();
    let destination = path.path().join("model.safetensors");
    let file = Download {
        name: "model.safetensors",
        url: Secret::from(server.url("/model")),
        bearer: None,
        size_bytes: None,
        sha256: None,
        digest_header: None,
        max_bytes: None,
        destination: &destination,
    };
    http()
        .download(&file, async || Ok(None), |_| {})
        .await
        .unwrap();
    assert_eq!(std::fs::read(&destination).unwrap(), content());
}

#[cfg(target_os = "linux")]
#[actix_rt::test]
async fn a_full_disk_is_told_as_such() {
    let error = TransferError::io(
        "write",
        std::path::Path::new("/state/data.jsonl.part"),
        std::io::Error::from_raw_os_error(28),
    );
    assert_eq!(
        error.to_string(),
        "the disk is full: /state/data.jsonl.part"
    );
}

#[actix_rt::test]
async fn what_is_announced_as_too_long_or_finds_no_room_is_not_begun() {
    let content = content();
    let target = Target::of(&content);
    // Nothing of the body ever comes.
    let announced = content.clone();
    let server =
        TestServer::start(move |_, _| Reply::new(200, announced.clone()).cut_after(0)).await;
    let path = target.path();
    let file = |max_bytes| Download {
        name: "shard",
        url: Secret::from(server.url("/data")),
        bearer: None,
        size_bytes: None,
        sha256: Some(&target.sha256),
        digest_header: None,
        max_bytes,
        destination: &path,
    };
    let fetch = async |http: Http, max_bytes| {
        let file = file(max_bytes);
        http.download(&file, async || Ok(None), |_| {}).await
    };
    let too_long = fetch(http(), Some(1000)).await;
    assert!(
        matches!(&too_long, Err(TransferError::WrongContent { message, .. }) if message.contains("1000")),
        "{too_long:?}"
    );
    let no_room = fetch(http().keeping_free(u64::MAX / 2), None).await;
    assert!(
        matches!(&no_room, Err(error @ TransferError::NoRoom { .. }) if error.is_about_room()),
        "{no_room:?}"
    );
    assert_eq!(server.requests().len(), 2);
    assert!(target.files().is_empty());
}
