//! Fetching one file: into `*.part` beside its place, resumed by range, checked, then renamed.

use std::path::{Path, PathBuf};

use reqwest::StatusCode;
use reqwest::header::{
    ACCEPT_RANGES, CONTENT_RANGE, ETAG, HeaderMap, HeaderValue, IF_RANGE, RANGE,
};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use trainyard_shared::Secret;

use super::retry::{Fault, Tries};
use super::{Http, TransferError, check_room};
use crate::files;

/// A file to fetch.
#[derive(Debug)]
pub struct Download<'a> {
    /// How messages name it.
    pub name: &'a str,
    /// Where it is.
    pub url: Secret,
    /// Sent as `Authorization: Bearer`, to the first server only (never along a redirect).
    pub bearer: Option<&'a Secret>,
    /// Its length in bytes, where it is known.
    pub size_bytes: Option<u64>,
    /// Its SHA-256 in lower-case hex, where it is known.
    pub sha256: Option<&'a str>,
    /// The answer's header that holds the body's SHA-256, where there is one: other content is not even begun.
    pub digest_header: Option<&'a str>,
    /// More bytes than this are not taken.
    pub max_bytes: Option<u64>,
    /// Where it goes. Its folder must be there.
    pub destination: &'a Path,
}

/// Progress below this many bytes does not earn new tries.
const WORTHWHILE_BYTES: u64 = 64 * 1024;

/// How often is looked whether there is still room, while nobody has said how much comes.
const ROOM_EVERY_BYTES: u64 = 64 << 20;

/// New addresses that are asked for without a byte in between: one that was just made and is refused as well
/// has not expired.
const RENEWALS: u32 = 2;

