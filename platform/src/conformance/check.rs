//! A rule with the function that looks at it.

use futures_util::future::LocalBoxFuture;

use super::report::{Outcome, Rule};

/// A rule and how it is looked at, playing with `T`.
pub struct Check<T: 'static> {
    pub rule: Rule,
    pub run: for<'a> fn(&'a mut T) -> LocalBoxFuture<'a, Outcome>,
}

/// `check!(required "id": "what must hold", function)`
macro_rules! check {
    ($level:ident $id:literal: $says:literal, $run:path) => {
        $crate::conformance::check::Check {
            rule: $crate::conformance::report::Rule::$level($id, $says),
            run: |judged| Box::pin($run(judged)),
        }
    };
}
pub(super) use check;
