//! The sending side of one WebSocket: a bounded queue that anyone may fill, and the stream that the HTTP
//! connection takes from as fast as its peer reads.
//!
//! The session's actor runs in a task of its own, so that a peer that does not read stops this stream only:
//! its messages, timers and the limits below go on.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use actix_http::ws::{CloseCode, CloseReason, Codec, Message, ProtocolError};
use actix_web::error::Error;
use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use futures_util::Stream;
use tokio::time::Instant;
use tokio_util::codec::Encoder;

use super::queue::{Outbox, Overflow, Topic};

/// Frames are handed over in pieces of about this size.
const CHUNK_BYTES: usize = 16 * 1024;

/// Puts frames into the queue of one connection. Cheap to clone.
#[derive(Clone)]
pub struct Outgoing {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    outbox: Outbox,
    /// Only the last ping is answered, however many come.
    pong: Option<Bytes>,
    close: Option<CloseReason>,
    /// Nothing is sent any more: the close frame is out, or the connection is gone.
    ended: bool,
    /// When something was last taken, or began to wait.
    moved_at: Instant,
    waker: Option<Waker>,
}

/// What the HTTP connection sends.
pub struct Frames {
    shared: Arc<Mutex<Shared>>,
    codec: Codec,
}

impl Outgoing {
    /// A queue for so many bytes and frames at most, and the stream that empties it.
    pub fn new(limit_bytes: usize, limit_frames: usize) -> (Self, Frames) {
        let shared = Arc::new(Mutex::new(Shared {
            outbox: Outbox::new(limit_bytes, limit_frames),
            pong: None,
            close: None,
            ended: false,
            moved_at: Instant::now(),
            waker: None,
        }));
        let frames = Frames {
            shared: shared.clone(),
            codec: Codec::new(),
        };
        (Self { shared }, frames)
    }

    /// Adds a text frame that may not be lost.
    ///
    /// # Errors
    ///
    /// [`Overflow`] where too much waits already.
    pub fn push(&self, text: ByteString, topic: Option<Topic>) -> Result<(), Overflow> {
        self.change(|shared| shared.outbox.push(text, topic))
    }

    /// Adds a text frame that takes the place of the one of the same topic that still waits.
    ///
    /// # Errors
    ///
    /// [`Overflow`] where too much waits already.
    pub fn update(&self, text: ByteString, topic: Topic) -> Result<(), Overflow> {
        self.change(|shared| shared.outbox.update(text, topic))
    }

    /// Answers a ping.
    pub fn pong(&self, payload: Bytes) {
        let _ = self.change(|shared| {
            shared.pong = Some(payload);
            Ok(())
        });
    }

    /// Sends what waits and then closes with this code. Only the first close counts.
    pub fn close(&self, code: u16, reason: &str) {
        let mut shared = self.lock();
        if shared.close.is_none() {
            shared.close = Some(CloseReason {
                code: CloseCode::from(code),
                description: Some(reason.to_owned()),
            });
            shared.wake();
        }
    }

    /// Forgets what waits and closes with this code.
    pub fn close_now(&self, code: u16, reason: &str) {
        self.lock().outbox.clear();
        self.close(code, reason);
    }

    /// Whether the connection is being closed: what still comes in does not count.
    pub fn is_closing(&self) -> bool {
        let shared = self.lock();
        shared.ended || shared.close.is_some()
    }

    /// Whether nothing can be sent any more.
    pub fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// For how long something has been waiting without the peer taking anything.
    pub fn stalled_for(&self) -> Duration {
        let shared = self.lock();
        if shared.outbox.is_empty() {
            Duration::ZERO
        } else {
            shared.moved_at.elapsed()
        }
    }

    fn change(
        &self,
        add: impl FnOnce(&mut Shared) -> Result<(), Overflow>,
    ) -> Result<(), Overflow> {
        let mut shared = self.lock();
        if shared.ended || shared.close.is_some() {
            return Ok(());
        }
        if shared.outbox.is_empty() {
            shared.moved_at = Instant::now();
        }
        let added = add(&mut shared);
        shared.wake();
        added
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }
}

