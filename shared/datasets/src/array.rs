//! Elements of one JSON array, told apart as they come.
//!
//! Only brackets, strings and commas are looked at here: each element's bytes are read by the strict JSON reader
//! when it becomes a row, so a bad element is a bad row and the next one is found all the same.

use std::io::BufRead;

use crate::error::DatasetError;
use crate::lines::BYTE_ORDER_MARK;
use crate::record::Place;

/// An element was longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ElementOverLimit;

/// Reads the elements of an array, numbered from 1.
#[derive(Debug)]
pub(crate) struct Elements<R> {
    reader: R,
    limit_bytes: usize,
    line: u64,
    element: u64,
    expected: Expected,
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Opening,
    FirstElement,
    Element,
    Comma,
    Nothing,
}

/// How far into an element the reading is.
#[derive(Debug, Default)]
struct Scan {
    depth: usize,
    in_string: bool,
    after_backslash: bool,
    /// The bracket is closed with which it began.
    is_closed: bool,
}

impl<R: BufRead> Elements<R> {
    pub(crate) const fn new(reader: R, limit_bytes: usize) -> Self {
        Self {
            reader,
            limit_bytes,
            line: 1,
            element: 0,
            expected: Expected::Opening,
        }
    }

    /// The next element with its place.
    ///
    /// # Errors
    /// Whatever keeps the elements from being told apart: a missing comma or bracket, text behind the array.
    #[expect(
        clippy::type_complexity,
        reason = "a pair of a place and what is there"
    )]
    pub(crate) fn next(
        &mut self,
    ) -> Result<Option<(Place, Result<Vec<u8>, ElementOverLimit>)>, DatasetError> {
        if self.expected == Expected::Opening {
            self.skip_mark()?;
        }
        loop {
            let Some(byte) = self.next_visible()? else {
                return match self.expected {
                    // A file without anything in it has no rows.
                    Expected::Opening | Expected::Nothing => Ok(None),
                    _ => Err(self.damaged("the file ends before the array does: `]` is missing")),
                };
            };
            match (self.expected, byte) {
                (Expected::Opening, b'[') => self.expected = Expected::FirstElement,
                (Expected::FirstElement | Expected::Comma, b']') => {
                    self.expected = Expected::Nothing;
                }
                (Expected::Comma, b',') => self.expected = Expected::Element,
                (Expected::Element, b']') => {
                    return Err(self.damaged("a comma stands before the array's `]`"));
                }
                (Expected::FirstElement | Expected::Element, b',' | b'}' | b':') => {
                    return Err(self.unexpected(byte, "an element"));
                }
                (Expected::FirstElement | Expected::Element, _) => {
                    self.element += 1;
                    self.expected = Expected::Comma;
                    let place = Place::Element {
                        element: self.element,
                        line: self.line,
                    };
                    return Ok(Some((place, self.element(place)?)));
                }
                (Expected::Opening, _) => return Err(self.unexpected(byte, "`[`")),
                (Expected::Comma, _) => return Err(self.unexpected(byte, "`,` or `]`")),
                (Expected::Nothing, _) => {
                    return Err(self.damaged(
                        "the array has ended, and more follows: a file holds one array (or, as jsonl, an object a line)",
                    ));
                }
            }
            self.reader.consume(1);
        }
    }

    fn skip_mark(&mut self) -> Result<(), DatasetError> {
        for expected in BYTE_ORDER_MARK {
            if self.reader.fill_buf()?.first() != Some(expected) {
                break;
            }
            self.reader.consume(1);
        }
        Ok(())
    }

    /// The next byte that is not white space, which is left where it is.
    fn next_visible(&mut self) -> Result<Option<u8>, DatasetError> {
        loop {
            let chunk = self.reader.fill_buf()?;
            if chunk.is_empty() {
                return Ok(None);
            }
            let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
            let count = chunk.iter().take_while(|byte| blank(byte)).count();
            self.line += line_ends(&chunk[..count]);
            let visible = chunk.get(count).copied();
            self.reader.consume(count);
            if visible.is_some() {
                return Ok(visible);
            }
        }
    }

    /// The bytes of the element that begins here.
    fn element(&mut self, place: Place) -> Result<Result<Vec<u8>, ElementOverLimit>, DatasetError> {
        let (mut bytes, mut is_over, mut scan) = (Vec::new(), false, Scan::default());
        loop {
            let chunk = self.reader.fill_buf()?;
            if chunk.is_empty() {
                return Err(DatasetError::damaged(
                    place,
                    "the file ends within this element",
                ));
            }
            let end = chunk.iter().position(|byte| scan.ends_before(*byte));
            let taken = &chunk[..end.unwrap_or(chunk.len())];
            self.line += line_ends(taken);
            is_over |= bytes.len() + taken.len() > self.limit_bytes;
            if is_over {
                bytes = Vec::new();
            } else {
                bytes.extend_from_slice(taken);
            }
            let count = taken.len();
            self.reader.consume(count);
            if end.is_some() {
                return Ok(if is_over {
                    Err(ElementOverLimit)
                } else {
                    Ok(bytes)
                });
            }
        }
    }

    fn unexpected(&self, byte: u8, expected: &str) -> DatasetError {
        let found = if byte.is_ascii_graphic() {
            format!("`{}`", char::from(byte))
        } else {
            format!("byte {byte:#04x}")
        };
        self.damaged(&format!("{expected} is expected, not {found}"))
    }

    fn damaged(&self, message: &str) -> DatasetError {
        let message = match self.element {
            0 => message.to_owned(),
            element => format!("after element {element}: {message}"),
        };
        DatasetError::damaged(Place::Line(self.line), message)
    }
}

