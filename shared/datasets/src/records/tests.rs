use super::*;
use std::io::Write;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Rows as text, or the problem, and at last what ended the reading.
fn read(bytes: &[u8], format: DatasetFormat) -> Vec<String> {
    let records = match Records::stream(Box::new(Cursor::new(bytes.to_vec())), format) {
        Ok(records) => records,
        Err(error) => return vec![error.to_string()],
    };
    records
        .map(|record| match record {
            Ok(record) => match record.row() {
                Ok(row) => format!("{}: {row:?}", record.place),
                Err(problem) => format!("{}: {problem}", record.place),
            },
            Err(error) => error.to_string(),
        })
        .collect()
}

#[test]
fn every_format_gives_the_same_rows() {
    let rows = ["Text(\"a\")", "Text(\"b\")"];
    for (format, file, places) in [
        (
            DatasetFormat::Jsonl,
            "{\"text\":\"a\"}\r\n{\"text\":\"b\"}",
            ["line 1", "line 2"],
        ),
        (
            DatasetFormat::Json,
            "[\n{\"text\":\"a\"},\n{\"text\":\"b\"}]",
            ["element 1 (line 2)", "element 2 (line 3)"],
        ),
        (DatasetFormat::Csv, "text\na\nb\n", ["line 2", "line 3"]),
        (
            DatasetFormat::Tsv,
            "id\ttext\n1\ta\n2\tb\n",
            ["line 2", "line 3"],
        ),
        (DatasetFormat::Text, "a\n\nb\n", ["line 1", "line 3"]),
    ] {
        let expected: Vec<_> = places
            .iter()
            .zip(rows)
            .map(|(place, row)| format!("{place}: {row}"))
            .collect();
        let packed = [
            file.as_bytes().to_vec(),
            gzip(file.as_bytes()),
            zstd::encode_all(file.as_bytes(), 3).unwrap(),
        ];
        for bytes in packed {
            assert_eq!(read(&bytes, format), expected, "{format}");
        }
        assert_eq!(read(b"", format), Vec::<String>::new(), "{format}");
    }
}

#[test]
fn a_bad_element_of_an_array_is_a_bad_row_and_the_next_one_is_read() {
    let rows = read(
        b"[{\"text\":\"a \\ud83d b\"}, {\"text\": NaN}, null, {\"text\":\"\xc3\x28\"}, {\"text\":\"c\"}]",
        DatasetFormat::Json,
    );
    assert!(
        rows[0].contains("element 1 (line 1): not valid JSON")
            && rows[0].contains("lone surrogate"),
        "{rows:?}"
    );
    assert!(rows[1].contains("element 2"), "{rows:?}");
    assert_eq!(
        rows[2],
        "element 3 (line 1): a row is a JSON object, not null"
    );
    assert_eq!(rows[3], "element 4 (line 1): invalid UTF-8 at byte 10");
    assert_eq!(rows[4], "element 5 (line 1): Text(\"c\")");
}

#[test]
fn packed_data_that_breaks_off_ends_the_reading_with_a_reason() {
    let file = "{\"text\":\"a\"}\n".repeat(100_000);
    let whole = gzip(file.as_bytes());
    let rows = read(&whole[..whole.len() / 2], DatasetFormat::Jsonl);
    let last = rows.last().unwrap();
    assert!(last.starts_with("the gzip data is damaged"), "{last}");
    assert!(rows.len() > 1000, "rows before the damage are read");
    let packed = zstd::encode_all(file.as_bytes(), 1).unwrap();
    let rows = read(&packed[..packed.len() - 5], DatasetFormat::Jsonl);
    assert!(rows.last().unwrap().starts_with("the zstd data is damaged"));
}

#[test]
fn a_packed_file_within_a_packed_file_is_refused() {
    let rows = read(&gzip(&gzip(b"{\"text\":\"a\"}")), DatasetFormat::Jsonl);
    assert_eq!(rows, ["this is not jsonl: it is packed with gzip"]);
}
