//! Whether a file's first bytes are of the format that it is said to have.

use trainyard_shared::dataset::DatasetFormat;

use crate::error::DatasetError;

/// So many bytes are looked at.
pub(crate) const SNIFFED_BYTES: usize = 4096;

/// Refuses a file that is plainly of another format. `start` is its beginning, unpacked.
pub(crate) fn check(format: DatasetFormat, start: &[u8]) -> Result<(), DatasetError> {
    let mismatch = |found: &str| {
        Err(DatasetError::Mismatch {
            format,
            found: found.to_owned(),
        })
    };
    if start.is_empty() {
        return Ok(());
    }
    if format == DatasetFormat::Parquet {
        return match foreign(start) {
            Some("a Parquet file") => Ok(()),
            Some(found) => mismatch(&format!("it is {found}")),
            None => mismatch("it does not begin with `PAR1`"),
        };
    }
    if let Some(found) = foreign(start) {
        return mismatch(&format!("it is {found}"));
    }
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    match (format, first) {
        (DatasetFormat::Jsonl, Some(b'[')) => {
            mismatch("it begins with `[`, as a JSON array does (format json)")
        }
        (DatasetFormat::Json, Some(b'{')) => mismatch(
            "it begins with `{`, as JSON lines do (format jsonl); the file must be one array of objects",
        ),
        (DatasetFormat::Json, Some(byte)) if *byte != b'[' => {
            mismatch("it does not begin with `[`: the file must be one array of objects")
        }
        (DatasetFormat::Csv | DatasetFormat::Tsv, Some(b'{')) => {
            mismatch("it begins with `{`, as JSON lines do (format jsonl)")
        }
        (DatasetFormat::Csv | DatasetFormat::Tsv, Some(b'[')) => {
            mismatch("it begins with `[`, as a JSON array does (format json)")
        }
        _ => Ok(()),
    }
}

/// What the bytes are, if they are nothing that text begins with.
fn foreign(start: &[u8]) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 11] = [
        (b"PAR1", "a Parquet file"),
        (b"PARE", "an encrypted Parquet file"),
        (b"PK\x03\x04", "a ZIP archive or a spreadsheet"),
        (b"ARROW1", "an Arrow file"),
        (b"SQLite format 3", "an SQLite database"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        (b"BZh", "packed with bzip2 (gzip and zstd are read)"),
        (b"\xfd7zXZ\x00", "packed with xz (gzip and zstd are read)"),
        (b"\x1f\x8b", "packed with gzip"),
        (b"\x28\xb5\x2f\xfd", "packed with zstd"),
        (b"%PDF", "a PDF file"),
    ];
    if let Some((_, name)) = KNOWN.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Some(name);
    }
    match start {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some("UTF-32; save it as UTF-8"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("UTF-16; save it as UTF-8"),
        // Plain characters with a zero byte before or behind each of them.
        [0, 1..=255, 0, 1..=255, ..] | [1..=255, 0, 1..=255, 0, ..] => {
            Some("UTF-16; save it as UTF-8")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(format: DatasetFormat, start: &[u8]) -> String {
        match check(format, start) {
            Ok(()) => "taken".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_file_of_another_format_is_refused_with_what_it_looks_like() {
        use DatasetFormat::{Csv, Json, Jsonl, Parquet, Text};
        for (format, start, expected) in [
            (
                Jsonl,
                b" \n[{".as_slice(),
                "this is not jsonl: it begins with `[`",
            ),
            (
                Jsonl,
                b"PAR1\x15\x04",
                "this is not jsonl: it is a Parquet file",
            ),
            (
                Json,
                b"\xef\xbb\xbf{\"text\"",
                "this is not json: it begins with `{`",
            ),
            (
                Json,
                b"text\n",
                "this is not json: it does not begin with `[`",
            ),
            (Csv, b"{\"text\"", "this is not csv: it begins with `{`"),
            (
                Csv,
                b"PK\x03\x04",
                "this is not csv: it is a ZIP archive or a spreadsheet",
            ),
            (
                Parquet,
                b"text,id\n",
                "this is not parquet: it does not begin with `PAR1`",
            ),
            (
                Parquet,
                b"\x1f\x8b\x08",
                "this is not parquet: it is packed with gzip",
            ),
            (Text, b"\xff\xfeh\0i\0", "this is not text: it is UTF-16"),
            (Csv, b"t\0e\0x\0t\0", "this is not csv: it is UTF-16"),
            (Jsonl, b"\0{\0\"", "this is not jsonl: it is UTF-16"),
        ] {
            let found = refusal(format, start);
            assert!(found.starts_with(expected), "{format}: {found}");
        }
    }

    #[test]
    fn what_may_be_of_the_format_is_taken() {
        use DatasetFormat::{Csv, Json, Jsonl, Parquet, Text};
        for (format, start) in [
            (Jsonl, b"\xef\xbb\xbf{\"text\"".as_slice()),
            (Jsonl, b"anything"),
            (Jsonl, b""),
            (Json, b"\n ["),
            (Csv, b"text"),
            (Parquet, b"PAR1"),
            (Text, b"[1] is the first footnote"),
        ] {
            assert_eq!(refusal(format, start), "taken", "{format}");
        }
    }
}
