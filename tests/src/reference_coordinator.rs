//! A coordinator of another make, written from the source document and what is published beside it alone, that does
//! everything as they say but for one fault of the test's choice.
//!
//! Names are the protocol's: `gorev` task, `agirlik` weights, `veri` data, `sonuc` result, `tur` round, `parca` shard.

mod answers;
mod files;
mod results;
mod rounds;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use actix_web::http::header;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use futures_util::StreamExt;

use rounds::Rounds;

/// What the coordinator does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Any key is taken.
    WrongKeyTaken,
    /// /bilgi wants the key.
    BilgiLocked,
    /// The key is wanted after the body was read.
    KeyAfterBody,
    /// Errors are plain text.
    PlainTextErrors,
    /// JSON is called text.
    JsonCalledText,
    /// A method that is not taken is answered 404.
    MethodNotFound,
    /// Names may have spaces.
    SpacesInNames,
    /// Names may be of any length.
    LongNames,
    /// Names are not percent-decoded.
    NamesNotDecoded,
    /// Names are percent-decoded twice.
    NamesDecodedTwice,
    /// Parameters that are not known are refused.
    UnknownParametersRefused,
    /// Tasks lack tohum.
    NoSeed,
    /// Digests are in upper case.
    UpperCaseDigest,
    /// Tasks are of a mode that there is not.
    UnknownMode,
    /// Tasks name shards that there are not.
    ShardOutOfRange,
    /// A worker gets another shard each time.
    OtherShardEachTime,
    /// All workers get the same shard.
    SameShardForAll,
    /// gelen stays at 0.
    NothingReceived,
    /// kilitli is the contrary.
    WrongLock,
    /// bilgi lacks the model.
    NoModel,
    /// bilgi tells another ic_adim.
    OtherSteps,
    /// agirlik_sha256 is another digest.
    TaskDigest,
    /// X-Sha256 of the weights is another digest.
    DigestHeader,
    /// X-Tur is one too high.
    RoundHeader,
    /// The weights change with each result.
    WeightsDrift,
    /// The weights come as text.
    WeightsCalledText,
    /// Ranges are ignored.
    NoRanges,
    /// X-Sha256 of shards is another digest.
    DataDigestHeader,
    /// veri_sha256 is another digest.
    DataTaskDigest,
    /// veri_belirtec is one too many.
    TokenCount,
    /// ids are of 64 bits.
    WideIds,
    /// etiket is one too short.
    ShortLabels,
    /// bilgi does not show veri.
    DataNotShown,
    /// A shard that there is not is answered with another.
    AnyShard,
    /// Without data, /veri is answered 400.
    NoDataIs400,
    /// tamam is missing.
    NotTaken,
    /// Who has sent a result gets the task again.
    NeverWaits,
    /// bekle comes without tur.
    WaitWithoutRound,
    /// A second result of a worker counts as well.
    SecondCounts,
    /// A second result of a worker takes the place of the first.
    SecondReplaces,
    /// The same result sent again is refused.
    RepeatRefused,
    /// Results for closed rounds are taken.
    LateTaken,
    /// Results for rounds to come are taken.
    EarlyTaken,
    /// A missing tur means the open round.
    RoundGuessed,
    /// Whose result was refused may send none in the round.
    OneTry,
    /// X-Sha256 of a result is ignored.
    ResultDigestIgnored,
    /// However large a result is, it is read.
    LargeRead,
    /// Results need no length.
    ChunkedTaken,
    /// A result that broke off counts.
    CutCounts,
    /// Missing keys are not seen.
    MissingKeysTaken,
    /// Keys too many are not seen.
    ExtraKeysTaken,
    /// Other shapes are not seen.
    ShapesTaken,
    /// Other dtypes are not seen.
    DtypesTaken,
    /// NaN is not seen.
    NanTaken,
    /// Infinities are not seen.
    InfinityTaken,
    /// What stands behind the data is not seen.
    TrailingTaken,
    /// A file that cannot be read is answered 500.
    TruncatedIs500,
    /// An empty result is taken.
    EmptyTaken,
    /// Results that are not valid are answered 422.
    InvalidIs422,
    /// The reason does not name the key.
    KeyNotNamed,
    /// Rounds never close.
    NeverCloses,
    /// A merge does not raise tur.
    RoundNotRaised,
    /// A merge raises tur by two.
    RoundSkipped,
    /// A merge leaves the weights as they were.
    WeightsNotMerged,
    /// The first weights are served for ever.
    WeightsNotPublished,
    /// A merge turns f32 into f16 and back.
    LayoutChanges,
    /// Merged weights are cut off.
    WeightsCut,
    /// X-Tur rises before the weights are there.
    TornSwap,
    /// Merges go away from the results.
    WrongWay,
    /// Results that are far off are merged too.
    NoElimination,
    /// A round with too few results waits for ever.
    NoTimeout,
    /// At the end workers are told to wait.
    NeverFinished,
    /// After the end results are taken.
    TakenAfterEnd,
}

/// How the coordinator is set.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Results that close a round.
    pub enough: usize,
    /// Rounds of the session.
    pub total_rounds: u64,
    /// When a round closes with one result or more.
    pub round_timeout: Option<Duration>,
    /// The shared key.
    pub key: Option<String>,
    /// Shards of the data that is served; none where there is none.
    pub shards: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enough: 3,
            total_rounds: 1000,
            round_timeout: None,
            key: None,
            shards: Some(2),
        }
    }
}

/// A running coordinator. It ends with the test's runtime.
pub struct ReferenceCoordinator {
    url: String,
}

