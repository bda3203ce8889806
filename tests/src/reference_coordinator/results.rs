//! What all requests carry, and `POST /sonuc`.

use actix_web::HttpRequest;
use actix_web::http::header;
use serde_json::json;

use super::files::{File, fault_of};
use super::{Coordinator, Fault, Reply};

/// A result whose head is in order.
pub struct Offer {
    worker: String,
    round: u64,
    /// What the sender says of it.
    sha256: Option<String>,
}

impl Coordinator {
    pub fn check_key(&self, request: &HttpRequest) -> Result<(), Reply> {
        let shown = header_of(request, "x-anahtar");
        match (&self.settings.key, shown) {
            (None, _) => Ok(()),
            (Some(key), Some(shown)) if *key == shown => Ok(()),
            (Some(_), Some(_)) if self.has(Fault::WrongKeyTaken) => Ok(()),
            _ => Err(Reply::refusal(401, "another key")),
        }
    }

    pub fn worker(&self, request: &HttpRequest) -> Result<String, Reply> {
        let fields = fields_of(request);
        let odd = fields
            .iter()
            .any(|(name, _)| !["isci", "tur", "parca"].contains(&name.as_str()));
        if odd && self.has(Fault::UnknownParametersRefused) {
            return Err(Reply::refusal(400, "a parameter that is not known"));
        }
        let raw = once(&fields, "isci")?;
        let decoded = match self.fault {
            Fault::NamesNotDecoded => raw.to_owned(),
            Fault::NamesDecodedTwice => decode(&decode(raw)?)?,
            _ => decode(raw)?,
        };
        let is_plain = |c: char| {
            c.is_ascii_alphanumeric()
                || "_.-".contains(c)
                || (c == ' ' && self.has(Fault::SpacesInNames))
        };
        let fits = !decoded.is_empty()
            && (decoded.len() <= 60 || self.has(Fault::LongNames))
            && decoded.chars().all(is_plain);
        match fits {
            true => Ok(decoded),
            false => Err(Reply::refusal(
                400,
                "isci is 1 to 60 letters, digits, _, . and -",
            )),
        }
    }

    pub fn number(&self, request: &HttpRequest, name: &str) -> Result<u64, Reply> {
        let fields = fields_of(request);
        let text = decode(once(&fields, name)?)?;
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits => Ok(number),
            _ => Err(Reply::refusal(400, format!("{name} is no number"))),
        }
    }

    /// Looks at the head of a result.
    pub fn offer(&self, request: &HttpRequest) -> Result<Offer, Reply> {
        let worker = self.worker(request)?;
        let open = self.rounds().round;
        let has_round = fields_of(request).iter().any(|(name, _)| name == "tur");
        let round = match !has_round && self.has(Fault::RoundGuessed) {
            true => open,
            false => self.number(request, "tur")?,
        };
        let length = header_of(request, header::CONTENT_LENGTH.as_str());
        let length = length.and_then(|length| length.parse::<usize>().ok());
        if length.is_none() && !self.has(Fault::ChunkedTaken) {
            return Err(Reply::refusal(411, "how long is it?"));
        }
        let limit = 2 * self.rounds().weights.bytes.len();
        if length.is_some_and(|length| length > limit) && !self.has(Fault::LargeRead) {
            return Err(Reply::refusal(413, "too large"));
        }
        let sha256 = header_of(request, "x-sha256").map(str::to_owned);
        Ok(Offer {
            worker,
            round,
            sha256,
        })
    }

    /// Takes a result that is all there.
    pub fn take(&self, offer: Offer, result: Vec<u8>, is_cut: bool) -> Result<Reply, Reply> {
        let Offer {
            worker,
            round,
            sha256,
        } = offer;
        let file = File::of(result);
        let differs = sha256.is_some_and(|said| said != file.sha256);
        if differs && !self.has(Fault::ResultDigestIgnored) {
            return Err(Reply::refusal(400, "X-Sha256 is not that of the body"));
        }
        let mut rounds = self.rounds();
        let taken = match self.has(Fault::NotTaken) {
            true => json!({"tur": round}),
            false => json!({"tamam": true, "tur": round}),
        };
        let taken = Ok(Reply::json(&taken));
        let known = rounds.taken.get(&(round, worker.clone())).cloned();
        if known.as_ref() == Some(&file.sha256) && !self.has(Fault::RepeatRefused) {
            return taken;
        }
        let is_over = rounds.round >= self.settings.total_rounds;
        if is_over && self.has(Fault::TakenAfterEnd)
            || !is_over && round < rounds.round && self.has(Fault::LateTaken)
            || !is_over && round > rounds.round && self.has(Fault::EarlyTaken)
        {
            return taken;
        }
        if is_over || round != rounds.round {
            return Err(Reply::refusal(409, "another round is open"));
        }
        let may_be_second = matches!(self.fault, Fault::SecondCounts | Fault::SecondReplaces);
        let has_sent = rounds.results.contains_key(&worker);
        if has_sent && !may_be_second || rounds.refused.contains(&(round, worker.clone())) {
            return Err(Reply::refusal(409, "this worker has sent a result"));
        }
        if !is_cut {
            self.valid(&file, &rounds.weights).inspect_err(|_| {
                if self.has(Fault::OneTry) {
                    rounds.refused.push((round, worker.clone()));
                }
            })?;
        }
        rounds.taken.insert((round, worker.clone()), file.sha256);
        let name = match has_sent && self.has(Fault::SecondCounts) {
            true => format!("{worker} again"),
            false => worker,
        };
        rounds.take(name, file.bytes, &self.settings, self.fault);
        taken
    }

    fn valid(&self, file: &File, global: &File) -> Result<(), Reply> {
        let Err(why) = fault_of(&file.bytes, global, self.fault) else {
            return Ok(());
        };
        // That is what the library says where the data is not as long as the header says.
        let is_short = why.contains("incomplete metadata") && file.bytes.len() < global.bytes.len();
        Err(match self.fault {
            Fault::TruncatedIs500 if is_short => Reply::refusal(500, why),
            Fault::InvalidIs422 => Reply::refusal(422, why),
            Fault::KeyNotNamed => Reply::refusal(400, "not valid"),
            _ => Reply::refusal(400, why),
        })
    }
}

fn header_of<'a>(request: &'a HttpRequest, name: &str) -> Option<&'a str> {
    request.headers().get(name)?.to_str().ok()
}

/// The query's fields, not decoded.
fn fields_of(request: &HttpRequest) -> Vec<(String, String)> {
    let fields = request
        .query_string()
        .split('&')
        .filter(|field| !field.is_empty());
    fields
        .map(|field| field.split_once('=').unwrap_or((field, "")))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn once<'a>(fields: &'a [(String, String)], wanted: &str) -> Result<&'a str, Reply> {
    let mut found = fields.iter().filter(|(name, _)| name == wanted);
    match (found.next(), found.next()) {
        (Some((_, value)), None) => Ok(value),
        _ => Err(Reply::refusal(400, format!("{wanted} must stand once"))),
    }
}

fn decode(text: &str) -> Result<String, Reply> {
    let odd = || Reply::refusal(400, "no percent-encoded UTF-8");
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b'%' => {
                let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
                let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
                bytes.push(byte.ok_or_else(odd)?);
                rest = &after[2..];
            }
            b'+' => bytes.push(b' '),
            other => bytes.push(*other),
        }
    }
    String::from_utf8(bytes).map_err(|_| odd())
}
