//! The rules by which results become the next adapter.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How the results of a round are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The mean is where an outer step with Nesterov momentum goes (DiLoCo, <https://arxiv.org/abs/2311.08105>).
    #[default]
    Nesterov,
    /// The mean, each result counted once.
    Mean,
    /// The mean, each result counted by its examples (FedAvg, <https://arxiv.org/abs/1602.05629>).
    WeightedMean,
    /// For each value the mean without the smallest and the largest tenth of the results, at least one on either side
    /// of three or more (<https://arxiv.org/abs/1803.01498>).
    TrimmedMean,
    /// For each value the median; of an even number of results the mean of the two in the middle.
    Median,
    /// The one result that is nearest to its neighbours (<https://arxiv.org/abs/1703.02757>): of n results up to
    /// (n - 3) / 2 may be hostile. Of fewer than three the mean. Takes time that grows with the square of n.
    Krum,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 6] = [
        Self::Nesterov,
        Self::Mean,
        Self::WeightedMean,
        Self::TrimmedMean,
        Self::Median,
        Self::Krum,
    ];

    /// Results with which it says anything: Krum takes the one that is nearest to the others, and of two each is as near
    /// to the other.
    pub const fn fewest(self) -> u64 {
        match self {
            Self::Krum => 3,
            _ => 1,
        }
    }

    /// Its name in settings and requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nesterov => "nesterov",
            Self::Mean => "mean",
            Self::WeightedMean => "weighted_mean",
            Self::TrimmedMean => "trimmed_mean",
            Self::Median => "median",
            Self::Krum => "krum",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is none of a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of nesterov, mean, weighted_mean, trimmed_mean, median, krum")]
pub struct UnknownRule(String);

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<Self, UnknownRule> {
        let rule = Self::ALL.into_iter().find(|rule| rule.name() == name);
        rule.ok_or_else(|| UnknownRule(name.to_owned()))
    }
}
