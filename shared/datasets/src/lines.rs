//! Lines of a stream, in bounded memory.

use std::io::{self, BufRead, Read};

/// The byte-order mark of UTF-8.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A line was longer than the limit. It is skipped to its end; the lines after it come as usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LineOverLimit;

/// A line's number and its bytes.
pub(crate) type Line = (u64, Result<Vec<u8>, LineOverLimit>);

/// Reads lines, numbered from 1.
///
/// A byte-order mark at the beginning and the `\r` of a CRLF do not belong to a line. Lines of white space only are
/// counted and not given. At most one line is held in memory.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: R,
    limit_bytes: usize,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(crate) const fn new(reader: R, limit_bytes: usize) -> Self {
        Self {
            reader,
            limit_bytes,
            number: 0,
        }
    }

    /// The next line that is not blank: its number and its bytes without line end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let mut line = Vec::new();
            // A `\r\n` may put a line two bytes over; it is taken off later.
            let most = self.limit_bytes as u64 + 2;
            let most = if self.number == 0 { most + 3 } else { most };
            if (&mut self.reader).take(most).read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            let is_whole = line.pop_if(|byte| *byte == b'\n').is_some();
            line.pop_if(|byte| *byte == b'\r');
            if self.number == 1 && line.starts_with(BYTE_ORDER_MARK) {
                line.drain(..BYTE_ORDER_MARK.len());
            }
            if line.len() > self.limit_bytes {
                if !is_whole {
                    self.skip_line()?;
                }
                return Ok(Some((self.number, Err(LineOverLimit))));
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Ok(Some((self.number, Ok(line))));
            }
        }
    }

    fn skip_line(&mut self) -> io::Result<()> {
        self.reader.skip_until(b'\n').map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_chunks_of_any_size;

    fn split(file: &[u8], limit_bytes: usize) -> Vec<Line> {
        in_chunks_of_any_size(file, |reader| {
            let mut lines = Lines::new(reader, limit_bytes);
            std::iter::from_fn(|| lines.next().unwrap()).collect()
        })
    }

    fn lines(expected: &[(u64, &str)]) -> Vec<Line> {
        expected
            .iter()
            .map(|(number, text)| (*number, Ok(text.as_bytes().to_vec())))
            .collect()
    }

    #[test]
    fn g062_a_byte_order_mark_is_no_part_of_the_first_line() {
        assert_eq!(
            split(b"\xef\xbb\xbf{\"text\":\"a\"}\n{\"text\":\"b\"}\n", 100),
            lines(&[(1, r#"{"text":"a"}"#), (2, r#"{"text":"b"}"#)])
        );
    }

    #[test]
    fn g063_blank_lines_count_and_are_not_given_and_no_cr_stays() {
        assert_eq!(
            split(b"{\"text\":\"a\"}\r\n\r\n \t\r\n{\"text\":\"b\"}", 100),
            lines(&[(1, r#"{"text":"a"}"#), (4, r#"{"text":"b"}"#)])
        );
    }

    #[test]
    fn line_ends_may_be_mixed() {
        assert_eq!(
            split(b"one\r\n\ntwo\n three \r\nfour", 100),
            lines(&[(1, "one"), (3, "two"), (4, " three "), (5, "four")])
        );
    }

    #[test]
    fn g065_a_line_over_the_limit_is_reported_once_and_the_next_one_is_given() {
        assert_eq!(
            split(b"12345\n1234567890\nok\n", 5),
            vec![
                (1, Ok(b"12345".to_vec())),
                (2, Err(LineOverLimit)),
                (3, Ok(b"ok".to_vec()))
            ]
        );
        assert_eq!(
            split(b"12345\r\n123456\r\nok", 5),
            vec![
                (1, Ok(b"12345".to_vec())),
                (2, Err(LineOverLimit)),
                (3, Ok(b"ok".to_vec()))
            ]
        );
    }

    #[test]
    fn an_empty_file_has_no_lines() {
        assert_eq!(split(b"", 100), vec![]);
        assert_eq!(split(b"\n", 100), vec![]);
        assert_eq!(split(b"\xef\xbb\xbf", 100), vec![]);
    }
}