/// What all requests share.
struct Coordinator {
    fault: Fault,
    settings: Settings,
    data: Vec<files::File>,
    rounds: Mutex<Rounds>,
}

/// What is answered.
struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl ReferenceCoordinator {
    /// Starts a coordinator on a free port.
    ///
    /// # Panics
    /// Where no port can be bound.
    pub fn start(settings: Settings, fault: Fault) -> Self {
        let data = (0..settings.shards.unwrap_or(0)).map(|shard| files::shard(shard, fault));
        let coordinator = web::Data::new(Coordinator {
            data: data.collect(),
            rounds: Mutex::new(Rounds::begin()),
            fault,
            settings,
        });
        let server = HttpServer::new(move || {
            App::new()
                .app_data(coordinator.clone())
                .default_service(web::to(answer))
        });
        let server = server
            .workers(1)
            .disable_signals()
            .bind("127.0.0.1:0")
            .expect("a free port can be bound");
        let url = format!("http://{}", server.addrs()[0]);
        tokio::spawn(server.run());
        Self { url }
    }

    /// Its base address.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Coordinator {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// The rounds, once those that have timed out are closed.
    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        let mut rounds = self.rounds.lock().expect("no holder panics");
        if !self.has(Fault::NoTimeout) && !self.has(Fault::NeverCloses) {
            rounds.close_if_late(&self.settings, self.fault);
        }
        rounds
    }
}

impl Reply {
    fn json(value: &serde_json::Value) -> Self {
        Self {
            status: 200,
            headers: vec![("Content-Type", "application/json".to_owned())],
            body: value.to_string().into_bytes(),
        }
    }

    fn refusal(status: u16, why: impl Into<String>) -> Self {
        let body = serde_json::json!({"hata": why.into()});
        Self {
            status,
            ..Self::json(&body)
        }
    }

    fn file(file: &files::File) -> Self {
        let headers = [
            ("Content-Type", "application/octet-stream".to_owned()),
            ("X-Sha256", file.sha256.clone()),
        ];
        Self {
            status: 200,
            headers: headers.into(),
            body: file.bytes.clone(),
        }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value.into()));
        self
    }
}

async fn answer(
    request: HttpRequest,
    payload: web::Payload,
    coordinator: web::Data<Coordinator>,
) -> HttpResponse {
    let coordinator: &Arc<Coordinator> = &coordinator;
    let result = match (request.path(), request.method().as_str()) {
        ("/gorev", "GET") => coordinator.task(&request),
        ("/bilgi", "GET") => coordinator.info(&request),
        ("/agirlik", "GET" | "HEAD") => coordinator.weights(&request),
        ("/veri", "GET" | "HEAD") => coordinator.shard(&request),
        ("/sonuc", "POST") => take(coordinator, &request, payload).await,
        ("/gorev" | "/bilgi" | "/agirlik" | "/veri" | "/sonuc", _) => {
            let status = match coordinator.has(Fault::MethodNotFound) {
                true => 404,
                false => 405,
            };
            Err(Reply::refusal(status, "another method"))
        }
        _ => Err(Reply::refusal(404, "there is nothing here")),
    };
    let reply = result.unwrap_or_else(|refusal| match coordinator.has(Fault::PlainTextErrors) {
        true => Reply {
            body: b"something is wrong".to_vec(),
            ..refusal.with("Content-Type", "text/plain")
        },
        false => refusal,
    });
    respond(coordinator, &request, reply)
}

/// Takes a result: its head is looked at first, then the body comes.
async fn take(
    coordinator: &Coordinator,
    request: &HttpRequest,
    mut payload: web::Payload,
) -> Result<Reply, Reply> {
    if !coordinator.has(Fault::KeyAfterBody) {
        coordinator.check_key(request)?;
    }
    let offer = coordinator.offer(request)?;
    let (mut body, mut is_cut) = (Vec::new(), false);
    while let Some(chunk) = payload.next().await {
        match chunk {
            Ok(chunk) => body.extend_from_slice(&chunk),
            Err(_) if coordinator.has(Fault::CutCounts) => {
                is_cut = true;
                break;
            }
            Err(error) => return Err(Reply::refusal(400, error.to_string())),
        }
    }
    coordinator.check_key(request)?;
    coordinator.take(offer, body, is_cut)
}

fn respond(coordinator: &Coordinator, request: &HttpRequest, mut reply: Reply) -> HttpResponse {
    let range = request.headers().get(header::RANGE);
    let range = range.and_then(|range| {
        let (from, to) = range
            .to_str()
            .ok()?
            .strip_prefix("bytes=")?
            .split_once('-')?;
        Some(from.parse::<usize>().ok()?..to.parse::<usize>().ok()? + 1)
    });
    if let Some(range) = range.filter(|_| !coordinator.has(Fault::NoRanges))
        && let Some(part) = reply.body.get(range.clone())
        && reply.status == 200
    {
        let whole = reply.body.len();
        let content_range = format!("bytes {}-{}/{whole}", range.start, range.end - 1);
        reply = Reply {
            status: 206,
            body: part.to_vec(),
            ..reply
        }
        .with("Content-Range", content_range);
    }
    let json = reply
        .headers
        .contains(&("Content-Type", "application/json".to_owned()));
    if json && coordinator.has(Fault::JsonCalledText) {
        reply = reply.with("Content-Type", "text/html");
    }
    let status = reply.status.try_into().expect("a status of HTTP");
    let mut response = HttpResponse::build(status);
    for header in reply.headers {
        response.insert_header(header);
    }
    response.body(reply.body)
}
