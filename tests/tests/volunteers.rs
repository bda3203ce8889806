//! Volunteer sessions across processes: kills of the platform, and senders who mean harm.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use reqwest::{Client as Http, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::{Client, Platform, Seeded, TinyModel, eventually};

/// Kills of the platform in the midst of rounds.
const KILLS: u64 = 12;
/// A flood that is not cut off for so long would be read on for ever.
const NO_END: Duration = Duration::from_secs(60);

/// A volunteer's view of one session.
struct Volunteer {
    http: Http,
    base: String,
}

impl Volunteer {
    fn of(platform: &Platform, name: &str) -> Self {
        // Twice is once: every test may be the first to need TLS's provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = Http::builder()
            .no_proxy()
            .timeout(Duration::from_secs(30))
            .build();
        Self {
            http: http.expect("the client starts"),
            base: format!("{}/c/{name}", platform.url()),
        }
    }

    async fn json(&self, path: &str) -> Option<Value> {
        let answer = self.http.get(format!("{}{path}", self.base)).send().await;
        answer.ok()?.json().await.ok()
    }

    /// Round and bytes of the global adapter, whose digest is the one that is said.
    async fn weights(&self) -> Option<(u64, Vec<u8>)> {
        let answer = self.http.get(format!("{}/agirlik", self.base)).send().await;
        let answer = answer.ok()?.error_for_status().ok()?;
        let header = |name: &str| answer.headers().get(name)?.to_str().ok().map(str::to_owned);
        let round = header("x-tur")?.parse().ok()?;
        let digest = header("x-sha256")?;
        let body = answer.bytes().await.ok()?.to_vec();
        assert_eq!(digest, sha256(&body));
        Some((round, body))
    }

