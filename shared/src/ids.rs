//! The ids of everything that is named on the wire, each a type of its own.
//!
//! Numeric ids are JSON integers from 1; the platform issues none above [`MAX_ISSUED_ID`]. A larger
//! one that still fits an `i64` is read exactly as it is, so that it is answered "not found" and is
//! never rounded to a neighbour. Strings, fractions (also `123.0`), zero and negatives are refused.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// The largest id that is ever issued: 2^53 - 1, the largest integer that JavaScript holds exactly.
pub const MAX_ISSUED_ID: i64 = (1 << 53) - 1;

/// Text that is no id: not a decimal integer from 1 that fits an `i64`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an id is a whole number from 1")]
pub struct InvalidId;

macro_rules! numeric_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ToSchema)]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl $name {
            /// The number itself.
            pub const fn get(self) -> i64 {
                self.0
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let id = i64::deserialize(deserializer)?;
                if id < 1 {
                    return Err(serde::de::Error::custom(format_args!("{InvalidId}, not {id}")));
                }
                Ok(Self(id))
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(InvalidId);
                }
                match text.parse() {
                    Ok(id) if id >= 1 => Ok(Self(id)),
                    _ => Err(InvalidId),
                }
            }
        }

        impl TryFrom<i64> for $name {
            type Error = InvalidId;

            fn try_from(id: i64) -> Result<Self, InvalidId> {
                if id >= 1 { Ok(Self(id)) } else { Err(InvalidId) }
            }
        }

        impl From<$name> for i64 {
            fn from(id: $name) -> i64 {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

numeric_id!(
    /// A training job.
    JobId
);
numeric_id!(
    /// A data set.
    DatasetId
);
numeric_id!(
    /// A worker in the platform's database. On the socket a worker is named by its [`WorkerUuid`]
    /// everywhere but in `enrollment_complete`.
    WorkerId
);
numeric_id!(
    /// A user of the platform.
    UserId
);
numeric_id!(
    /// An evaluation.
    EvaluationId
);
numeric_id!(
    /// An export of a job's result.
    ExportId
);
numeric_id!(
    /// A federated session.
    FederatedSessionId
);

/// A task: work of minutes on a trained model, which occupies a worker as a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskId {
    /// A model is measured.
    Evaluation(EvaluationId),
    /// A job's result is written in another form.
    Export(ExportId),
}

impl TaskId {
    /// What such a task is called.
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Evaluation(_) => "evaluation",
            Self::Export(_) => "export",
        }
    }

    /// The evaluations among tasks.
    pub fn evaluations(tasks: &[Self]) -> Vec<EvaluationId> {
        let ids = tasks.iter().filter_map(|task| match task {
            Self::Evaluation(id) => Some(*id),
            Self::Export(_) => None,
        });
        ids.collect()
    }

    /// The exports among tasks.
    pub fn exports(tasks: &[Self]) -> Vec<ExportId> {
        let ids = tasks.iter().filter_map(|task| match task {
            Self::Export(id) => Some(*id),
            Self::Evaluation(_) => None,
        });
        ids.collect()
    }
}

impl From<EvaluationId> for TaskId {
    fn from(id: EvaluationId) -> Self {
        Self::Evaluation(id)
    }
}

impl From<ExportId> for TaskId {
    fn from(id: ExportId) -> Self {
        Self::Export(id)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = match self {
            Self::Evaluation(id) => id.get(),
            Self::Export(id) => id.get(),
        };
        write!(f, "{} {id}", self.noun())
    }
}

/// An inference request, as `infer-456`: 1 to 128 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ToSchema)]
#[serde(transparent)]
pub struct InferenceId(String);

impl InferenceId {
    /// The id as it stands on the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for InferenceId {
    type Err = InvalidInferenceId;

    fn from_str(text: &str) -> Result<Self, InvalidInferenceId> {
        if (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidInferenceId)
        }
    }
}

impl<'de> Deserialize<'de> for InferenceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for InferenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Text that is no [`InferenceId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an inference id is 1 to 128 visible ASCII characters")]
pub struct InvalidInferenceId;

/// One message that wants an `ack`. The same id on a repeat tells that it is a repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(pub Uuid);

impl MessageId {
    /// A new random id.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A worker's identity, made by the worker itself and kept with its key.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(transparent)]
pub struct WorkerUuid(pub Uuid);

impl WorkerUuid {
    /// A new random identity.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Whether `worker_id` in a message means this worker: its UUID, or a prefix of it of eight
    /// characters or more, as the source documents shorten it. Case does not matter.
    pub fn is_named_by(self, worker_id: &str) -> bool {
        let own = self.0.to_string();
        worker_id.len() >= 8
            && own
                .get(..worker_id.len())
                .is_some_and(|prefix| prefix.eq_ignore_ascii_case(worker_id))
    }
}

impl FromStr for WorkerUuid {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        Uuid::from_str(text).map(Self)
    }
}

impl fmt::Display for WorkerUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g038_an_id_is_a_json_integer_from_one() {
        assert_eq!(serde_json::from_str::<JobId>("123").unwrap(), JobId(123));
        for wrong in [
            "\"123\"",
            "123.0",
            "1.23e2",
            "-1",
            "0",
            "true",
            "null",
            "[123]",
            "9223372036854775808",
        ] {
            assert!(
                serde_json::from_str::<JobId>(wrong).is_err(),
                "{wrong} was taken"
            );
        }
    }

    #[test]
    fn g037_an_id_above_2_to_the_53_is_read_exactly() {
        let id: JobId = serde_json::from_str("9007199254740993").unwrap();
        assert_eq!(id.get(), 9_007_199_254_740_993);
        assert_eq!("9007199254740993".parse(), Ok(id));
        assert_eq!("9223372036854775808".parse::<JobId>(), Err(InvalidId));
    }

    #[test]
    fn text_that_is_no_plain_decimal_is_no_id() {
        for wrong in ["", "0", "-1", "+1", " 1", "1 ", "1.0", "abc", "٣"] {
            assert_eq!(wrong.parse::<JobId>(), Err(InvalidId), "{wrong:?}");
        }
    }

    #[test]
    fn a_worker_is_named_by_its_uuid_or_by_eight_characters_of_it() {
        let worker: WorkerUuid = "abc12345-6789-4abc-8def-0123456789ab".parse().unwrap();
        assert!(worker.is_named_by("abc12345"));
        assert!(worker.is_named_by("ABC12345-6789"));
        assert!(worker.is_named_by("abc12345-6789-4abc-8def-0123456789ab"));
        assert!(!worker.is_named_by("abc1234"));
        assert!(!worker.is_named_by("abc12346"));
        assert!(!worker.is_named_by("abc12345-6789-4abc-8def-0123456789ab0"));
        assert!(!worker.is_named_by(""));
    }

    #[test]
    fn an_inference_id_has_no_spaces_and_is_not_empty() {
        assert!("infer-456".parse::<InferenceId>().is_ok());
        assert!("".parse::<InferenceId>().is_err());
        assert!("a b".parse::<InferenceId>().is_err());
        assert!("x".repeat(129).parse::<InferenceId>().is_err());
    }
}
