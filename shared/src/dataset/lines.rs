//! Splits a stream of bytes into lines, in bounded memory.

/// Longest line that is kept, in bytes without its line end.
pub const MAX_LINE_BYTES: usize = 64 * 1024 * 1024;

/// A line was longer than the limit. It is skipped to its end; the lines after it come as usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line over limit: longer than {limit_bytes} bytes")]
pub struct LineOverLimit {
    /// The limit, in bytes.
    pub limit_bytes: usize,
}

/// Takes chunks of a file as they come and gives its lines, numbered from 1.
///
/// A byte-order mark at the file's beginning and the `\r` of a CRLF do not belong to a line. Lines of
/// white space only are counted and not given. At most one line is held in memory.
#[derive(Debug)]
pub struct LineSplitter {
    limit_bytes: usize,
    /// Number of the line that is being collected, from 1.
    number: u64,
    /// What earlier chunks held of that line.
    begun: Vec<u8>,
    /// Whether that line is over the limit already, reported, and skipped.
    skipping: bool,
}

impl Default for LineSplitter {
    fn default() -> Self {
        Self::new()
    }
}

impl LineSplitter {
    /// A splitter with a limit of [`MAX_LINE_BYTES`].
    pub const fn new() -> Self {
        Self::with_limit(MAX_LINE_BYTES)
    }

    /// A splitter with a limit of its own.
    pub const fn with_limit(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            number: 1,
            begun: Vec::new(),
            skipping: false,
        }
    }

    /// Takes the next bytes of the file and gives each line that ends in them: its number and its
    /// bytes without line end.
    pub fn feed(&mut self, chunk: &[u8], mut line: impl FnMut(u64, Result<&[u8], LineOverLimit>)) {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (head, tail) = rest.split_at(end);
            self.collect(head, &mut line);
            self.give(&mut line);
            rest = &tail[1..];
        }
        self.collect(rest, &mut line);
    }

    /// Gives the last line, where the file does not end with a line end.
    pub fn finish(mut self, mut line: impl FnMut(u64, Result<&[u8], LineOverLimit>)) {
        self.give(&mut line);
    }

    fn collect(&mut self, bytes: &[u8], line: &mut impl FnMut(u64, Result<&[u8], LineOverLimit>)) {
        if self.skipping {
            return;
        }
        // A `\r` before the line end may put the line one byte over; it is taken off later.
        if self.begun.len() + bytes.len() > self.limit_bytes + 1 {
            self.begun = Vec::new();
            self.skipping = true;
            line(
                self.number,
                Err(LineOverLimit {
                    limit_bytes: self.limit_bytes,
                }),
            );
        } else {
            self.begun.extend_from_slice(bytes);
        }
    }

    fn give(&mut self, line: &mut impl FnMut(u64, Result<&[u8], LineOverLimit>)) {
        if !self.skipping {
            let bytes = self.begun.strip_suffix(b"\r").unwrap_or(&self.begun);
            let bytes = if self.number == 1 {
                bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
            } else {
                bytes
            };
            if bytes.len() > self.limit_bytes {
                line(
                    self.number,
                    Err(LineOverLimit {
                        limit_bytes: self.limit_bytes,
                    }),
                );
            } else if !bytes.iter().all(u8::is_ascii_whitespace) {
                line(self.number, Ok(bytes));
            }
        }
        self.begun.clear();
        self.skipping = false;
        self.number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lines = Vec<(u64, Result<Vec<u8>, LineOverLimit>)>;

    fn split(chunks: &[&[u8]], limit_bytes: usize) -> Lines {
        let mut lines = Vec::new();
        let mut keep = |number, line: Result<&[u8], LineOverLimit>| {
            lines.push((number, line.map(<[u8]>::to_vec)))
        };
        let mut splitter = LineSplitter::with_limit(limit_bytes);
        for chunk in chunks {
            splitter.feed(chunk, &mut keep);
        }
        splitter.finish(&mut keep);
        lines
    }

    fn lines(expected: &[(u64, &str)]) -> Lines {
        expected
            .iter()
            .map(|(number, text)| (*number, Ok(text.as_bytes().to_vec())))
            .collect()
    }

    #[test]
    fn g062_a_byte_order_mark_is_no_part_of_the_first_line() {
        let file = b"\xef\xbb\xbf{\"text\":\"a\"}\n{\"text\":\"b\"}\n";
        let expected = lines(&[(1, r#"{"text":"a"}"#), (2, r#"{"text":"b"}"#)]);
        assert_eq!(split(&[file], 100), expected);
        // The mark may be cut by a chunk's border.
        assert_eq!(split(&[&file[..2], &file[2..]], 100), expected);
    }

    #[test]
    fn g063_blank_lines_count_and_are_not_given_and_no_cr_stays() {
        let file = b"{\"text\":\"a\"}\r\n\r\n \t\r\n{\"text\":\"b\"}";
        assert_eq!(
            split(&[file], 100),
            lines(&[(1, r#"{"text":"a"}"#), (4, r#"{"text":"b"}"#)])
        );
    }

    #[test]
    fn lines_are_the_same_however_the_file_is_cut() {
        let file = b"one\r\n\ntwo\n three \r\nfour";
        let whole = split(&[file], 100);
        for size in 1..file.len() {
            let chunks: Vec<_> = file.chunks(size).collect();
            assert_eq!(split(&chunks, 100), whole, "chunks of {size}");
        }
    }

    #[test]
    fn g065_a_line_over_the_limit_is_reported_once_and_the_next_one_is_given() {
        let over = Err(LineOverLimit { limit_bytes: 5 });
        assert_eq!(
            split(&[b"12345\n123456", b"789", b"0\nok\n"], 5),
            vec![
                (1, Ok(b"12345".to_vec())),
                (2, over.clone()),
                (3, Ok(b"ok".to_vec()))
            ]
        );
        assert_eq!(
            split(&[b"12345\r\n123456\r\n"], 5),
            vec![(1, Ok(b"12345".to_vec())), (2, over)]
        );
    }

    #[test]
    fn g065_a_file_without_a_line_end_is_held_only_to_the_limit() {
        let mut splitter = LineSplitter::with_limit(1000);
        let mut reported = 0;
        for _ in 0..100_000 {
            splitter.feed(&[b'x'; 100], |number, line| {
                assert_eq!(
                    (number, line),
                    (1, Err(LineOverLimit { limit_bytes: 1000 }))
                );
                reported += 1;
            });
            assert!(splitter.begun.capacity() <= 2048);
        }
        assert_eq!(reported, 1);
    }

    #[test]
    fn an_empty_file_has_no_lines() {
        assert_eq!(split(&[], 100), vec![]);
        assert_eq!(split(&[b"\n"], 100), vec![]);
    }
}
