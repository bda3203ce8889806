//! Documents of a plain text: what stands between blank lines.

use std::io::{BufRead, Read};

use crate::error::DatasetError;
use crate::lines::BYTE_ORDER_MARK;
use crate::record::{Content, Place, Record};

/// A document longer than this, in bytes, becomes several rows, cut at a line's or a word's end.
pub const TEXT_ROW_BYTES: usize = 64 * 1024;

/// Reads documents.
///
/// Lines are joined by `\n` whatever their ends were; white space at a document's end is left out.
#[derive(Debug)]
pub(crate) struct Documents<R> {
    reader: R,
    /// Line ends that were read.
    lines: u64,
    /// What is read of the document, which begins on line `first_line`.
    begun: Vec<u8>,
    first_line: u64,
}

impl<R: BufRead> Documents<R> {
    pub(crate) const fn new(reader: R) -> Self {
        Self {
            reader,
            lines: 0,
            begun: Vec::new(),
            first_line: 1,
        }
    }

    /// The next document, or part of one.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, DatasetError> {
        loop {
            if self.begun.len() >= TEXT_ROW_BYTES {
                let cut = cut(&self.begun);
                let rest = self.begun.split_off(cut);
                return Ok(Some(self.give(rest)));
            }
            let start = self.begun.len();
            let most = (TEXT_ROW_BYTES - start + 1) as u64;
            let count = (&mut self.reader)
                .take(most)
                .read_until(b'\n', &mut self.begun)?;
            if count == 0 {
                let is_blank = self.begun.iter().all(u8::is_ascii_whitespace);
                return Ok((!is_blank).then(|| self.give(Vec::new())));
            }
            if self.lines == 0 && start == 0 && self.begun.starts_with(BYTE_ORDER_MARK) {
                self.begun.drain(..BYTE_ORDER_MARK.len());
            }
            if self.begun.ends_with(b"\r\n") {
                self.begun.truncate(self.begun.len() - 2);
                self.begun.push(b'\n');
            }
            if !self.begun.ends_with(b"\n") {
                continue;
            }
            self.lines += 1;
            let start = start.min(self.begun.len());
            let begins_line = start == 0 || self.begun[start - 1] == b'\n';
            if begins_line && self.begun[start..].iter().all(u8::is_ascii_whitespace) {
                if start > 0 {
                    return Ok(Some(self.give(Vec::new())));
                }
                self.begun.clear();
                self.first_line = self.lines + 1;
            }
        }
    }

    /// Gives what is begun, and goes on with `rest`.
    fn give(&mut self, rest: Vec<u8>) -> Record {
        let mut document = std::mem::replace(&mut self.begun, rest);
        let place = Place::Line(self.first_line);
        let ends = document.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.first_line = if self.begun.is_empty() {
            self.lines + 1
        } else {
            self.first_line + ends
        };
        let end = document
            .iter()
            .rposition(|byte| !byte.is_ascii_whitespace())
            .map_or(0, |last| last + 1);
        document.truncate(end);
        Record {
            place,
            content: Content::Text(document),
        }
    }
}

/// Where to cut a text: behind its last line end or else its last space in its second half, or else between characters.
fn cut(text: &[u8]) -> usize {
    let half = text.len() / 2;
    let behind_last = |wanted: u8| {
        let found = text[half..].iter().rposition(|byte| *byte == wanted)?;
        Some(half + found + 1)
    };
    let between_characters = || {
        let is_start = |byte: &u8| !(0x80..0xc0).contains(byte);
        text[text.len() - 4..]
            .iter()
            .rposition(is_start)
            .map_or(text.len(), |found| text.len() - 4 + found)
    };
    behind_last(b'\n')
        .or_else(|| behind_last(b' '))
        .unwrap_or_else(between_characters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Chunks, chunks_of, in_chunks_of_any_size};
    use trainyard_shared::dataset::Row;

    fn read_in(reader: Chunks) -> Vec<(u64, Result<String, String>)> {
        let mut documents = Documents::new(reader);
        let next = || documents.next().unwrap();
        std::iter::from_fn(next)
            .map(|record| {
                let text = match record.row() {
                    Ok(Row::Text(text)) => Ok(text),
                    Ok(row) => panic!("{row:?}"),
                    Err(problem) => Err(problem.to_string()),
                };
                (record.place.number(), text)
            })
            .collect()
    }

    fn read(file: &str) -> Vec<(u64, Result<String, String>)> {
        in_chunks_of_any_size(file.as_bytes(), read_in)
    }

    #[test]
    fn blank_lines_stand_between_documents() {
        let file = "\u{feff}\n\na\r\nb  \r\n \t\r\n\r\n  c\n\nd";
        assert_eq!(
            read(file),
            [
                (3, Ok("a\nb".to_owned())),
                (7, Ok("  c".to_owned())),
                (9, Ok("d".to_owned()))
            ]
        );
        assert_eq!(read(""), []);
        assert_eq!(read(" \n\n"), []);
    }

    #[test]
    fn bytes_that_are_no_text_make_a_bad_row() {
        let rows = read_in(chunks_of(3, b"a\n\n\xc3\x28\n\nb\0\n\nc\n"));
        assert_eq!(
            rows[1],
            (3, Err("text: invalid UTF-8 at byte 1".to_owned()))
        );
        assert_eq!(rows[2], (5, Err("text: a NUL byte at byte 2".to_owned())));
        assert_eq!(rows[3], (7, Ok("c".to_owned())));
    }

    #[test]
    fn a_long_document_becomes_several_rows_and_nothing_is_lost() {
        let lines: Vec<String> = (0..20_000).map(|n| format!("line number {n}")).collect();
        let words = "wörd ".repeat(30_000);
        let letters = "ö".repeat(100_000);
        for text in [lines.join("\n"), words.trim().to_owned(), letters] {
            let rows = read_in(chunks_of(1000, text.as_bytes()));
            assert!(rows.len() > 1);
            let mut joined = String::new();
            for (_, row) in &rows {
                let row = row.as_ref().unwrap();
                assert!(row.len() <= TEXT_ROW_BYTES + 1);
                joined += row;
            }
            let solid = |text: &str| text.replace([' ', '\n'], "");
            assert_eq!(solid(&joined), solid(&text));
        }
        let rows = read_in(chunks_of(1000, lines.join("\n").as_bytes()));
        let (line, second) = &rows[1];
        assert!(
            second
                .as_ref()
                .unwrap()
                .starts_with(&format!("line number {}\n", line - 1))
        );
    }
}