impl Shared {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A panic while the lock was held leaves a queue that is still whole: every change of it is one step.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Frames {
    fn next_chunk(&mut self, shared: &mut Shared) -> Result<BytesMut, ProtocolError> {
        let mut chunk = BytesMut::new();
        if let Some(payload) = shared.pong.take() {
            self.codec.encode(Message::Pong(payload), &mut chunk)?;
        }
        while chunk.len() < CHUNK_BYTES {
            let Some(text) = shared.outbox.pop() else {
                if let Some(reason) = shared.close.clone() {
                    self.codec
                        .encode(Message::Close(Some(reason)), &mut chunk)?;
                    shared.ended = true;
                }
                break;
            };
            self.codec.encode(Message::Text(text), &mut chunk)?;
        }
        Ok(chunk)
    }
}

impl Stream for Frames {
    type Item = Result<Bytes, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let state = this.shared.clone();
        let mut shared = lock(&state);
        if shared.ended {
            return Poll::Ready(None);
        }
        match this.next_chunk(&mut shared) {
            Ok(chunk) if chunk.is_empty() => {
                shared.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Ok(chunk) => {
                shared.moved_at = Instant::now();
                Poll::Ready(Some(Ok(chunk.freeze())))
            }
            Err(error) => {
                shared.ended = true;
                Poll::Ready(Some(Err(Error::from(std::io::Error::other(
                    error.to_string(),
                )))))
            }
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.ended = true;
        shared.outbox.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;
    use futures_util::future::FutureExt;

    fn next(frames: &mut Frames) -> Option<Bytes> {
        frames
            .next()
            .now_or_never()
            .flatten()
            .map(|chunk| chunk.unwrap())
    }

    #[tokio::test]
    async fn frames_come_out_in_order_and_then_the_close() {
        let (outgoing, mut frames) = Outgoing::new(1000, 10);
        outgoing.push("a".into(), None).unwrap();
        outgoing.push("b".into(), None).unwrap();
        outgoing.close(4409, "replaced");
        outgoing.close(1001, "too late");
        outgoing.push("c".into(), None).unwrap();
        let bytes = next(&mut frames).unwrap();
        assert_eq!(&bytes[..6], b"\x81\x01a\x81\x01b");
        assert_eq!(&bytes[6..10], [0x88, 10, 0x11, 0x39], "close with 4409");
        assert!(outgoing.has_ended());
        assert_eq!(frames.next().await.map(|chunk| chunk.is_ok()), None);
    }

    #[tokio::test]
    async fn g034_of_many_pings_only_the_last_is_answered() {
        let (outgoing, mut frames) = Outgoing::new(1000, 10);
        for number in 0..1000_u32 {
            outgoing.pong(Bytes::copy_from_slice(&number.to_be_bytes()));
        }
        let bytes = next(&mut frames).unwrap();
        assert_eq!(&bytes[..], [0x8a, 4, 0, 0, 3, 231]);
        assert_eq!(next(&mut frames), None);
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_noticed_and_one_with_nothing_to_take_is_not() {
        let (outgoing, mut frames) = Outgoing::new(1000, 10);
        let earlier = |by: u64| outgoing.lock().moved_at -= Duration::from_secs(by);
        earlier(60);
        assert_eq!(outgoing.stalled_for(), Duration::ZERO);
        outgoing.push("a".into(), None).unwrap();
        assert!(outgoing.stalled_for() < Duration::from_secs(10));
        earlier(20);
        outgoing.push("b".into(), None).unwrap();
        earlier(10);
        assert!(outgoing.stalled_for() >= Duration::from_secs(30));
        next(&mut frames).unwrap();
        assert_eq!(outgoing.stalled_for(), Duration::ZERO);
        outgoing.push("c".into(), None).unwrap();
        assert!(outgoing.stalled_for() < Duration::from_secs(10));
    }

    #[tokio::test]
    async fn a_connection_that_is_gone_takes_nothing_in() {
        let (outgoing, frames) = Outgoing::new(1000, 10);
        outgoing.push("a".into(), None).unwrap();
        drop(frames);
        assert!(outgoing.has_ended());
        outgoing.push("b".into(), None).unwrap();
        assert_eq!(outgoing.stalled_for(), Duration::ZERO);
    }
}
