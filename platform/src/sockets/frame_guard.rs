//! Refuses a frame by the length in its header, before any of it is buffered. The WebSocket codec itself
//! compares a frame with its limit only once all of it is in memory.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::error::PayloadError;
use actix_web::web;
use bytes::Bytes;
use futures_util::Stream;

/// Longest header: two bytes, eight of length, four of mask.
const MAX_HEADER_BYTES: usize = 14;

/// The bytes of a connection, which end with [`PayloadError::Overflow`] at a frame that is too large.
pub struct GuardedPayload {
    payload: web::Payload,
    scanner: FrameScanner,
}

impl GuardedPayload {
    /// Lets frames of so many bytes at most pass.
    pub fn new(payload: web::Payload, max_frame_bytes: usize) -> Self {
        Self {
            payload,
            scanner: FrameScanner::new(max_frame_bytes as u64),
        }
    }
}

impl Stream for GuardedPayload {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        match Pin::new(&mut this.payload).poll_next(cx) {
            Poll::Ready(Some(Ok(chunk))) => {
                let fits = this.scanner.take(&chunk);
                let passed = fits.map(|()| chunk).map_err(|_| PayloadError::Overflow);
                Poll::Ready(Some(passed))
            }
            other => other,
        }
    }
}

/// Follows the frames in a stream of bytes from header to header.
#[derive(Debug)]
struct FrameScanner {
    max_bytes: u64,
    header: [u8; MAX_HEADER_BYTES],
    header_bytes: usize,
    /// Bytes of the present frame's payload that are still to come.
    payload_bytes: u64,
}

/// A header announces a frame that is too large.
#[derive(Debug, PartialEq, Eq)]
struct TooLarge;

impl FrameScanner {
    fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            header: [0; MAX_HEADER_BYTES],
            header_bytes: 0,
            payload_bytes: 0,
        }
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), TooLarge> {
        while !bytes.is_empty() {
            if self.payload_bytes > 0 {
                let here = self.payload_bytes.min(bytes.len() as u64);
                self.payload_bytes -= here;
                bytes = &bytes[here as usize..];
                continue;
            }
            self.header[self.header_bytes] = bytes[0];
            self.header_bytes += 1;
            bytes = &bytes[1..];
            if let Some(length) = self.announced() {
                if length > self.max_bytes {
                    return Err(TooLarge);
                }
                self.payload_bytes = length;
                self.header_bytes = 0;
            }
        }
        Ok(())
    }

    /// The length of the payload, once the header is whole.
    fn announced(&self) -> Option<u64> {
        let header = self.header.get(..self.header_bytes)?;
        let second = *header.get(1)?;
        let short = second & 0x7f;
        let extended = match short {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = if second & 0x80 != 0 { 4 } else { 0 };
        if header.len() < 2 + extended + mask {
            return None;
        }
        if extended == 0 {
            return Some(u64::from(short));
        }
        let bytes = header.get(2..2 + extended)?;
        Some(
            bytes
                .iter()
                .fold(0, |length, byte| length << 8 | u64::from(*byte)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: usize) -> Vec<u8> {
        let mut frame = vec![0x81];
        match length {
            0..126 => frame.push(0x80 | length as u8),
            126..65_536 => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            _ => {
                frame.push(0x80 | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend([9, 9, 9, 9]);
        frame.extend(vec![0xff; length]);
        frame
    }

    #[test]
    fn frames_within_the_limit_pass_however_they_are_cut() {
        let bytes: Vec<u8> = [0, 1, 125, 126, 1000, 65_535, 65_536, 0, 100_000]
            .into_iter()
            .flat_map(frame)
            .collect();
        for size in [1, 2, 3, 7, 1000, bytes.len()] {
            let mut scanner = FrameScanner::new(100_000);
            for chunk in bytes.chunks(size) {
                assert_eq!(scanner.take(chunk), Ok(()));
            }
            assert_eq!((scanner.header_bytes, scanner.payload_bytes), (0, 0));
        }
    }

    #[test]
    fn g029_a_frame_over_the_limit_is_refused_by_its_header_alone() {
        for length in [100_001, 1 << 32, 1 << 63, u64::MAX] {
            let mut scanner = FrameScanner::new(100_000);
            let mut bytes = frame(5);
            bytes.extend([0x82, 0xff]);
            bytes.extend(length.to_be_bytes());
            assert_eq!(scanner.take(&bytes), Ok(()));
            assert_eq!(scanner.take(&[1, 2, 3, 4]), Err(TooLarge), "{length}");
        }
    }
}
