//! Takes typed fields out of a JSON object and collects what is wrong with them.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use super::fields::{self, aliases};
use super::words::{MixedPrecision, TargetModules};
use super::{ALPHA_BOUNDS, FieldProblem, MAX_RANK};
use crate::{json, number};

/// The fields that have not been taken yet, and the problems so far.
pub(super) struct Reader<'a> {
    remaining: BTreeMap<&'a str, &'a Value>,
    problems: Vec<FieldProblem>,
}

/// Between which numbers a value must lie.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    low: f64,
    low_is_taken: bool,
    high: f64,
    high_is_taken: bool,
}

impl Bounds {
    /// `low` or more.
    pub(super) const fn from(low: f64) -> Self {
        Self {
            low,
            low_is_taken: true,
            high: f64::MAX,
            high_is_taken: true,
        }
    }

    /// More than `low`.
    pub(super) const fn above(low: f64) -> Self {
        Self {
            low_is_taken: false,
            ..Self::from(low)
        }
    }

    /// `high` or less.
    pub(super) const fn up_to(self, high: f64) -> Self {
        Self {
            high,
            high_is_taken: true,
            ..self
        }
    }

    /// Less than `high`.
    pub(super) const fn below(self, high: f64) -> Self {
        Self {
            high,
            high_is_taken: false,
            ..self
        }
    }

    fn contain(self, value: f64) -> bool {
        let above_low = if self.low_is_taken {
            value >= self.low
        } else {
            value > self.low
        };
        let below_high = if self.high_is_taken {
            value <= self.high
        } else {
            value < self.high
        };
        above_low && below_high
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let low = if self.low_is_taken {
            "at least"
        } else {
            "above"
        };
        let high = if self.high_is_taken {
            "at most"
        } else {
            "below"
        };
        write!(f, "{low} {} and {high} {}", self.low, self.high)
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(object: &'a Map<String, Value>) -> Self {
        Self {
            remaining: object
                .iter()
                .map(|(name, value)| (name.as_str(), value))
                .collect(),
            problems: Vec::new(),
        }
    }

    /// What is left is unknown. All problems are returned together, or none.
    pub(super) fn finish(mut self) -> Result<(), Vec<FieldProblem>> {
        for name in std::mem::take(&mut self.remaining).into_keys() {
            self.problems.push(FieldProblem {
                field: json::shortened(name),
                message: "there is no such field".to_owned(),
                hint: fields::nearest(name).map(str::to_owned),
            });
        }
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(self.problems)
        }
    }

    /// A whole number of `low` or more.
    pub(super) fn u64(&mut self, field: &str, low: u64) -> Option<u64> {
        self.whole(field, low, number::MAX_COUNT)
    }

    /// A number of steps, at least 1; none for -1, with which transformers says that there is no limit.
    pub(super) fn steps_or_all(&mut self, field: &str) -> Option<u64> {
        for name in std::iter::once(&field).chain(aliases(field)) {
            let value = self.remaining.get::<str>(name);
            if value.and_then(|value| value.as_f64()) == Some(-1.0) {
                self.remaining.remove::<str>(name);
            }
        }
        self.u64(field, 1)
    }

    /// A whole number between `low` and `high`, both taken.
    pub(super) fn u32(&mut self, field: &str, low: u32, high: u32) -> Option<u32> {
        self.whole(field, low.into(), high.into())
            .and_then(|value| u32::try_from(value).ok())
    }

    /// A number within bounds.
    pub(super) fn f64(&mut self, field: &str, bounds: Bounds) -> Option<f64> {
        let (name, value) = self.take(field)?;
        let Some(number) = value.as_f64() else {
            return self.wrong_type(name, "a number", value);
        };
        if !bounds.contain(number) {
            return self.problem(name, format!("must be {bounds}, not {number}"), None);
        }
        Some(number)
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, field: &str) -> Option<bool> {
        let (name, value) = self.take(field)?;
        let flag = value.as_bool();
        flag.or_else(|| self.wrong_type(name, "true or false", value))
    }

    /// A text that is not empty.
    pub(super) fn text(&mut self, field: &str) -> Option<String> {
        let (name, value) = self.take(field)?;
        match value.as_str() {
            Some("") => self.problem(name, "is empty".to_owned(), None),
            Some(text) => Some(text.to_owned()),
            None => self.wrong_type(name, "a string", value),
        }
    }