impl Scan {
    /// Takes the next byte, unless the element has ended before it.
    fn ends_before(&mut self, byte: u8) -> bool {
        if self.in_string {
            if self.after_backslash {
                self.after_backslash = false;
            } else {
                self.after_backslash = byte == b'\\';
                self.in_string = byte != b'"';
            }
            return false;
        }
        match byte {
            _ if self.is_closed => return true,
            b',' | b']' | b'}' if self.depth == 0 => return true,
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth -= 1;
                self.is_closed = self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

fn line_ends(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Chunks, in_chunks_of_any_size};

    type Element = (Place, Result<Vec<u8>, ElementOverLimit>);

    fn read_in(reader: Chunks) -> (Vec<Element>, Option<String>) {
        let (mut elements, mut found) = (Elements::new(reader, 40), Vec::new());
        loop {
            match elements.next() {
                Ok(Some(element)) => found.push(element),
                Ok(None) => return (found, None),
                Err(error) => {
                    let place = error
                        .place()
                        .map_or_else(String::new, |place| place.to_string());
                    return (found, Some(format!("{place}: {error}")));
                }
            }
        }
    }

    fn read(file: &str) -> (Vec<Element>, Option<String>) {
        in_chunks_of_any_size(file.as_bytes(), read_in)
    }

    fn element(element: u64, line: u64, text: &str) -> Element {
        (
            Place::Element { element, line },
            Ok(text.as_bytes().to_vec()),
        )
    }

    #[test]
    fn elements_come_with_their_number_and_their_line() {
        let (elements, error) = read("\u{feff}[\r\n {\"a\": \"]},\\\"\"},\n\n  [1, {}] ,2]\n ");
        assert_eq!(error, None);
        assert_eq!(
            elements,
            [
                element(1, 2, "{\"a\": \"]},\\\"\"}"),
                element(2, 4, "[1, {}]"),
                element(3, 4, "2")
            ]
        );
        assert_eq!(read("[]"), (vec![], None));
        assert_eq!(read(" "), (vec![], None));
    }

    #[test]
    fn an_element_over_the_limit_is_passed_over() {
        let long = "x".repeat(50);
        let (elements, error) = read(&format!("[\"{long}\", 1]"));
        assert_eq!(error, None);
        assert_eq!(elements[0].1, Err(ElementOverLimit));
        assert_eq!(elements[1], element(2, 1, "1"));
    }

    #[test]
    fn what_breaks_the_array_is_named_with_its_line() {
        for (file, elements, message) in [
            (
                "[1,\n]",
                1,
                "line 2: after element 1: a comma stands before the array's `]`",
            ),
            (
                "[1",
                0,
                "element 1 (line 1): the file ends within this element",
            ),
            (
                "[1\n,",
                1,
                "line 2: after element 1: the file ends before the array does: `]` is missing",
            ),
            (
                "[[1]\n[2]]",
                1,
                "line 2: after element 1: `,` or `]` is expected, not `[`",
            ),
            (
                "[1][2]",
                1,
                "line 1: after element 1: the array has ended, and more follows",
            ),
            ("[,1]", 0, "line 1: an element is expected, not `,`"),
            ("{\"a\":1}", 0, "line 1: `[` is expected, not `{`"),
        ] {
            let (found, error) = read(file);
            let error = error.unwrap();
            assert!(error.starts_with(message), "{file}: {error}");
            assert_eq!(found.len(), elements, "{file}: {error}");
        }
    }
}