impl Http {
    /// Fetches `file` and returns once it is whole, checked and durable at its place.
    ///
    /// `renew` gives a new address when the old one has expired, or none if there is no way to get one.
    /// `on_bytes` is told the bytes that are there so far. A part that an earlier run left is gone on
    /// with only if the SHA-256 is known. Dropping the future leaves the part for the next time.
    ///
    /// # Errors
    ///
    /// A final refusal, tries used up, content that differs (after one fresh start), or the local disk.
    pub async fn download<R>(
        &self,
        file: &Download<'_>,
        renew: R,
        mut on_bytes: impl FnMut(u64),
    ) -> Result<(), TransferError>
    where
        R: AsyncFn() -> Result<Option<Secret>, TransferError>,
    {
        let mut url = file.url.clone();
        let mut part = Part::open(file).await?;
        let mut tries = Tries::new(self.retry());
        let mut renewals = 0;
        let mut fresh_start = false;
        loop {
            let before = part.length;
            let fetched = self.fetch(file, &url, &mut part, &mut on_bytes).await;
            let result = match part.flush().await {
                Ok(()) => fetched,
                Err(error) => Err(Fault::Final(error)),
            };
            if part.length.saturating_sub(before) >= WORTHWHILE_BYTES {
                tries.progressed();
            }
            if part.length > before {
                renewals = 0;
            }
            match result {
                Ok(()) => match part.mismatch(file) {
                    None => return part.finish(file.destination).await,
                    Some(message) if fresh_start => {
                        part.discard().await;
                        return Err(wrong_content(file, message));
                    }
                    Some(message) => {
                        tracing::warn!(transfer.file = file.name, %message, "download starts afresh");
                        fresh_start = true;
                        part.restart().await?;
                    }
                },
                Err(Fault::Passing {
                    reason,
                    retry_after,
                }) => tries.wait(file.name, reason, retry_after).await?,
                Err(Fault::Expired { answer, status }) => {
                    renewals += 1;
                    let renewed = if renewals <= RENEWALS {
                        renew().await
                    } else {
                        Ok(None)
                    };
                    match renewed {
                        Ok(Some(renewed)) => {
                            tracing::info!(
                                transfer.file = file.name,
                                "download address is renewed"
                            );
                            url = renewed;
                        }
                        Ok(None) => {
                            return Err(TransferError::Refused {
                                name: file.name.to_owned(),
                                status,
                                answer,
                            });
                        }
                        // The platform is away: the address is asked for again after the next refusal.
                        Err(TransferError::GivenUp { last, .. }) => {
                            renewals -= 1;
                            tries.wait(file.name, last, None).await?;
                        }
                        Err(error) => return Err(error),
                    }
                }
                Err(Fault::Final(error)) => {
                    let is_of_no_use = matches!(
                        error,
                        TransferError::DiskFull { .. }
                            | TransferError::NoRoom { .. }
                            | TransferError::WrongContent { .. }
                    );
                    if is_of_no_use {
                        // What is left of it would only keep others from finding room.
                        part.discard().await;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// One request: appends what comes to the part.
    async fn fetch(
        &self,
        file: &Download<'_>,
        url: &Secret,
        part: &mut Part,
        on_bytes: &mut impl FnMut(u64),
    ) -> Result<(), Fault> {
        let mut request = self.client().get(url.expose());
        if let Some(token) = file.bearer {
            request = request.bearer_auth(token.expose());
        }
        if part.length > 0 {
            request = request.header(RANGE, format!("bytes={}-", part.length));
            if let Some(tag) = &part.tag {
                request = request.header(IF_RANGE, tag);
            }
        }
        let mut response = request
            .send()
            .await
            .map_err(|error| Fault::from_client(file.name, error))?;
        if response.status().is_success() {
            check_digest(file, response.headers())?;
        }
        match response.status() {
            StatusCode::OK => part.restart().await.map_err(Fault::Final)?,
            StatusCode::PARTIAL_CONTENT => {
                if range_start(response.headers()) != Some(part.length) {
                    part.restart().await.map_err(Fault::Final)?;
                    return Err(Fault::passing("the server answered with another range"));
                }
            }
            StatusCode::RANGE_NOT_SATISFIABLE if part.length > 0 => {
                if file.size_bytes == Some(part.length) {
                    return Ok(());
                }
                part.restart().await.map_err(Fault::Final)?;
                return Err(Fault::passing("the file has another length than before"));
            }
            status if status.is_success() => {
                return Err(Fault::passing(format!("unexpected answer {status}")));
            }
            _ => return Err(Fault::from_answer(file.name, response).await),
        }
        part.tag = strong_tag(response.headers());
        let room = |needed| check_room(file.name, file.destination, needed, self.kept_bytes);
        if let Some(rest) = response.content_length() {
            check_length(file, part.length.saturating_add(rest))?;
            room(rest).map_err(Fault::Final)?;
        }
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| Fault::from_client(file.name, error))?
        {
            let length = part.length + chunk.len() as u64;
            check_length(file, length)?;
            if part.length / ROOM_EVERY_BYTES != length / ROOM_EVERY_BYTES {
                room(0).map_err(Fault::Final)?;
            }
            part.append(&chunk).await.map_err(Fault::Final)?;
            if file.size_bytes.is_some_and(|size| part.length > size) {
                break;
            }
            on_bytes(part.length);
        }
        match file.size_bytes {
            Some(size) if part.length < size => Err(Fault::passing(format!(
                "the answer ended after {} of {size} bytes",
                part.length
            ))),
            _ => Ok(()),
        }
    }
}

/// That no more comes than is taken.
fn check_length(file: &Download<'_>, length: u64) -> Result<(), Fault> {
    match file.max_bytes.filter(|most| length > *most) {
        Some(most) => {
            let message = format!("it is longer than {most} bytes");
            Err(Fault::Final(wrong_content(file, message)))
        }
        None => Ok(()),
    }
}

/// Whether the answer says that it holds the file that is meant, where it says so.
fn check_digest(file: &Download<'_>, headers: &HeaderMap) -> Result<(), Fault> {
    let told = file.digest_header.and_then(|name| headers.get(name));
    let (Some(told), Some(expected)) = (told, file.sha256) else {
        return Ok(());
    };
    let told = told.to_str().unwrap_or_default().trim();
    if told.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    let message = format!("the server has SHA-256 {told}, not {expected}");
    Err(Fault::Final(wrong_content(file, message)))
}

/// The beginning of a file.
struct Part {
    path: PathBuf,
    file: tokio::fs::File,
    length: u64,
    digest: Sha256,
    /// The server's name for this content, so that a range is never joined to other content.
    tag: Option<HeaderValue>,
}

impl Part {
    async fn open(file: &Download<'_>) -> Result<Self, TransferError> {
        let path = part_path(file.destination);
        let handle = tokio::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .await
            .map_err(|source| TransferError::io("create", &path, source))?;
        let mut part = Self {
            path,
            file: handle,
            length: 0,
            digest: Sha256::new(),
            tag: None,
        };
        if file.sha256.is_some() {
            part.read_what_is_there().await?;
        } else {
            part.restart().await?;
        }
        Ok(part)
    }

    async fn read_what_is_there(&mut self) -> Result<(), TransferError> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = self
                .file
                .read(&mut buffer)
                .await
                .map_err(|source| TransferError::io("read", &self.path, source))?;
            if read == 0 {
                return Ok(());
            }
            self.digest.update(&buffer[..read]);
            self.length += read as u64;
        }
    }

    async fn append(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.file
            .write_all(bytes)
            .await
            .map_err(|source| TransferError::io("write", &self.path, source))?;
        self.digest.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Writes are done behind the scenes; this is where their errors are met.
    async fn flush(&mut self) -> Result<(), TransferError> {
        self.file
            .flush()
            .await
            .map_err(|source| TransferError::io("write", &self.path, source))
    }

    async fn restart(&mut self) -> Result<(), TransferError> {
        if self.length > 0
            || self
                .file
                .metadata()
                .await
                .map_or(true, |data| data.len() > 0)
        {
            let path = &self.path;
            let failed = |source| TransferError::io("empty", path, source);
            self.file.set_len(0).await.map_err(failed)?;
            self.file.rewind().await.map_err(failed)?;
        }
        self.length = 0;
        self.digest = Sha256::new();
        self.tag = None;
        Ok(())
    }

    /// How the finished content differs from what was announced.
    fn mismatch(&self, file: &Download<'_>) -> Option<String> {
        if let Some(size) = file.size_bytes
            && size != self.length
        {
            let found = if self.length > size { "more" } else { "fewer" };
            return Some(format!("{size} bytes were announced, {found} came"));
        }
        let found = hex::encode(self.digest.clone().finalize());
        match file.sha256 {
            Some(expected) if !expected.eq_ignore_ascii_case(&found) => {
                Some(format!("SHA-256 is {found}, not {expected} as announced"))
            }
            _ => None,
        }
    }

    async fn finish(self, destination: &Path) -> Result<(), TransferError> {
        self.file
            .sync_all()
            .await
            .map_err(|source| TransferError::io("sync", &self.path, source))?;
        let (from, to) = (self.path, destination.to_owned());
        tokio::task::spawn_blocking(move || {
            files::rename_durably(&from, &to)
                .map_err(|source| TransferError::io("rename", &from, source))
        })
        .await
        .expect("renaming does not panic")
    }

    async fn discard(self) {
        if let Err(error) = tokio::fs::remove_file(&self.path).await {
            tracing::warn!(file = %self.path.display(), %error, "part of a download cannot be deleted");
        }
    }
}

fn part_path(destination: &Path) -> PathBuf {
    let mut name = destination.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    destination.with_file_name(name)
}

fn wrong_content(file: &Download<'_>, message: String) -> TransferError {
    TransferError::WrongContent {
        name: file.name.to_owned(),
        message,
    }
}

/// The first byte of `Content-Range: bytes 100-199/200`.
fn range_start(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let range = text.trim().strip_prefix("bytes")?.trim_start();
    range.split_once('-')?.0.trim().parse().ok()
}

/// The entity tag if it is one that may guard a range: weak ones may not, and servers that do not
/// take ranges need none.
fn strong_tag(headers: &HeaderMap) -> Option<HeaderValue> {
    if headers
        .get(ACCEPT_RANGES)
        .is_some_and(|value| value == "none")
    {
        return None;
    }
    headers
        .get(ETAG)
        .filter(|tag| tag.as_bytes().starts_with(b"\""))
        .cloned()
}
