//! What ends the reading of a file: not one bad row, but a file that is not what it is said to be.

use std::io;

use trainyard_shared::dataset::DatasetFormat;

use crate::record::Place;

/// Why a file of rows cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// The system cannot read it.
    #[error("cannot be read: {0}")]
    Io(#[source] io::Error),
    /// The content is of another format than was said.
    #[error("this is not {format}: {found}")]
    Mismatch {
        /// The format that was said.
        format: DatasetFormat,
        /// What was found instead.
        found: String,
    },
    /// The content breaks off or breaks its format's rules, so that no more rows can be told apart.
    #[error("{message}")]
    Damaged {
        /// Where, if that is known.
        place: Option<Place>,
        /// What is wrong.
        message: String,
    },
    /// None of the columns belongs to a known kind of row.
    #[error(
        "no known column: there are {found}; known are messages, conversations, instruction and output, \
         prompt and completion, text"
    )]
    NoKnownColumn {
        /// The columns that there are.
        found: String,
    },
    /// A column's name stands twice.
    #[error("the column `{name}` stands twice")]
    DuplicateColumn {
        /// The name.
        name: String,
    },
}

impl DatasetError {
    /// Damage at a place.
    pub(crate) fn damaged(place: impl Into<Option<Place>>, message: impl Into<String>) -> Self {
        Self::Damaged {
            place: place.into(),
            message: message.into(),
        }
    }

    /// Where the reading ended, if that is known.
    pub const fn place(&self) -> Option<Place> {
        match self {
            Self::Damaged { place, .. } => *place,
            _ => None,
        }
    }

    /// Whether the system is to blame, and not the file's content.
    pub const fn is_io(&self) -> bool {
        matches!(self, Self::Io(_))
    }
}

/// Unpackers report bad content as errors of reading.
impl From<io::Error> for DatasetError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::UnexpectedEof => Self::damaged(None, error.to_string()),
            _ => Self::Io(error),
        }
    }
}

/// Column names as a list for a person, not too long.
pub(crate) fn columns_in_words<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 12;
    const SHOWN_CHARACTERS: usize = 40;
    let names: Vec<String> = names
        .take(SHOWN + 1)
        .map(|name| {
            format!(
                "`{}`",
                name.chars().take(SHOWN_CHARACTERS).collect::<String>()
            )
        })
        .collect();
    match names.len() {
        0 => "none".to_owned(),
        count if count > SHOWN => names[..SHOWN].join(", ") + " and more",
        _ => names.join(", "),
    }
}
