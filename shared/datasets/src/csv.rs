//! Records of comma-separated values, by `csv-core`, with a limit on a record's length.
//!
//! The first record is the header. Of its columns those are kept whose names rows are made of; a quoted cell may
//! hold line ends, and a quote in it is written twice. An empty cell is a value that is missing, as for pandas and
//! `datasets`, also in quotes. Blank lines are skipped, and so are records of empty cells alone, which spreadsheets
//! leave behind.

use std::io::BufRead;
use std::sync::Arc;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use serde_json::{Map, Value};
use trainyard_shared::dataset::{DatasetFormat, ROW_KEYS};

use crate::MAX_ROW_BYTES;
use crate::error::{DatasetError, columns_in_words};
use crate::lines::BYTE_ORDER_MARK;
use crate::record::{Content, Place, Record, RecordProblem, column_value, text};

/// The longest header, and the most columns.
const MAX_HEADER_BYTES: usize = 1024 * 1024;
const MAX_COLUMNS: usize = 10_000;

/// The columns of a file.
#[derive(Debug, PartialEq)]
pub(crate) struct Header {
    /// Number and name of the columns that rows are made of.
    known: Vec<(usize, &'static str)>,
    columns: usize,
}

impl Header {
    fn new(cells: &[&str]) -> Result<Self, DatasetError> {
        let names: Vec<&str> = cells.iter().map(|name| name.trim()).collect();
        let mut known: Vec<(usize, &'static str)> = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let Some(key) = ROW_KEYS.into_iter().find(|key| key == name) else {
                continue;
            };
            if known.iter().any(|(_, there)| *there == key) {
                return Err(DatasetError::DuplicateColumn {
                    name: key.to_owned(),
                });
            }
            known.push((number, key));
        }
        let only_beside = |(_, name): &(usize, &str)| matches!(*name, "system" | "input" | "tools");
        if known.iter().all(only_beside) {
            return Err(DatasetError::NoKnownColumn {
                found: columns_in_words(names.into_iter()),
            });
        }
        Ok(Self {
            known,
            columns: cells.len(),
        })
    }

    /// A record's cells by their columns' names, without those that are empty.
    pub(crate) fn keys(
        &self,
        bytes: &[u8],
        ends: &[usize],
    ) -> Result<Map<String, Value>, RecordProblem> {
        if ends.len() != self.columns {
            return Err(RecordProblem::CellCount {
                found: ends.len(),
                expected: self.columns,
            });
        }
        let mut keys = Map::new();
        for (number, name) in &self.known {
            let cell = text(cell(bytes, ends, *number), name)?;
            if !cell.is_empty() {
                keys.insert((*name).to_owned(), column_value(name, cell)?);
            }
        }
        if keys.is_empty() {
            return Err(RecordProblem::NothingGiven);
        }
        Ok(keys)
    }
}

fn cell<'a>(bytes: &'a [u8], ends: &[usize], number: usize) -> &'a [u8] {
    let start = if number == 0 { 0 } else { ends[number - 1] };
    &bytes[start..ends[number]]
}

/// The character between cells: the format's own, or another one with which the header in `start` (the file's first
/// bytes) has a known column.
pub(crate) fn delimiter(format: DatasetFormat, start: &[u8]) -> u8 {
    let (own, others) = match format {
        DatasetFormat::Tsv => (b'\t', [b',', b';']),
        _ => (b',', [b';', b'\t']),
    };
    let knows_a_column = |delimiter: &u8| {
        let mut cells = Cells::new(start, *delimiter, MAX_HEADER_BYTES);
        matches!(cells.next(), Ok(Some(raw)) if raw.header().is_ok())
    };
    if knows_a_column(&own) {
        return own;
    }
    others.into_iter().find(knows_a_column).unwrap_or(own)
}

/// Reads records.
#[derive(Debug)]
pub(crate) struct CsvRecords<R> {
    cells: Cells<R>,
    header: Option<Arc<Header>>,
}

