//! The receiving side of one WebSocket: fragments put together under limits, faults turned into close codes,
//! and the count of messages that had to be answered with `error`.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Duration;

use actix_http::ws::{Item, Message, ProtocolError};
use actix_web::error::PayloadError;
use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use trainyard_shared::frame::{MAX_ERRORS_PER_MINUTE, close};

use super::rate::{FrameMeter, FrameRate};
use crate::clock::Moment;

/// A message may come in so many fragments.
const MAX_FRAGMENTS: usize = 1024;
/// The minute in which [`MAX_ERRORS_PER_MINUTE`] are counted.
const ERROR_WINDOW: Duration = Duration::from_secs(60);
/// A close code of the WebSocket protocol itself that the wire's own table does not name.
const PROTOCOL_ERROR: u16 = 1002;

/// What a frame comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A whole text message.
    Text(ByteString),
    /// A ping, to be answered with this payload.
    Ping(Bytes),
    /// Nothing to do: a pong, or a fragment of what is still to come.
    Nothing,
    /// The other side closes.
    Closed,
    /// The connection must be closed.
    Fault(Fault),
}

/// Why a connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The close code.
    pub code: u16,
    /// For a person.
    pub reason: &'static str,
}

/// Puts messages together.
#[derive(Debug)]
pub struct Incoming {
    max_bytes: usize,
    fragments: usize,
    collected: BytesMut,
    meter: FrameMeter,
    errors: VecDeque<Moment>,
}

impl Incoming {
    /// For text messages of so many bytes at most, in frames that come at most so fast.
    pub fn new(max_bytes: usize, rate: FrameRate) -> Self {
        Self {
            max_bytes,
            fragments: 0,
            collected: BytesMut::new(),
            meter: FrameMeter::new(rate),
            errors: VecDeque::new(),
        }
    }

    /// Takes one frame in.
    pub fn take(&mut self, frame: Result<Message, ProtocolError>, now: Moment) -> Received {
        if !self.meter.take(now) {
            return fault(close::RATE_LIMITED, "too many messages");
        }
        match frame {
            Ok(Message::Text(text)) => self.whole(text),
            Ok(Message::Ping(payload)) => Received::Ping(payload),
            Ok(Message::Pong(_) | Message::Nop) => Received::Nothing,
            Ok(Message::Close(_)) => Received::Closed,
            Ok(Message::Binary(_) | Message::Continuation(Item::FirstBinary(_))) => {
                fault(close::UNSUPPORTED, "only text is spoken here")
            }
            Ok(Message::Continuation(Item::FirstText(part) | Item::Continue(part))) => {
                match self.collect(&part) {
                    Ok(()) => Received::Nothing,
                    Err(fault) => Received::Fault(fault),
                }
            }
            Ok(Message::Continuation(Item::Last(part))) => match self.collect(&part) {
                Ok(()) => self.last(),
                Err(fault) => Received::Fault(fault),
            },
            Err(error) => Received::Fault(fault_of(&error)),
        }
    }

    /// Counts an `error` answer. True when it was one too many.
    pub fn count_error(&mut self, now: Moment) -> bool {
        while self
            .errors
            .front()
            .is_some_and(|at| now.since(*at) >= ERROR_WINDOW)
        {
            self.errors.pop_front();
        }
        self.errors.push_back(now);
        self.errors.len() >= MAX_ERRORS_PER_MINUTE
    }

    fn whole(&self, text: ByteString) -> Received {
        if text.len() > self.max_bytes {
            return fault(close::TOO_BIG, "the message is too large");
        }
        Received::Text(text)
    }

    fn collect(&mut self, part: &[u8]) -> Result<(), Fault> {
        self.fragments += 1;
        if self.fragments > MAX_FRAGMENTS {
            let reason = "the message comes in too many fragments";
            return Err(Fault {
                code: close::TOO_BIG,
                reason,
            });
        }
        if self.collected.len() + part.len() > self.max_bytes {
            return Err(Fault {
                code: close::TOO_BIG,
                reason: "the message is too large",
            });
        }
        self.collected.extend_from_slice(part);
        Ok(())
    }

    fn last(&mut self) -> Received {
        self.fragments = 0;
        match ByteString::try_from(std::mem::take(&mut self.collected).freeze()) {
            Ok(text) => Received::Text(text),
            Err(_) => fault(close::INVALID_UTF8, "text must be UTF-8"),
        }
    }
}

fn fault(code: u16, reason: &'static str) -> Received {
    Received::Fault(Fault { code, reason })
}

