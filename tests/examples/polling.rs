//! Load of `tests/bench/polling`: many volunteers, each on a connection of its own, ask one platform for their task
//! again and again, as fast as they are answered. Prints requests a second, and what each costs the platform.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::{Platform, TinyModel, eventually};

/// Clock ticks of `/proc/PID/stat` in a second.
const TICKS: f64 = 100.0;
/// Connections are opened so many at a time.
const OPENED_AT_ONCE: usize = 128;
/// Volunteers that have a request under way at once.
const UNDER_WAY: usize = 256;

struct Options {
    volunteers: usize,
    seconds: f64,
    is_json: bool,
}

fn options() -> Options {
    let mut options = Options {
        volunteers: 10_000,
        seconds: 20.0,
        is_json: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let text = words.next().unwrap_or_default();
            text.parse::<f64>()
                .unwrap_or_else(|_| panic!("{word} needs a number, not {text:?}"))
        };
        match word.as_str() {
            "--volunteers" => options.volunteers = number() as usize,
            "--seconds" => options.seconds = number(),
            "--json" => options.is_json = true,
            other => panic!("no such option: {other}"),
        }
    }
    options
}

/// One volunteer's connection.
struct Volunteer {
    socket: TcpStream,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

impl Volunteer {
    async fn join(address: &str, number: usize) -> Self {
        let socket = TcpStream::connect(address).await;
        let socket = socket.expect("the platform takes connections");
        socket.set_nodelay(true).expect("an open socket");
        let request =
            format!("GET /c/bench/gorev?isci=volunteer-{number} HTTP/1.1\r\nHost: x\r\n\r\n");
        Self {
            socket,
            request: request.into_bytes(),
            buffer: vec![0; 2_048],
        }
    }

    /// Asks for a task; whether there was one.
    async fn ask(&mut self) -> bool {
        let written = self.socket.write_all(&self.request).await;
        written.expect("the connection stays open");
        let mut length = 0;
        loop {
            let read = self.socket.read(&mut self.buffer[length..]).await;
            let count = read.expect("the connection stays open");
            assert!(count > 0, "the platform has closed a connection");
            length += count;
            // The body is one JSON object without another in it.
            if self.buffer[..length].ends_with(b"}") {
                let answer = &self.buffer[..length];
                let has = |text: &[u8]| answer.windows(text.len()).any(|part| part == text);
                return answer.starts_with(b"HTTP/1.1 200") && has(b"\"agirlik_sha256\"");
            }
        }
    }
}

/// Seconds of processor that a process has used.
fn processor_seconds(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |index: usize| fields[index].parse::<f64>().expect("a number of ticks");
    (ticks(11) + ticks(12)) / TICKS
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let options = options();
    let model = TinyModel::create();
    let models = model.models_dir().display().to_string();
    let settings = [
        ("MODELS_DIR", models.as_str()),
        ("HF_HUB_OFFLINE", "true"),
        ("LOG", "warn"),
    ];
    let platform = Platform::start_with(&settings).await;
    let admin = platform.admin().await;
    let body = json!({"name": "bench", "base_model": TINY_MODEL_ID, "n_parca": 64});
    let id = admin.post("/api/coordinators", body).await.ok()["id"].clone();
    eventually("an open session", async || {
        let shown = admin.get(&format!("/api/coordinators/{id}")).await.ok();
        (shown["status"] == "open").then_some(())
    })
    .await;

    let process = platform.process().id();
    let mut volunteers = Vec::with_capacity(options.volunteers);
    for first in (0..options.volunteers).step_by(OPENED_AT_ONCE) {
        let last = (first + OPENED_AT_ONCE).min(options.volunteers);
        let opened = (first..last).map(|number| Volunteer::join(platform.address(), number));
        volunteers.extend(futures_util::future::join_all(opened).await);
    }
    // The first question of each is its joining: a row in the database, many in one write.
    let (joining_cost, joining) = measured(process, &mut volunteers, Duration::ZERO).await;
    let (cost, answers) = measured(
        process,
        &mut volunteers,
        Duration::from_secs_f64(options.seconds),
    )
    .await;
    let memory_mib = platform.process().peak_memory_mib();

    let figures = BTreeMap::from([
        ("volunteers", json!(options.volunteers)),
        ("joins_per_second", json!(round(joining.per_second()))),
        ("join_cpu_us", json!(round(joining_cost * 1e6))),
        ("requests", json!(answers.count)),
        ("requests_per_second", json!(round(answers.per_second()))),
        ("request_cpu_us", json!(round(cost * 1e6))),
        ("p50_ms", json!(round(answers.quantile(0.5) * 1e3))),
        ("p99_ms", json!(round(answers.quantile(0.99) * 1e3))),
        ("peak_memory_mib", json!(memory_mib)),
    ]);
    if options.is_json {
        println!("{}", json!(figures));
    } else {
        for (name, value) in figures {
            println!("{name:>20}  {value}");
        }
    }
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// What came of many questions.
struct Answers {
    count: usize,
    elapsed: Duration,
    latencies: Vec<f32>,
}

impl Answers {
    fn per_second(&self) -> f64 {
        self.count as f64 / self.elapsed.as_secs_f64()
    }

    fn quantile(&self, part: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        self.latencies
            .get((last as f64 * part) as usize)
            .map_or(0.0, |seconds| f64::from(*seconds))
    }
}

/// Lets each volunteer ask once, then all again and again in turn until the time is over. Gives the processor
/// seconds that one question costs the platform.
async fn measured(process: u32, volunteers: &mut Vec<Volunteer>, time: Duration) -> (f64, Answers) {
    let (used, begun) = (processor_seconds(process), Instant::now());
    let lanes = UNDER_WAY.min(volunteers.len()).max(1);
    let mut parts: Vec<Vec<Volunteer>> = (0..lanes).map(|_| Vec::new()).collect();
    for (number, volunteer) in volunteers.drain(..).enumerate() {
        parts[number % lanes].push(volunteer);
    }
    let asking = parts
        .into_iter()
        .map(|part| tokio::spawn(ask_in_turn(part, begun, time)));
    let mut latencies = Vec::new();
    for done in futures_util::future::join_all(asking).await {
        let (part, took) = done.expect("no volunteer panics");
        volunteers.extend(part);
        latencies.extend(took);
    }
    let elapsed = begun.elapsed();
    let cost = (processor_seconds(process) - used) / latencies.len() as f64;
    latencies.sort_by(f32::total_cmp);
    let answers = Answers {
        count: latencies.len(),
        elapsed,
        latencies,
    };
    (cost, answers)
}

async fn ask_in_turn(
    mut volunteers: Vec<Volunteer>,
    begun: Instant,
    time: Duration,
) -> (Vec<Volunteer>, Vec<f32>) {
    let mut latencies = Vec::new();
    loop {
        for volunteer in &mut volunteers {
            let asked = Instant::now();
            assert!(volunteer.ask().await, "a volunteer got no task");
            latencies.push(asked.elapsed().as_secs_f32());
        }
        if begun.elapsed() >= time {
            return (volunteers, latencies);
        }
    }
}