    async fn send(&self, worker: &str, round: u64, body: Vec<u8>) -> Option<StatusCode> {
        let url = format!("{}/sonuc?isci={worker}&tur={round}", self.base);
        let answer = self.http.post(url).body(body).send().await.ok()?;
        Some(answer.status())
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// A file of f32 tensors with so much added to each value.
fn shifted(file: &[u8], delta: f32) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes"));
    let start = 8 + usize::try_from(length).expect("a header fits");
    let mut out = file[..start].to_vec();
    for value in file[start..].chunks_exact(4) {
        let value = f32::from_le_bytes(value.try_into().expect("four bytes"));
        out.extend_from_slice(&(value + delta).to_le_bytes());
    }
    out
}

async fn platform_with_model() -> (Platform, TinyModel) {
    let model = TinyModel::create();
    let models = model.models_dir().display().to_string();
    let settings = [
        ("MODELS_DIR", models.as_str()),
        ("HF_HUB_OFFLINE", "true"),
        ("RESULT_UPLOAD_GRACE", "1"),
    ];
    let platform = Platform::start_with(&settings).await;
    (platform, model)
}

async fn open(admin: &Client, name: &str, more: Value) -> i64 {
    let mut body = json!({"name": name, "base_model": TINY_MODEL_ID, "tur_zaman_asimi": 0});
    let fields = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(fields);
    let made = admin.post("/api/coordinators", body).await.ok();
    let id = made["id"].as_i64().expect("a session has a number");
    eventually("an open session", async || {
        let shown = admin.get(&format!("/api/coordinators/{id}")).await.ok();
        assert_ne!(shown["status"], "failed", "{shown}");
        (shown["status"] == "open").then_some(())
    })
    .await;
    id
}

/// The platform is killed again and again while two volunteers train: rounds go on where they were, what was
/// answered counts, and published weights never change.
/// Promise P13.
#[tokio::test]
async fn g097_rounds_go_on_after_every_kill_and_published_bytes_never_change() {
    let (mut platform, _model) = platform_with_model().await;
    let admin = platform.admin().await;
    let rounds = KILLS + 2;
    let id = open(&admin, "masal", json!({"toplam_tur": rounds, "en_az": 2})).await;
    let volunteer = Volunteer::of(&platform, "masal");
    let mut random = Seeded::from_environment("KILL_SEED");
    let mut published: Vec<String> = Vec::new();
    let mut kills = 0;
    loop {
        let (round, weights) = volunteer.weights().await.expect("the platform is there");
        match published.get(round as usize) {
            Some(known) => assert_eq!(*known, sha256(&weights), "round {round}"),
            None => {
                assert_eq!(published.len() as u64, round, "no round is left out");
                published.push(sha256(&weights));
            }
        }
        if round == rounds {
            break;
        }
        let confirmed = volunteer.send("ali", round, shifted(&weights, 0.25)).await;
        assert_eq!(confirmed, Some(StatusCode::OK));
        let other = volunteer.send("veli", round, shifted(&weights, 0.5));
        if kills < KILLS {
            kills += 1;
            let delay = random.moment(Duration::from_millis(20));
            let kill = async {
                tokio::time::sleep(delay).await;
                platform.crash().await;
            };
            tokio::join!(other, kill);
            platform.restart().await;
            let task = volunteer.json("/gorev?isci=ali").await.expect("a task");
            let is_waiting = task["bekle"] == true && task["tur"] == round;
            assert!(is_waiting || task["tur"] == round + 1, "{task}");
            // Whether its answer was lost or its result: the same is sent again.
            let again = volunteer.send("veli", round, shifted(&weights, 0.5)).await;
            assert_eq!(again, Some(StatusCode::OK));
        } else {
            assert_eq!(other.await, Some(StatusCode::OK));
        }
        eventually("the next round", async || {
            let info = volunteer.json("/bilgi").await?;
            (info["tur"] == round + 1).then_some(())
        })
        .await;
    }
    let admin = platform.admin().await;
    let shown = admin.get(&format!("/api/coordinators/{id}")).await.ok();
    assert_eq!(shown["status"], "finished");
    let people = admin
        .get(&format!("/api/coordinators/{id}/participants"))
        .await
        .ok();
    for one in people["items"].as_array().expect("a list") {
        assert_eq!(one["accepted"], rounds, "{one}");
    }
}

/// Rows that take a while to be packed.
const ROWS: usize = 4000;
/// A session is given up whose making breaks the platform off three times.
const KILLS_WHILE_PACKING: usize = 2;

/// Whoever is killed while shards are packed packs them anew, and what volunteers get is what they would have got.
#[tokio::test]
async fn shards_are_whole_after_kills_while_they_were_packed() {
    let (mut platform, _model) = platform_with_model().await;
    let admin = platform.admin().await;
    let text = "the yard foreman counts the cars once more ".repeat(20);
    let rows: String = (0..ROWS)
        .map(|number| json!({"text": format!("{number} {text}")}).to_string() + "\n")
        .collect();
    let data = admin.dataset("book", &rows).await;
    let more = json!({"dataset_id": data, "n_parca": 3});
    open(&admin, "untouched", more.clone()).await;
    let untouched = shards(&platform, "untouched").await;

    let mut body = json!({"name": "killed", "base_model": TINY_MODEL_ID, "tur_zaman_asimi": 0});
    let fields = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(fields);
    let made = admin.post("/api/coordinators", body).await.ok();
    let path = format!("/api/coordinators/{}", made["id"]);
    let packed = platform
        .data_dir()
        .join(format!("storage/federated/{}/shards", made["id"]));
    for kill in 0..KILLS_WHILE_PACKING {
        let scratch = platform.data_dir().join("scratch");
        eventually("tokens to be written", async || {
            let files = scratch.read_dir().ok()?.flatten();
            let files = files.filter_map(|folder| folder.path().read_dir().ok());
            let mut sizes = files
                .flatten()
                .flatten()
                .filter_map(|file| file.metadata().ok());
            sizes.any(|of| of.len() > 0).then_some(())
        })
        .await;
        platform.crash().await;
        let finished = packed.read_dir().map_or(0, Iterator::count);
        assert!(finished < 3, "kill {kill} came too late");
        platform.restart().await;
        let shown = platform.admin().await.get(&path).await.ok();
        assert_eq!(shown["status"], "preparing", "{shown}");
    }
    let admin = platform.admin().await;
    eventually("an open session", async || {
        let shown = admin.get(&path).await.ok();
        assert_ne!(shown["status"], "failed", "{shown}");
        (shown["status"] == "open").then_some(())
    })
    .await;
    assert!(shards(&platform, "killed").await == untouched);
    let left = platform.data_dir().join("scratch").read_dir();
    assert_eq!(left.expect("a folder").count(), 0);
}

/// The shards of a session as three volunteers get them, each with the digest of its task.
async fn shards(platform: &Platform, name: &str) -> Vec<Vec<u8>> {
    let volunteer = Volunteer::of(platform, name);
    let mut shards = Vec::new();
    for worker in ["ali", "veli", "ece"] {
        let task = volunteer.json(&format!("/gorev?isci={worker}")).await;
        let task = task.expect("a task");
        let url = format!("{}/veri?parca={}", volunteer.base, task["parca"]);
        let body = volunteer.http.get(url).send().await.expect("an answer");
        let body = body.bytes().await.expect("a shard").to_vec();
        assert_eq!(task["veri_sha256"], sha256(&body));
        shards.push(body);
    }
    shards
}

/// Bodies without end and header lengths beyond all memory cost no memory.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g103_memory_stays_flat_under_hostile_uploads() {
    let (platform, _model) = platform_with_model().await;
    let admin = platform.admin().await;
    open(&admin, "masal", json!({"en_az": 1})).await;
    let volunteer = Volunteer::of(&platform, "masal");
    let (_, weights) = volunteer.weights().await.expect("weights");
    let before = platform.process().peak_memory_mib();
    let address = platform.address().to_owned();
    let floods: Vec<_> = (0..8)
        .map(|number| {
            let address = address.clone();
            std::thread::spawn(move || flood(&address, number))
        })
        .collect();
    let mut claims = weights.clone();
    claims[..8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    for number in 0..20 {
        let status = volunteer
            .send(&format!("claims-{number}"), 0, claims.clone())
            .await;
        assert_eq!(status, Some(StatusCode::BAD_REQUEST));
    }
    for flood in floods {
        flood.join().expect("the flood ends");
    }
    let grown = platform.process().peak_memory_mib() - before;
    assert!(grown < 64, "{grown} MiB more");
    let sent = volunteer.send("ali", 0, shifted(&weights, 0.5)).await;
    assert_eq!(sent, Some(StatusCode::OK));
}

/// Sends a body, in chunks or of 10 GiB, until the platform, which has answered that it has had enough, ends the
/// connection.
fn flood(address: &str, number: u32) {
    let mut socket = TcpStream::connect(address).expect("the platform is there");
    let (length, refusal) = match number % 2 {
        0 => ("Transfer-Encoding: chunked", b"HTTP/1.1 411"),
        _ => ("Content-Length: 10737418240", b"HTTP/1.1 413"),
    };
    let head = format!(
        "POST /c/masal/sonuc?isci=flood-{number}&tur=0 HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n"
    );
    let mut answer = socket.try_clone().expect("a second handle");
    let answered = std::thread::spawn(move || {
        let mut status = [0; 12];
        answer.read_exact(&mut status).map(|()| status)
    });
    let mut chunk = format!("{:x}\r\n", 1 << 20).into_bytes();
    chunk.resize(chunk.len() + (1 << 20), b'x');
    chunk.extend_from_slice(b"\r\n");
    let begun = Instant::now();
    let mut is_taken = socket.write_all(head.as_bytes()).is_ok();
    while is_taken {
        assert!(begun.elapsed() < NO_END, "the body is read on and on");
        is_taken = socket.write_all(&chunk).is_ok();
    }
    // Who is cut off in the midst of sending may miss the answer.
    if let Ok(status) = answered.join().expect("the answer is read") {
        assert_eq!(&status, refusal);
    }
}
