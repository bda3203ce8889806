//! Why a session does not go on, for a person.

use super::{Doing, Session, Stage};

impl Session {
    /// Why the session does not go on.
    pub fn waiting_because(&self) -> Option<String> {
        match self.stage {
            Stage::Ended => return None,
            Stage::Merging => return Some("the round's results are being merged".to_owned()),
            Stage::Open => {}
        }
        let masking = self.masking.as_ref();
        let of_sum = masking.and_then(|masking| masking.waiting_because());
        let mut reason = of_sum.unwrap_or_else(|| self.results_awaited());
        for (worker, member) in &self.members {
            if let Doing::Failed { error, .. } = &member.doing {
                reason.push_str(&format!("; worker {worker} failed: {error}"));
            }
        }
        for (accuser, accused) in masking.iter().flat_map(|masking| masking.accusations()) {
            if self.members.contains_key(&accuser) && self.members.contains_key(&accused) {
                reason.push_str(&format!(
                    "; worker {accuser} cannot use the shares of worker {accused}"
                ));
            }
        }
        for (worker, error) in self.failures.barred() {
            reason.push_str(&format!("; worker {worker} failed too often: {error}"));
        }
        Some(reason)
    }

    /// How many workers and results there are, and how many the round needs.
    fn results_awaited(&self) -> String {
        let needed = self.settings.min_workers;
        let (there, delivered) = (self.members.len(), self.delivered());
        if self.can_close() && self.is_short() {
            return format!(
                "the round's time is over; it closes with {needed} results, and has {delivered}"
            );
        }
        if self.can_close() {
            let of = delivered + self.awaited().count();
            return format!("{delivered} of {of} results are there");
        }
        let workers = match there {
            0 => "no worker takes part".to_owned(),
            1 => "1 worker takes part".to_owned(),
            many => format!("{many} workers take part"),
        };
        let results = match delivered {
            0 => String::new(),
            1 => "; 1 result is there".to_owned(),
            many => format!("; {many} results are there"),
        };
        format!("{workers}, and the round needs {needed}{results}")
    }
}
