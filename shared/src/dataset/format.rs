//! The formats of data sets: their names on the wire, and the ends of file names that stand for them.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Format of a data set's file. Any but Parquet may be compressed with gzip or zstd as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DatasetFormat {
    /// JSON lines: one object a line.
    #[default]
    Jsonl,
    /// One JSON array of objects.
    Json,
    /// Comma-separated values with a header.
    Csv,
    /// Tab-separated values with a header; otherwise as CSV.
    Tsv,
    /// Apache Parquet.
    Parquet,
    /// Plain text: documents with a blank line between them.
    Text,
}

/// A format that nobody knows, by the name that was given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` is no format of data sets; there are {}",
    DatasetFormat::names()
)]
pub struct UnknownFormat {
    /// The name.
    pub name: String,
}

impl DatasetFormat {
    /// All formats.
    pub const ALL: [Self; 6] = [
        Self::Jsonl,
        Self::Json,
        Self::Csv,
        Self::Tsv,
        Self::Parquet,
        Self::Text,
    ];

    /// The format's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::Json => "json",
            Self::Csv => "csv",
            Self::Tsv => "tsv",
            Self::Parquet => "parquet",
            Self::Text => "text",
        }
    }

    /// The format that the end of a file's name stands for (`chats.jsonl`, `chats.csv.gz`), if it is known.
    pub fn of_file_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let name = name
            .strip_suffix(".gz")
            .or_else(|| name.strip_suffix(".zst"))
            .unwrap_or(&name);
        let (stem, end) = name.rsplit_once('.')?;
        if stem.is_empty() {
            return None;
        }
        end.parse().ok()
    }

    /// The names of all formats, for a person.
    pub fn names() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl FromStr for DatasetFormat {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        match name {
            "jsonl" | "ndjson" => Ok(Self::Jsonl),
            "json" => Ok(Self::Json),
            "csv" => Ok(Self::Csv),
            "tsv" => Ok(Self::Tsv),
            "parquet" => Ok(Self::Parquet),
            "text" | "txt" => Ok(Self::Text),
            other => Err(UnknownFormat {
                name: other.chars().take(40).collect(),
            }),
        }
    }
}

impl fmt::Display for DatasetFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for DatasetFormat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for format in DatasetFormat::ALL {
            assert_eq!(format.as_str().parse(), Ok(format));
        }
        let error = "xlsx".parse::<DatasetFormat>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`xlsx` is no format of data sets; there are jsonl, json, csv, tsv, parquet, text"
        );
    }

    #[test]
    fn a_file_name_tells_the_format_by_its_end() {
        for (name, format) in [
            ("chats.jsonl", Some(DatasetFormat::Jsonl)),
            ("Chats.NDJSON", Some(DatasetFormat::Jsonl)),
            ("a.b.json", Some(DatasetFormat::Json)),
            ("a.csv.gz", Some(DatasetFormat::Csv)),
            ("a.txt.zst", Some(DatasetFormat::Text)),
            ("train-00000.parquet", Some(DatasetFormat::Parquet)),
            ("chats", None),
            (".jsonl", None),
            ("chats.xlsx", None),
            ("jsonl", None),
        ] {
            assert_eq!(DatasetFormat::of_file_name(name), format, "{name}");
        }
    }
}
