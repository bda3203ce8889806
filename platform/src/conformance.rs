//! Judges other implementations of the protocols, seen from outside: a platform by playing workers and dashboards, a
//! worker by playing the platform, a coordinator by playing volunteers.
//!
//! Each rule of the source document is one line of the report. A *required* rule is stated by the source; a
//! *recommended* one is a decision of ours where the source is silent, which another implementation may take
//! otherwise. A check brings about all that it needs by itself, so that one fault fails the rule that it breaks and
//! leaves the others alone.

mod check;
pub mod coordinator;
pub mod platform;
pub mod report;
mod socket;
pub mod worker;

pub use report::{Finding, Level, Report, Rule, Verdict};
