use std::fs::File;
use std::path::Path;

use trainyard_shared::dataset::DatasetFormat;

use super::*;
use crate::{FileSource, Records};

/// Bytes of memory as a file.
struct Bytes(Vec<u8>);

impl ReadAt for Bytes {
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        let found = self.0.get(start..start + into.len());
        into.copy_from_slice(found.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

fn path(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/parquet")
        .join(name)
}

fn told(records: Result<Records, DatasetError>) -> Vec<String> {
    let records = match records {
        Ok(records) => records,
        Err(error) => return vec![error.to_string()],
    };
    records
        .map(|record| match record {
            Ok(record) => match record.row() {
                Ok(_) => {
                    let json = record.to_json().unwrap();
                    format!("{}: {json}", record.place)
                }
                Err(problem) => format!("{}: {problem}", record.place),
            },
            Err(error) => error.to_string(),
        })
        .collect()
}

/// Rows of a golden file as JSON, or the problem.
fn read(name: &str) -> Vec<String> {
    told(Records::open(&path(name), DatasetFormat::Parquet))
}

/// Rows of bytes.
fn read_bytes(bytes: Vec<u8>) -> Vec<String> {
    told(Records::parquet(Arc::new(Bytes(bytes))))
}

const NO_ROW: &str = "no known kind of row: it has `text` (null); known are messages, conversations, instruction and output, prompt and completion, text";

#[test]
fn texts_are_read_in_every_encoding_and_compression() {
    for name in [
        "text_none",
        "text_snappy",
        "text_gzip",
        "text_zstd",
        "text_lz4",
        "text_large_string_v2",
        "text_delta_length_byte_array",
        "text_delta_byte_array",
        "text_dictionary",
    ] {
        let expected = [
            r#"row 1: {"text":"hello"}"#,
            r#"row 2: {"text":""}"#,
            &format!("row 3: {NO_ROW}"),
            r#"row 4: {"text":"wörld 😀"}"#,
            r#"row 5: {"text":"a\r\nb"}"#,
        ];
        assert_eq!(read(&format!("{name}.parquet")), expected, "{name}");
    }
}

#[test]
fn a_compression_that_is_not_read_is_refused_by_name() {
    let told = read("text_brotli.parquet");
    assert!(told[0].to_lowercase().contains("brotli"), "{told:?}");
}

#[test]
fn values_that_are_no_text_are_bad_rows() {
    let told = read("text_int.parquet");
    assert_eq!(told.len(), 5);
    assert_eq!(told[1], "row 2: text: a string is expected, not a number");
    let told = read("text_binary.parquet");
    assert_eq!(told[0], r#"row 1: {"text":"ok"}"#);
    assert_eq!(told[1], "row 2: text: invalid UTF-8 at byte 1");
    assert_eq!(told[2], "row 3: text: a NUL byte at byte 2");
    assert_eq!(told[4], r#"row 5: {"text":""}"#);
}

#[test]
fn g067_chats_are_lists_of_structs_and_what_is_missing_in_them_is_named() {
    for name in ["messages", "messages_row_groups_v2", "messages_two_levels"] {
        let told = read(&format!("{name}.parquet"));
        assert_eq!(
            told[0],
            r#"row 1: {"messages":[{"role":"user","content":"hello","weight":null},{"role":"assistant","content":"hi, wörld 😀","weight":null}]}"#,
            "{name}"
        );
        assert!(told[1].starts_with("row 2: {"), "{name}: {told:?}");
        assert!(
            told[2].starts_with("row 3: no known kind of row: it has `messages` (null)"),
            "{name}: {told:?}"
        );
        assert_eq!(told[3], "row 4: messages: is empty", "{name}");
        assert_eq!(
            told[4], "row 5: messages[0].content: a string is expected, not null",
            "{name}"
        );
        assert_eq!(told.len(), 5, "{name}");
    }
}

#[test]
fn chats_may_be_json_in_strings_and_content_may_be_parts() {
    let told = read("messages_json.parquet");
    assert!(
        told[0].starts_with(r#"row 1: {"messages":[{"role":"user","content":"hello"}"#),
        "{told:?}"
    );
    assert_eq!(told[3], "row 4: messages: is empty");
    assert_eq!(
        read("messages_parts.parquet"),
        [
            r#"row 1: {"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}"#
        ]
    );
}

#[test]
fn pairs_and_instructions_are_read_from_their_columns() {
    let told = read("pairs.parquet");
    assert_eq!(told[0], r#"row 1: {"prompt":"p","completion":"c"}"#);
    assert_eq!(told[1], "row 2: prompt: is empty");
    assert_eq!(told[2], "row 3: prompt: a string is expected, not null");
    let told = read("instructions.parquet");
    assert_eq!(
        told[0],
        r#"row 1: {"instruction":"i","input":"","output":"o","system":null}"#
    );
    assert_eq!(told.len(), 2);
}

#[test]
fn files_without_rows_or_known_columns_are_told_apart() {
    assert_eq!(read("no_rows.parquet"), Vec::<String>::new());
    let told = read("no_known_column.parquet");
    assert!(
        told[0].starts_with("no known column: there are `id`, `Text`"),
        "{told:?}"
    );
    assert_eq!(read_bytes(Vec::new()), Vec::<String>::new());
}

#[test]
fn a_file_that_is_cut_or_is_none_is_refused() {
    let whole = std::fs::read(path("messages.parquet")).unwrap();
    let cut = read_bytes(whole[..whole.len() - 9].to_vec());
    assert!(cut[0].contains("its end is missing"), "{cut:?}");
    let none = read_bytes(b"text,id\nabc,1\n".to_vec());
    assert!(none[0].contains("does not begin with `PAR1`"), "{none:?}");
    let mut long = b"PAR1PAR1".to_vec();
    long.extend(u32::MAX.to_le_bytes());
    long.extend(b"PAR1");
    assert!(read_bytes(long)[0].contains("longer than"));
}

#[test]
fn any_damaged_byte_gives_rows_or_a_reason() {
    for name in [
        "messages.parquet",
        "text_zstd.parquet",
        "text_delta_byte_array.parquet",
    ] {
        let whole = std::fs::read(path(name)).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let told = read_bytes(damaged);
            assert!(told.len() <= 1000, "{name} at {at}: {} rows", told.len());
            let blames_the_system = told.iter().any(|told| told.starts_with("cannot be read"));
            assert!(!blames_the_system, "{name} at {at}: {told:?}");
        }
    }
}

/// A Parquet file with one page of the bytes `page`, said to hold `rows` rows.
fn one_page(
    schema: &str,
    rows: usize,
    write: impl Fn(&mut dyn FnMut(&[&[u8]], &[i16], &[i16])),
) -> Vec<u8> {
    use parquet::basic::Compression;
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    assert!(rows > 0);
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_data_page_size_limit(1 << 30)
        .set_data_page_row_count_limit(usize::MAX)
        .build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    write(&mut |values, def, rep| {
        let values: Vec<ByteArray> = values.iter().map(|value| value.to_vec().into()).collect();
        let def = (!def.is_empty()).then_some(def);
        let rep = (!rep.is_empty()).then_some(rep);
        column
            .typed::<ByteArrayType>()
            .write_batch(&values, def, rep)
            .unwrap();
    });
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    bytes
}

#[test]
fn a_list_that_few_bytes_blow_up_is_refused() {
    let count = 3_000_000;
    let bytes = one_page("message m { repeated binary text (UTF8); }", 1, |write| {
        let (values, def) = (vec![b"x".as_slice(); count], vec![1; count]);
        let mut rep = vec![1; count];
        rep[0] = 0;
        write(&values, &def, &rep);
    });
    assert!(bytes.len() < 10_000, "{} bytes", bytes.len());
    let told = read_bytes(bytes);
    assert!(
        told[0].contains("more than 65536 list elements"),
        "{told:?}"
    );
}

#[test]
fn a_page_that_few_bytes_blow_up_is_refused() {
    let long = vec![b'x'; 80 << 20];
    let bytes = one_page("message m { required binary text (UTF8); }", 1, |write| {
        write(&[&long], &[], &[]);
    });
    assert!(bytes.len() < 8 << 20, "{} bytes", bytes.len());
    let told = read_bytes(bytes);
    assert!(told[0].contains("over the limit"), "{told:?}");
}

#[test]
fn g065_a_long_value_is_read() {
    let long = vec![b'x'; 10 << 20];
    let bytes = one_page("message m { required binary text (UTF8); }", 2, |write| {
        write(&[&long, b"short"], &[], &[]);
    });
    let told = read_bytes(bytes);
    assert_eq!(told[0].len(), (10 << 20) + r#"row 1: {"text":""}"#.len());
    assert_eq!(told[1], r#"row 2: {"text":"short"}"#);
}

#[test]
fn a_schema_that_is_nested_too_deep_is_refused_before_it_is_read() {
    // One group within the other, each a struct of a list of structs in Thrift's compact protocol.
    let element = [0x48, 1, b'g', 0x15, 2, 0x00];
    let levels = 5000;
    let mut footer = vec![0x29, 0xfc];
    let mut count = levels;
    while count >= 0x80 {
        footer.push((count & 0x7f) as u8 | 0x80);
        count >>= 7;
    }
    footer.push(count as u8);
    for _ in 0..levels {
        footer.extend(element);
    }
    footer.push(0);
    let mut bytes = b"PAR1".to_vec();
    bytes.extend(&footer);
    bytes.extend((footer.len() as u32).to_le_bytes());
    bytes.extend(b"PAR1");
    let told = read_bytes(bytes);
    assert!(told[0].contains("nested deeper than 32"), "{told:?}");
}

#[test]
fn a_file_source_reads_at_any_place() {
    let source = FileSource::new(File::open(path("messages.parquet")).unwrap()).unwrap();
    let mut magic = [0; 4];
    source.read_at(source.size_bytes() - 4, &mut magic).unwrap();
    assert_eq!(&magic, b"PAR1");
    assert!(source.read_at(source.size_bytes() - 3, &mut magic).is_err());
}