fn fault_of(error: &ProtocolError) -> Fault {
    let fault = |code, reason| Fault { code, reason };
    match error {
        ProtocolError::Overflow => fault(close::TOO_BIG, "the frame is too large"),
        // The reader turns what the payload ends with, and what is no UTF-8, into I/O errors: their text is all
        // that is left of them.
        ProtocolError::Io(error) => match error.to_string() {
            text if text == PayloadError::Overflow.to_string() => {
                fault(close::TOO_BIG, "the frame is too large")
            }
            text if text.contains("utf-8") => fault(close::INVALID_UTF8, "text must be UTF-8"),
            text if error.kind() == ErrorKind::InvalidData => {
                tracing::debug!(text, "broken frame");
                fault(PROTOCOL_ERROR, "not a WebSocket frame")
            }
            _ => fault(close::GOING_AWAY, "the connection broke off"),
        },
        _ => fault(PROTOCOL_ERROR, "not a WebSocket frame"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rate::OF_WORKER;
    use super::*;

    fn part(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn take(incoming: &mut Incoming, frame: Result<Message, ProtocolError>) -> Received {
        incoming.take(frame, Moment::START)
    }

    fn code(received: Received) -> u16 {
        match received {
            Received::Fault(fault) => fault.code,
            other => panic!("{other:?} is no fault"),
        }
    }

    #[test]
    fn g031_a_message_in_fragments_is_put_together() {
        let mut incoming = Incoming::new(300_000, OF_WORKER);
        let first = Message::Continuation(Item::FirstText(part("\u{00fc}b")));
        assert_eq!(take(&mut incoming, Ok(first)), Received::Nothing);
        for _ in 0..270 {
            let more = Message::Continuation(Item::Continue(Bytes::from(vec![b'x'; 1000])));
            assert_eq!(take(&mut incoming, Ok(more)), Received::Nothing);
        }
        assert_eq!(
            take(&mut incoming, Ok(Message::Ping(part("p")))),
            Received::Ping(part("p"))
        );
        let last = Message::Continuation(Item::Last(part("er")));
        let Received::Text(text) = take(&mut incoming, Ok(last)) else {
            panic!()
        };
        assert_eq!(text.len(), 3 + 270_000 + 2);
        assert!(text.starts_with("\u{00fc}bx") && text.ends_with("xer"));
    }

    #[test]
    fn g030_endless_empty_fragments_are_ended() {
        let mut incoming = Incoming::new(1000, OF_WORKER);
        take(
            &mut incoming,
            Ok(Message::Continuation(Item::FirstText(part("x")))),
        );
        let mut taken = 1;
        loop {
            match take(
                &mut incoming,
                Ok(Message::Continuation(Item::Continue(Bytes::new()))),
            ) {
                Received::Nothing => taken += 1,
                ended => break assert_eq!(code(ended), close::TOO_BIG),
            }
        }
        assert_eq!(taken, MAX_FRAGMENTS);
    }

    #[test]
    fn g031_what_is_too_large_is_refused_in_one_piece_and_in_many() {
        let mut incoming = Incoming::new(10, OF_WORKER);
        let long = Message::Text("12345678901".into());
        assert_eq!(code(take(&mut incoming, Ok(long))), close::TOO_BIG);
        take(
            &mut incoming,
            Ok(Message::Continuation(Item::FirstText(part("123456")))),
        );
        let more = Message::Continuation(Item::Last(part("78901")));
        assert_eq!(code(take(&mut incoming, Ok(more))), close::TOO_BIG);
        assert_eq!(
            code(take(&mut incoming, Err(ProtocolError::Overflow))),
            close::TOO_BIG
        );
    }

    #[test]
    fn binary_is_not_spoken() {
        let mut incoming = Incoming::new(10, OF_WORKER);
        assert_eq!(
            code(take(&mut incoming, Ok(Message::Binary(part("x"))))),
            close::UNSUPPORTED
        );
        let first = Message::Continuation(Item::FirstBinary(part("x")));
        assert_eq!(code(take(&mut incoming, Ok(first))), close::UNSUPPORTED);
    }

    #[test]
    fn fragments_that_are_no_utf_8_together_are_refused() {
        let mut incoming = Incoming::new(10, OF_WORKER);
        let half = Bytes::from_static(b"\xc3");
        take(
            &mut incoming,
            Ok(Message::Continuation(Item::FirstText(half))),
        );
        let last = Message::Continuation(Item::Last(part("x")));
        assert_eq!(code(take(&mut incoming, Ok(last))), close::INVALID_UTF8);
    }

    #[test]
    fn a_flood_is_ended() {
        let rate = FrameRate {
            burst: 3,
            per_second: 1,
        };
        let mut incoming = Incoming::new(10, rate);
        for _ in 0..3 {
            assert_eq!(take(&mut incoming, Ok(Message::Nop)), Received::Nothing);
        }
        let fourth = take(&mut incoming, Ok(Message::Ping(part("x"))));
        assert_eq!(code(fourth), close::RATE_LIMITED);
    }

    #[test]
    fn twenty_errors_within_a_minute_are_too_many() {
        let mut incoming = Incoming::new(10, OF_WORKER);
        let at = |seconds: u64| Moment::from_millis(seconds * 1000);
        for second in 0..19 {
            assert!(!incoming.count_error(at(second)));
        }
        assert!(!incoming.count_error(at(60)), "the first is a minute old");
        assert!(incoming.count_error(at(60)));
    }
}