impl<R: BufRead> CsvRecords<R> {
    pub(crate) fn new(reader: R, delimiter: u8) -> Self {
        Self {
            cells: Cells::new(reader, delimiter, MAX_ROW_BYTES),
            header: None,
        }
    }

    /// The next record.
    ///
    /// # Errors
    /// A header that cannot be used; the system's errors.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, DatasetError> {
        let header = match &self.header {
            Some(header) => header.clone(),
            None => {
                let Some(first) = self.cells.next()? else {
                    return Ok(None);
                };
                let header = Arc::new(first.header()?);
                self.header = Some(header.clone());
                header
            }
        };
        let raw = loop {
            match self.cells.next()? {
                None => return Ok(None),
                Some(raw) if raw.is_blank() => {}
                Some(raw) => break raw,
            }
        };
        let content = match raw.problem {
            Some(problem) => Content::Problem(problem),
            None => Content::Cells {
                header,
                bytes: raw.bytes,
                ends: raw.ends,
            },
        };
        Ok(Some(Record {
            place: Place::Line(raw.line),
            content,
        }))
    }
}

/// Cells of one record.
#[derive(Debug, Default)]
struct RawRecord {
    line: u64,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    problem: Option<RecordProblem>,
}

impl RawRecord {
    fn is_blank(&self) -> bool {
        self.bytes.is_empty() && self.problem.is_none()
    }

    fn header(&self) -> Result<Header, DatasetError> {
        let place = Place::Line(self.line);
        if let Some(problem) = &self.problem {
            return Err(DatasetError::damaged(
                place,
                format!("the header: {problem}"),
            ));
        }
        let name = |number| {
            text(cell(&self.bytes, &self.ends, number), "the header")
                .map_err(|problem| DatasetError::damaged(place, problem.to_string()))
        };
        let names: Vec<&str> = (0..self.ends.len()).map(name).collect::<Result<_, _>>()?;
        Header::new(&names)
    }
}

#[derive(Debug)]
struct Cells<R> {
    reader: R,
    core: Box<Reader>,
    limit_bytes: usize,
    /// The line that comes next, from 1.
    line: u64,
    at_start: bool,
}

impl<R: BufRead> Cells<R> {
    fn new(reader: R, delimiter: u8, limit_bytes: usize) -> Self {
        Self {
            reader,
            core: Box::new(ReaderBuilder::new().delimiter(delimiter).build()),
            limit_bytes,
            line: 1,
            at_start: true,
        }
    }

    fn next(&mut self) -> Result<Option<RawRecord>, DatasetError> {
        if self.at_start {
            self.at_start = false;
            for expected in BYTE_ORDER_MARK {
                if self.reader.fill_buf()?.first() == Some(expected) {
                    self.reader.consume(1);
                }
            }
        }
        self.skip_line_ends()?;
        let mut raw = RawRecord {
            line: self.line,
            ..RawRecord::default()
        };
        let (mut length, mut count) = (0, 0);
        raw.bytes.resize(1024, 0);
        raw.ends.resize(16, 0);
        loop {
            let input = self.reader.fill_buf()?;
            let is_end = input.is_empty();
            // Outside of quotes the end of the file ends a record as a line end does.
            let input = if is_end { b"\n".as_slice() } else { input };
            let (result, taken, written, ended) =
                self.core
                    .read_record(input, &mut raw.bytes[length..], &mut raw.ends[count..]);
            if !is_end {
                self.line += input[..taken].iter().filter(|byte| **byte == b'\n').count() as u64;
                self.reader.consume(taken);
            }
            if is_end
                && raw.line == self.line
                && length + written + count + ended == 0
                && result != ReadRecordResult::Record
            {
                return Ok(None);
            }
            length += written;
            count += ended;
            let is_over = length > self.limit_bytes || count > MAX_COLUMNS;
            if is_over {
                raw.problem = Some(RecordProblem::OverLimit {
                    what: "row",
                    limit_bytes: self.limit_bytes,
                });
                // What comes until the record's end is read over itself.
                (length, count) = (0, 0);
            }
            match result {
                ReadRecordResult::Record => break,
                ReadRecordResult::OutputFull if !is_over => {
                    raw.bytes.resize(2 * raw.bytes.len(), 0);
                }
                ReadRecordResult::OutputEndsFull if !is_over => {
                    raw.ends.resize(2 * raw.ends.len(), 0);
                }
                ReadRecordResult::InputEmpty if is_end => {
                    raw.problem = Some(RecordProblem::UnclosedQuote);
                    self.core.reset();
                    break;
                }
                ReadRecordResult::End => return Ok(None),
                _ => {}
            }
        }
        raw.bytes.truncate(length);
        raw.ends.truncate(count);
        Ok(Some(raw))
    }