    /// One of some words.
    pub(super) fn word<T: Copy>(&mut self, field: &str, words: &[(&str, T)]) -> Option<T> {
        let (name, value) = self.take(field)?;
        let Some(text) = value.as_str() else {
            return self.wrong_type(name, "a string", value);
        };
        let found = words
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, meaning)| *meaning);
        found.or_else(|| {
            let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.problem(
                name,
                format!("`{}` is not known", json::shortened(text)),
                Some(format!("one of {}", known.join(", "))),
            )
        })
    }

    /// A list of names that are not empty.
    pub(super) fn names(&mut self, field: &str) -> Option<Vec<String>> {
        let (name, value) = self.take(field)?;
        self.list_of_names(name, value, "a list of names")
    }

    /// `"all-linear"`, a list of names, or one regular expression.
    pub(super) fn target_modules(&mut self) -> Option<TargetModules> {
        let (name, value) = self.take("target_modules")?;
        match value {
            Value::String(word) if word == TargetModules::ALL_LINEAR => Some(TargetModules::AllLinear),
            Value::String(pattern) => match regex::Regex::new(pattern) {
                Ok(_) if !pattern.is_empty() => Some(TargetModules::Pattern(pattern.clone())),
                _ => self.problem(
                    name,
                    format!("`{}` is no regular expression", json::shortened(pattern)),
                    Some("\"all-linear\", a list of layer names, or a regular expression without look-around".to_owned()),
                ),
            },
            _ => match self.list_of_names(name, value, "\"all-linear\", a list of names or a regular expression")? {
                names if names.is_empty() => self.problem(name, "is empty".to_owned(), None),
                names => Some(TargetModules::Names(names)),
            },
        }
    }

    /// Ranks by names of layers.
    pub(super) fn ranks(&mut self, field: &str) -> Option<BTreeMap<String, u32>> {
        let expected = format!("must be at least 1 and at most {MAX_RANK}");
        self.by_name(field, &expected, |value| {
            let rank = value.as_u64().and_then(|rank| u32::try_from(rank).ok());
            rank.filter(|rank| (1..=MAX_RANK).contains(rank))
        })
    }

    /// Alphas by names of layers.
    pub(super) fn alphas(&mut self, field: &str) -> Option<BTreeMap<String, f64>> {
        let expected = format!("must be {ALPHA_BOUNDS}");
        self.by_name(field, &expected, |value| {
            value.as_f64().filter(|alpha| ALPHA_BOUNDS.contain(*alpha))
        })
    }

    fn by_name<T>(
        &mut self,
        field: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Option<BTreeMap<String, T>> {
        let (name, value) = self.take(field)?;
        let Value::Object(entries) = value else {
            return self.wrong_type(name, "an object of numbers by names of layers", value);
        };
        let mut values = BTreeMap::new();
        for (layer, value) in entries {
            if regex::Regex::new(layer).is_err() {
                return self.problem(name, format!("{layer:?} is no regular expression"), None);
            }
            match read(value) {
                Some(value) => values.insert(layer.clone(), value),
                None => {
                    return self.problem(name, format!("{layer}: {expected}, not {value}"), None);
                }
            };
        }
        Some(values)
    }

    /// `mixed_precision`, or one of transformers' booleans for it.
    pub(super) fn mixed_precision(&mut self) -> MixedPrecision {
        let word = self.word("mixed_precision", MixedPrecision::WORDS);
        let mut chosen = word;
        for (field, meaning) in [
            ("bf16", MixedPrecision::Bf16),
            ("fp16", MixedPrecision::Fp16),
        ] {
            if self.flag(field) != Some(true) {
                continue;
            }
            if chosen.is_some_and(|already| already != meaning) {
                self.problem::<()>(
                    field,
                    "says otherwise than another field about the precision".to_owned(),
                    None,
                );
            }
            chosen = Some(meaning);
        }
        chosen.unwrap_or_default()
    }

    /// Says that a field asks for something that is not built.
    pub(super) fn unsupported(&mut self, field: &str, hint: &str) {
        self.problem::<()>(
            field,
            "is not supported yet".to_owned(),
            Some(hint.to_owned()),
        );
    }

    /// Says that a field does not go with another one.
    pub(super) fn contradiction(&mut self, field: &str, message: &str, hint: &str) {
        self.problem::<()>(field, message.to_owned(), Some(hint.to_owned()));
    }

    fn whole(&mut self, field: &str, low: u64, high: u64) -> Option<u64> {
        let (name, value) = self.take(field)?;
        let Some(whole) = whole_number(value) else {
            return self.wrong_type(name, "a whole number", value);
        };
        match u64::try_from(whole).ok() {
            Some(number) if (low..=high).contains(&number) => Some(number),
            _ => self.problem(
                name,
                format!("must be at least {low} and at most {high}, not {value}"),
                None,
            ),
        }
    }

    fn list_of_names(
        &mut self,
        name: &'a str,
        value: &Value,
        expected: &str,
    ) -> Option<Vec<String>> {
        let Value::Array(items) = value else {
            return self.wrong_type(name, expected, value);
        };
        let mut names = Vec::with_capacity(items.len());
        for item in items {
            match item.as_str() {
                Some("") => return self.problem(name, "holds an empty name".to_owned(), None),
                Some(text) => names.push(text.to_owned()),
                None => return self.wrong_type(name, expected, item),
            }
        }
        Some(names)
    }

    /// The field under its own name or an alias, and the name that was used. Null is as if missing.
    fn take(&mut self, field: &str) -> Option<(&'a str, &'a Value)> {
        let mut taken: Option<(&'a str, &'a Value)> = None;
        for name in std::iter::once(&field).chain(aliases(field)) {
            let entry = self.remaining.remove_entry::<str>(name);
            let Some((given, value)) = entry.filter(|(_, value)| !value.is_null()) else {
                continue;
            };
            match taken {
                Some((first, _)) => {
                    self.problem::<()>(
                        given,
                        format!("is the same field as `{first}`, which is given too"),
                        None,
                    );
                }
                None => taken = Some((given, value)),
            }
        }
        taken
    }

    fn wrong_type<T>(&mut self, name: &str, expected: &str, value: &Value) -> Option<T> {
        let message = match value {
            Value::Number(number) => format!("{expected} is expected, not {number}"),
            other => format!("{expected} is expected, not {}", json::kind(other)),
        };
        self.problem(name, message, None)
    }

    fn problem<T>(&mut self, name: &str, message: String, hint: Option<String>) -> Option<T> {
        self.problems.push(FieldProblem {
            field: name.to_owned(),
            message,
            hint,
        });
        None
    }
}

/// A whole number, also one that is written as a float (`3.0`): transformers and YAML write counts so.
fn whole_number(value: &Value) -> Option<i128> {
    match value.as_i64() {
        Some(whole) => Some(whole.into()),
        None => match value.as_u64() {
            Some(whole) => Some(whole.into()),
            // Far beyond every range, and still exact.
            None => value
                .as_f64()
                .filter(|number| number.fract() == 0.0 && number.abs() < 1e18)
                .map(|number| number as i128),
        },
    }
}
