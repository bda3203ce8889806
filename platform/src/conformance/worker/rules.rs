//! The rules for workers, each a pure function of the story.

mod faults;
mod inference;
mod joining;
mod liveness;
mod reconnection;
mod shape;
mod training;

use super::Check;

/// `check!(required "id": "what must hold", function)`
macro_rules! check {
    ($level:ident $id:literal: $says:literal, $look:path) => {
        $crate::conformance::worker::Check {
            rule: $crate::conformance::report::Rule::$level($id, $says),
            look: $look,
        }
    };
}
use check;

/// All rules in order.
pub(super) const CHECKS: &[&[Check]] = &[
    joining::CHECKS,
    liveness::CHECKS,
    training::CHECKS,
    inference::CHECKS,
    faults::CHECKS,
    reconnection::CHECKS,
];