    fn skip_line_ends(&mut self) -> Result<(), DatasetError> {
        loop {
            let chunk = self.reader.fill_buf()?;
            let count = chunk
                .iter()
                .take_while(|byte| matches!(byte, b'\r' | b'\n'))
                .count();
            self.line += chunk[..count].iter().filter(|byte| **byte == b'\n').count() as u64;
            let goes_on = count > 0 && count == chunk.len();
            self.reader.consume(count);
            if !goes_on {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Chunks, chunks_of, in_chunks_of_any_size};
    use trainyard_shared::dataset::Row;

    type Read = (u64, Result<Row, String>);

    fn read_in(reader: Chunks) -> Result<Vec<Read>, String> {
        let file = reader.get_ref().get_ref();
        let delimiter = delimiter(DatasetFormat::Csv, file);
        let mut records = CsvRecords::new(reader, delimiter);
        let mut rows = Vec::new();
        loop {
            match records.next() {
                Ok(Some(record)) => rows.push((
                    record.place.number(),
                    record.row().map_err(|problem| problem.to_string()),
                )),
                Ok(None) => return Ok(rows),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn read(file: &str) -> Result<Vec<Read>, String> {
        in_chunks_of_any_size(file.as_bytes(), read_in)
    }

    fn text_row(line: u64, text: &str) -> Read {
        (line, Ok(Row::Text(text.to_owned())))
    }

    #[test]
    fn cells_may_hold_commas_quotes_and_line_ends_and_rows_are_numbered_by_their_first_line() {
        let file = "\u{feff}id,text\r\n1,plain\r\n\r\n2,\"two\r\nlines, \"\"quoted\"\"\"\r\n3,last";
        assert_eq!(
            read(file).unwrap(),
            [
                text_row(2, "plain"),
                text_row(4, "two\r\nlines, \"quoted\""),
                text_row(6, "last")
            ]
        );
    }

    #[test]
    fn a_header_alone_or_nothing_at_all_has_no_rows() {
        for file in ["", "\n", "\u{feff}", "text", "text\n", "a,text\r\n\r\n"] {
            assert_eq!(read(file).unwrap(), [], "{file:?}");
        }
    }

    #[test]
    fn headers_that_cannot_be_used_are_refused_by_name() {
        let error = read("id,Text\n1,a\n").unwrap_err();
        assert!(
            error.contains("no known column: there are `id`, `Text`"),
            "{error}"
        );
        assert_eq!(
            read("text,id,text\na,1,b\n").unwrap_err(),
            "the column `text` stands twice"
        );
        assert_eq!(read("x,,text,x\n1,2,a,3\n").unwrap(), [text_row(2, "a")]);
    }

    #[test]
    fn records_with_too_few_or_too_many_cells_are_bad_rows() {
        let rows = read("id,text\n1\n1,a,b\n2,ok\n").unwrap();
        assert_eq!(
            rows[0],
            (2, Err("1 cells, but the header has 2".to_owned()))
        );
        assert_eq!(
            rows[1],
            (3, Err("3 cells, but the header has 2".to_owned()))
        );
        assert_eq!(rows[2], text_row(4, "ok"));
    }

    #[test]
    fn an_empty_cell_is_a_missing_value_and_a_record_of_them_a_blank_line() {
        let missing = |line, problem: &str| (line, Err(problem.to_owned()));
        assert_eq!(
            read("id,text\n1,\n,\n2,\"\"\n\"\",\"\"\n3, \n").unwrap(),
            [
                missing(2, "all of its known columns are empty"),
                missing(4, "all of its known columns are empty"),
                text_row(6, " "),
            ]
        );
        assert_eq!(
            read("prompt,completion\na,\n,b\n").unwrap(),
            [
                missing(2, "completion: is missing"),
                missing(3, "prompt: is missing"),
            ]
        );
        assert_eq!(
            read("instruction,input,output\na,,\n,b,c\n").unwrap(),
            [
                missing(2, "output: is missing"),
                missing(
                    3,
                    "no known kind of row: it has `input`, `output`; known are messages, conversations, \
                            instruction and output, prompt and completion, text"
                ),
            ]
        );
        let rows = read("messages,instruction,input,output,text\n,a,,b,\n,a,,,t\n").unwrap();
        assert!(
            matches!(&rows[0].1, Ok(Row::Instruction { input: None, output, .. }) if output == "b"),
            "{rows:?}"
        );
        assert_eq!(
            rows[1],
            text_row(3, "t"),
            "what is missing decides no shape"
        );
    }

    #[test]
    fn a_quote_that_is_never_closed_is_a_bad_row() {
        let rows = read("text\nok\n\"open\nand on\n").unwrap();
        assert_eq!(rows[0], text_row(2, "ok"));
        assert_eq!(
            rows[1],
            (
                3,
                Err("a quote that opens in this record is never closed".to_owned())
            )
        );
        assert_eq!(rows.len(), 2);
        assert_eq!(read("text\n5\" pipe").unwrap(), [text_row(2, "5\" pipe")]);
    }

    #[test]
    fn other_delimiters_are_found_by_the_header() {
        assert_eq!(read("id;text\n1;a,b\n").unwrap(), [text_row(2, "a,b")]);
        assert_eq!(read("id\ttext\n1\ta;b\n").unwrap(), [text_row(2, "a;b")]);
    }

    #[test]
    fn chats_stand_in_cells_as_json() {
        let rows = read(
            "messages\n\"[{\"\"role\"\":\"\"user\"\",\"\"content\"\":\"\"q\"\"},{\"\"role\"\":\"\"assistant\"\",\"\"content\"\":\"\"a\"\"}]\"\n[{'role': 'user'}]\n",
        )
        .unwrap();
        assert!(
            matches!(&rows[0].1, Ok(Row::Messages(turns)) if turns.len() == 2),
            "{rows:?}"
        );
        let problem = rows[1].1.as_ref().unwrap_err();
        assert!(
            problem.starts_with("messages: must hold a chat as JSON"),
            "{problem}"
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_named_by_column() {
        let rows = read_in(chunks_of(5, b"id,text\n\xff,a\n1,\xc3\x28\n2,a\0b\n")).unwrap();
        assert_eq!(rows[0], text_row(2, "a"));
        assert_eq!(
            rows[1],
            (3, Err("text: invalid UTF-8 at byte 1".to_owned()))
        );
        assert_eq!(rows[2], (4, Err("text: a NUL byte at byte 2".to_owned())));
    }

    #[test]
    fn g065_a_record_over_the_limit_is_passed_over_and_the_next_one_is_read() {
        let file = format!("text\n\"{}\"\nok\n", "x\n".repeat(100));
        let reader = chunks_of(7, file.as_bytes());
        let mut cells = Cells::new(reader, b',', 50);
        assert_eq!(cells.next().unwrap().unwrap().bytes, b"text");
        let over = cells.next().unwrap().unwrap();
        assert!(
            matches!(over.problem, Some(RecordProblem::OverLimit { .. })),
            "{over:?}"
        );
        let next = cells.next().unwrap().unwrap();
        assert_eq!((next.bytes.as_slice(), next.line), (b"ok".as_slice(), 103));
        assert!(next.problem.is_none() && cells.next().unwrap().is_none());
    }
}
