use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::TempDir;
use trainyard_shared::Secret;
use url::Url;

use super::*;
use crate::tasks::transfers::RetryPolicy;
use crate::tasks::transfers::test_server::{Reply, TestServer};

/// A file of weights without any.
const WEIGHTS: &[u8] = b"\x02\0\0\0\0\0\0\0{}";

struct Machine {
    folder: TempDir,
    settings: ModelSettings,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = ModelSettings::new(folder.path().join("models"));
        settings.hub_cache = Some(folder.path().join("cache"));
        settings.hub_offline = true;
        Self { folder, settings }
    }

    fn with_hub(server: &TestServer) -> Self {
        let mut machine = Self::new();
        machine.settings.hub_offline = false;
        machine.settings.hub_endpoint = Url::parse(&server.url("/mirror")).unwrap();
        machine
    }

    fn put(&self, path: &str) -> PathBuf {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, b"{}").unwrap();
        path
    }

    fn put_model(&self, folder: &str) -> PathBuf {
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            self.put(&format!("{folder}/{file}"));
        }
        self.folder.path().join(folder)
    }

    async fn find(&self, model: &BaseModel) -> Result<PathBuf, String> {
        let http = Http::new(RetryPolicy {
            tries: 2,
            first_delay: Duration::from_millis(1),
            longest_delay: Duration::from_millis(1),
        })
        .unwrap();
        ModelSource::new(self.settings.clone(), http)
            .find(model, |_| {})
            .await
            .map_err(|error| error.to_string())
    }
}

fn model(id: &str) -> BaseModel {
    BaseModel {
        huggingface_id: id.to_owned(),
        download_urls: Vec::new(),
    }
}

#[actix_rt::test]
async fn a_folder_in_the_models_directory_comes_first() {
    let machine = Machine::new();
    let folder = machine.put_model("models/org/name");
    machine.put("models/org/name.gguf");
    assert_eq!(machine.find(&model("org/name")).await.unwrap(), folder);
}

#[actix_rt::test]
async fn a_gguf_file_is_found_beside_and_inside_the_models_folder() {
    let machine = Machine::new();
    let beside = machine.put("models/org/one.gguf");
    let inside = machine.put("models/org/two/anything-Q8_0.gguf");
    assert_eq!(machine.find(&model("org/one")).await.unwrap(), beside);
    assert_eq!(machine.find(&model("org/two")).await.unwrap(), inside);
    machine.put("models/org/two/another.gguf");
    let error = machine.find(&model("org/two")).await.unwrap_err();
    assert!(error.contains("2 .gguf files"), "{error}");
}

#[actix_rt::test]
async fn the_hubs_cache_is_read_at_the_revision_that_main_names() {
    let machine = Machine::new();
    machine.put_model("cache/models--org--name/snapshots/aaa");
    let main = machine.put_model("cache/models--org--name/snapshots/bbb");
    std::fs::create_dir_all(machine.folder.path().join("cache/models--org--name/refs")).unwrap();
    std::fs::write(
        machine
            .folder
            .path()
            .join("cache/models--org--name/refs/main"),
        "bbb\n",
    )
    .unwrap();
    assert_eq!(machine.find(&model("org/name")).await.unwrap(), main);
}

