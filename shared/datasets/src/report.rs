//! What is known of all rows of a data set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use trainyard_shared::dataset::{Row, RowShape};
use trainyard_shared::training::TrainOn;
use utoipa::ToSchema;

use crate::error::DatasetError;
use crate::record::{Place, Record};

/// So many problems are kept word for word; the others are only counted.
pub const MAX_KEPT_PROBLEMS: usize = 100;

/// What is wrong with one row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LineProblem {
    /// The line on which the row begins, from 1; in a Parquet file the row's number; 0 for the file as a whole.
    pub line: u64,
    /// The place in words: `line 3`, `element 2 (line 17)`, `row 5`, `file`.
    pub place: String,
    /// What is wrong.
    pub message: String,
}

impl LineProblem {
    /// What is wrong at a place.
    pub fn new(place: Place, message: impl ToString) -> Self {
        Self {
            line: place.number(),
            place: place.to_string(),
            message: message.to_string(),
        }
    }
}

impl From<&DatasetError> for LineProblem {
    fn from(error: &DatasetError) -> Self {
        match error.place() {
            Some(place) => Self::new(place, error),
            None => Self {
                line: 0,
                place: "file".to_owned(),
                message: error.to_string(),
            },
        }
    }
}

impl std::fmt::Display for LineProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Figures on the rows of a data set, and what is wrong with its bad ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct RowReport {
    /// Good rows.
    pub rows: u64,
    /// Good rows by their shape.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub row_shapes: BTreeMap<RowShape, u64>,
    /// Good rows with nothing to train on: they are dropped in training.
    pub untrainable_rows: u64,
    /// Bad rows.
    pub bad_rows: u64,
    /// The first [`MAX_KEPT_PROBLEMS`] bad rows and, behind them, the first rows with nothing to train on.
    pub problems: Vec<LineProblem>,
    /// What ended the reading before the file's end: such a file is never accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<LineProblem>,
}

impl RowReport {
    /// Good rows that have something to train on.
    pub const fn trainable_rows(&self) -> u64 {
        self.rows - self.untrainable_rows
    }
}

/// What is told of a good row that training would drop.
const NOTHING_TO_TRAIN_ON: &str = "nothing to train on: no answer, completion or text that is more than white space; dropped in training";

/// Counts rows, in bounded memory.
#[derive(Debug, Default)]
pub struct RowTally {
    report: RowReport,
    /// The first rows with nothing to train on.
    untrainable: Vec<Place>,
}

impl RowTally {
    /// Nothing is counted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a record, and gives the row if it is one.
    pub fn record(&mut self, record: &Record) -> Option<Row> {
        let report = &mut self.report;
        match record.row() {
            Ok(row) => {
                report.rows += 1;
                *report.row_shapes.entry(row.shape()).or_default() += 1;
                if !row.is_trainable(TrainOn::Auto) {
                    report.untrainable_rows += 1;
                    if self.untrainable.len() < MAX_KEPT_PROBLEMS {
                        self.untrainable.push(record.place);
                    }
                }
                Some(row)
            }
            Err(problem) => {
                report.bad_rows += 1;
                if report.problems.len() < MAX_KEPT_PROBLEMS {
                    report
                        .problems
                        .push(LineProblem::new(record.place, problem));
                }
                None
            }
        }
    }

    /// Notes what ended the reading early.
    pub fn damage(&mut self, error: &DatasetError) {
        self.report.damage = Some(error.into());
    }

    /// The report on all that was counted.
    pub fn finish(self) -> RowReport {
        let mut report = self.report;
        let room = MAX_KEPT_PROBLEMS.saturating_sub(report.problems.len());
        let untrainable = self.untrainable.into_iter().take(room);
        report
            .problems
            .extend(untrainable.map(|place| LineProblem::new(place, NOTHING_TO_TRAIN_ON)));
        report
    }
}

/// The report on all of a file's records.
///
/// # Errors
/// Only where the system cannot read it; all else is in the report.
pub fn report_on(records: Result<crate::Records, DatasetError>) -> Result<RowReport, DatasetError> {
    let mut tally = RowTally::new();
    let counted = records.and_then(|mut records| {
        records.try_for_each(|record| {
            tally.record(&record?);
            Ok(())
        })
    });
    match counted {
        Ok(()) => {}
        Err(error) if error.is_io() => return Err(error),
        Err(error) => tally.damage(&error),
    }
    Ok(tally.finish())
}