#[actix_rt::test]
async fn a_missing_model_is_told_with_every_place_that_was_tried() {
    let machine = Machine::new();
    machine.put("models/org/name/config.json");
    let error = machine.find(&model("org/name")).await.unwrap_err();
    for part in [
        "org/name is not to be had",
        "tokenizer.json is missing",
        "name.gguf: not there",
        "HF_HUB_OFFLINE",
    ] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[actix_rt::test]
async fn g044_a_name_never_leaves_the_models_directory() {
    let machine = Machine::new();
    machine.put_model("outside");
    for id in [
        "../outside",
        "a/../../outside",
        "/etc",
        "a/b/c",
        "a\\b",
        "",
        ".",
        "..",
        ".git/x",
        "a/ b",
    ] {
        let error = machine.find(&model(id)).await.unwrap_err();
        assert!(
            error.contains("not one that a model can have"),
            "{id}: {error}"
        );
    }
}

fn hub(number: usize, target: &str) -> Reply {
    let digest = hex::encode(Sha256::digest(WEIGHTS));
    match target {
        "/mirror/api/models/org/name/revision/main"
        | "/mirror/api/models/org/name/revision/abc" => Reply::new(200, r#"{"sha":"abc"}"#),
        "/mirror/api/models/org/name/tree/abc" => Reply::new(
            200,
            format!(
                r#"[{{"type":"file","path":"config.json","size":2,"oid":"x"}},
                    {{"type":"directory","path":"onnx","size":0,"oid":"x"}},
                    {{"type":"file","path":"tokenizer.json","size":2,"oid":"x"}},
                    {{"type":"file","path":"model.safetensors","size":99,"oid":"x",
                      "lfs":{{"oid":"{digest}","size":{},"pointerSize":1}}}}]"#,
                WEIGHTS.len()
            ),
        ),
        "/mirror/org/name/resolve/abc/model.safetensors" if number == 2 => Reply::new(503, ""),
        "/mirror/org/name/resolve/abc/model.safetensors" => Reply::new(200, WEIGHTS),
        "/mirror/org/name/resolve/abc/config.json"
        | "/mirror/org/name/resolve/abc/tokenizer.json" => Reply::new(200, "{}"),
        _ => Reply::new(404, r#"{"error":"Repository not found"}"#),
    }
}

#[actix_rt::test]
async fn a_model_is_fetched_from_the_hub_once_and_checked() {
    let server = TestServer::start(|number, request| hub(number, &request.target)).await;
    let mut machine = Machine::with_hub(&server);
    machine.settings.hub_token = Some(Secret::from("hf_secret"));
    let folder = machine.find(&model("org/name")).await.unwrap();
    assert_eq!(folder, machine.settings.models_dir.join("org/name"));
    assert_eq!(
        std::fs::read(folder.join("model.safetensors")).unwrap(),
        WEIGHTS
    );
    let requests = server.requests();
    assert!(
        requests
            .iter()
            .all(|request| request.headers["authorization"] == "Bearer hf_secret")
    );
    assert_eq!(
        requests.last().unwrap().target,
        "/mirror/org/name/resolve/abc/config.json"
    );
    let count = requests.len();
    machine.find(&model("org/name")).await.unwrap();
    assert_eq!(
        server.requests().len(),
        count,
        "the second time it is on this machine"
    );
    assert_eq!(installed(&machine.settings.models_dir), ["org/name"]);
}

#[actix_rt::test]
async fn g054_what_was_fetched_and_is_damaged_since_is_fetched_again_and_what_was_put_there_is_left_alone()
 {
    let server = TestServer::start(|_, request| hub(usize::MAX, &request.target)).await;
    let machine = Machine::with_hub(&server);
    let folder = machine.find(&model("org/name")).await.unwrap();
    let resolved = || {
        let requests = server.requests().into_iter().map(|request| request.target);
        requests
            .filter(|target| target.contains("resolve"))
            .collect::<Vec<_>>()
    };
    let mut flipped = WEIGHTS.to_vec();
    flipped[0] ^= 0x40;
    let damages = [
        ("model.safetensors", &WEIGHTS[..0]),
        ("model.safetensors", &WEIGHTS[..9]),
        ("model.safetensors", &flipped[..]),
        ("tokenizer.json", &b"{"[..]),
    ];
    for (name, damaged) in damages {
        let before = resolved().len();
        let whole = std::fs::read(folder.join(name)).unwrap();
        std::fs::write(folder.join(name), damaged).unwrap();
        machine.find(&model("org/name")).await.unwrap();
        assert_eq!(std::fs::read(folder.join(name)).unwrap(), whole, "{name}");
        let fetched =
            [name, "config.json"].map(|name| format!("/mirror/org/name/resolve/abc/{name}"));
        assert_eq!(resolved()[before..], fetched);
    }
    let own = machine.settings.models_dir.join("own/model");
    std::fs::create_dir_all(&own).unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        std::fs::write(own.join(name), "cut").unwrap();
    }
    machine.find(&model("own/model")).await.unwrap();
    assert_eq!(
        std::fs::read(own.join("model.safetensors")).unwrap(),
        b"cut"
    );
}

/// A hub whose main is at `newest`, whose config and tokenizer say of which commit they are, all of one length. The
/// tokenizer of `abc` comes from the second time on; `abc` itself there is or not.
fn moving_hub(newest: &'static str, has_old: bool, has_tokenizer: bool, target: &str) -> Reply {
    let target = target.strip_prefix("/mirror/").unwrap();
    let of_commit = |commit: &str, target: &str| {
        let name = target.rsplit('/').next().unwrap();
        match name {
            "model.safetensors" => Reply::new(200, WEIGHTS),
            "tokenizer.json" if !has_tokenizer => Reply::new(404, ""),
            _ => Reply::new(200, format!(r#"{{"of":"{commit}"}}"#)),
        }
    };
    for commit in ["abc", "def"] {
        let names = match newest == commit {
            true => vec!["main", commit],
            false => vec![commit],
        };
        if commit == "abc" && !has_old {
            continue;
        }
        if names
            .iter()
            .any(|name| target == format!("api/models/org/name/revision/{name}"))
        {
            return Reply::new(200, format!(r#"{{"sha":"{commit}"}}"#));
        }
        if target == format!("api/models/org/name/tree/{commit}") {
            let files = [
                ("config.json", 12),
                ("tokenizer.json", 12),
                ("model.safetensors", WEIGHTS.len()),
            ]
            .map(|(path, size)| serde_json::json!({"path": path, "size": size}));
            return Reply::new(200, serde_json::to_vec(&files).unwrap());
        }
        if target.starts_with(&format!("org/name/resolve/{commit}/")) {
            return of_commit(commit, target);
        }
    }
    Reply::new(404, r#"{"error":"Revision not found"}"#)
}

#[actix_rt::test]
async fn g054_what_is_fetched_again_is_of_the_commit_that_the_rest_is_of() {
    for (old_stays, expected) in [(true, "abc"), (false, "def")] {
        let moved = Arc::new(AtomicBool::new(false));
        let has_moved = Arc::clone(&moved);
        let server = TestServer::start(move |_, request| match has_moved.load(Ordering::Relaxed) {
            false => moving_hub("abc", true, false, &request.target),
            true => moving_hub("def", old_stays, true, &request.target),
        })
        .await;
        let machine = Machine::with_hub(&server);
        // Weights come, the tokenizer does not, and then main moves on.
        machine.find(&model("org/name")).await.unwrap_err();
        moved.store(true, Ordering::Relaxed);
        let folder = machine.find(&model("org/name")).await.unwrap();
        let weights = |commit: &str| {
            let target = format!("/mirror/org/name/resolve/{commit}/model.safetensors");
            let requests = server.requests();
            requests
                .iter()
                .filter(|request| request.target == target)
                .count()
        };
        assert_eq!(weights("abc"), 1);
        assert_eq!(
            weights("def"),
            usize::from(!old_stays),
            "no weights of another commit stay"
        );
        // One file is damaged later.
        std::fs::write(folder.join("tokenizer.json"), "{").unwrap();
        machine.find(&model("org/name")).await.unwrap();
        for name in ["config.json", "tokenizer.json"] {
            let text = std::fs::read_to_string(folder.join(name)).unwrap();
            assert_eq!(text, format!(r#"{{"of":"{expected}"}}"#), "{name}");
        }
    }
}

#[actix_rt::test]
async fn what_an_owner_adds_to_a_fetched_folder_is_the_owners() {
    let server = TestServer::start(|_, request| hub(usize::MAX, &request.target)).await;
    let machine = Machine::with_hub(&server);
    let folder = machine.find(&model("org/name")).await.unwrap();
    let own = folder.join("notes.json");
    std::fs::write(&own, "{").unwrap();
    let asked = server.requests().len();
    machine.find(&model("org/name")).await.unwrap();
    assert_eq!(std::fs::read(own).unwrap(), b"{");
    assert_eq!(server.requests().len(), asked, "nothing is fetched for it");
}

#[actix_rt::test]
async fn an_interrupted_fetch_goes_on_with_what_is_missing() {
    let server = TestServer::start(|number, request| match request.target.as_str() {
        "/mirror/org/name/resolve/abc/config.json" if number < 6 => Reply::new(404, ""),
        target => hub(usize::MAX - number, target),
    })
    .await;
    let machine = Machine::with_hub(&server);
    machine.find(&model("org/name")).await.unwrap_err();
    let first = server.requests().len();
    machine.find(&model("org/name")).await.unwrap();
    let again: Vec<String> = server.requests()[first..]
        .iter()
        .map(|request| request.target.clone())
        .filter(|target| target.contains("resolve"))
        .collect();
    assert_eq!(again, ["/mirror/org/name/resolve/abc/config.json"]);
}

#[actix_rt::test]
async fn a_gated_model_is_explained() {
    let server =
        TestServer::start(|_, _| Reply::new(401, r#"{"error":"Access restricted"}"#)).await;
    let machine = Machine::with_hub(&server);
    let error = machine.find(&model("org/gated")).await.unwrap_err();
    assert!(
        error.contains("Access restricted") && error.contains("HF_TOKEN"),
        "{error}"
    );
}

#[actix_rt::test]
async fn files_that_the_platform_offers_are_taken_before_the_hub_is_asked() {
    let server = TestServer::start(|_, _| Reply::new(200, "{}")).await;
    let machine = Machine::new();
    let mut wanted = model("org/name");
    for key in ["config.json", "model.safetensors", "tokenizer.json"] {
        wanted.download_urls.push(DownloadUrl {
            key: format!("models/base/{key}"),
            url: Secret::from(server.url(&format!("/{key}"))),
            sha256: None,
            size_bytes: None,
        });
    }
    machine.find(&wanted).await.unwrap();
    assert_eq!(server.requests().last().unwrap().target, "/config.json");
}

#[actix_rt::test]
async fn g054_offered_files_that_are_not_as_long_as_the_platform_says_make_no_model() {
    let server = TestServer::start(|_, request| match request.target.as_str() {
        "/model.safetensors" => Reply::new(200, WEIGHTS),
        _ => Reply::new(200, "{}"),
    })
    .await;
    let machine = Machine::new();
    let offer = |weights_bytes: usize| {
        let mut wanted = model("org/name");
        for (key, size) in [
            ("config.json", 2),
            ("model.safetensors", weights_bytes),
            ("tokenizer.json", 2),
        ] {
            wanted.download_urls.push(DownloadUrl {
                key: format!("models/base/{key}"),
                url: Secret::from(server.url(&format!("/{key}"))),
                sha256: None,
                size_bytes: Some(size as u64),
            });
        }
        wanted
    };
    let error = machine.find(&offer(WEIGHTS.len() + 1)).await.unwrap_err();
    assert!(error.contains("model.safetensors"), "{error}");
    let folder = machine.settings.models_dir.join("org/name");
    for name in ["model.safetensors", "config.json"] {
        assert!(!folder.join(name).exists(), "{name}");
    }
    machine.find(&offer(WEIGHTS.len())).await.unwrap();
    assert_eq!(
        std::fs::read(folder.join("model.safetensors")).unwrap(),
        WEIGHTS
    );
}

#[actix_rt::test]
async fn others_are_told_of_settings_and_not_of_paths_on_this_machine() {
    let machine = Machine::new();
    let http = Http::new(RetryPolicy::default()).unwrap();
    let source = ModelSource::new(machine.settings.clone(), http);
    let error = source.find_description("org/name").await.unwrap_err();
    let folder = machine.folder.path().display().to_string();
    assert!(error.to_string().contains(&folder), "{error}");
    let told = error.for_others();
    assert!(!told.contains(&folder), "{told}");
    assert!(told.contains("MODELS_DIR/org/name: not there"), "{told}");
    assert!(told.contains("the hub's cache: "), "{told}");
}
