//! Whether a round that is being trained is still open: the coordinator is asked now and then, and a round that has gone
//! on without this volunteer is not trained to its end.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trainyard_shared::coordinator::{Finished, Task, TaskReply};

use super::rounds::Volunteer;

/// Set once a round has gone on without this volunteer.
#[derive(Debug, Clone, Default)]
pub(super) struct Overtaken(Arc<AtomicBool>);

impl Overtaken {
    /// Whether it has.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Volunteer<'_> {
    /// Waits for a round's `work`, and sets `overtaken` as soon as the coordinator says that the round is over. Where it
    /// says nothing the work goes on.
    pub(super) async fn watched<T>(
        &self,
        task: &Task,
        overtaken: &Overtaken,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        loop {
            let asked = async {
                tokio::time::sleep(self.config.watch_every).await;
                self.client.task().await
            };
            tokio::select! {
                done = &mut work => return done,
                reply = asked => if reply.is_ok_and(|reply| is_over(task, &reply)) {
                    overtaken.set();
                    return work.await;
                },
            }
        }
    }
}

/// Whether an answer means that nobody waits for the result of `task` any more.
fn is_over(task: &Task, reply: &TaskReply) -> bool {
    match reply {
        TaskReply::Task(now) => {
            now.round != task.round
                || !now
                    .weights_sha256
                    .eq_ignore_ascii_case(&task.weights_sha256)
        }
        // There is a result under this name.
        TaskReply::Wait(_) => true,
        TaskReply::Finished(Finished { finished }) => *finished,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_round_is_over_when_another_one_is_open_its_result_is_in_or_training_has_finished() {
        let task = |round: u64, weights: &str| {
            json!({
                "tur": round, "toplam_tur": 9, "parca": 0, "n_parca": 1, "ic_adim": 2, "bs": 2, "seq": 16, "lr": 0.01,
                "tohum": 0, "agirlik_sha256": weights,
            })
        };
        let mine: Task = serde_json::from_value(task(3, "ab")).unwrap();
        let over = |reply: Value| is_over(&mine, &serde_json::from_value(reply).unwrap());
        assert!(!over(task(3, "AB")) && !over(json!({"bitti": false})));
        assert!(over(task(4, "ab")) && over(task(2, "ab")) && over(task(3, "cd")));
        assert!(over(json!({"bekle": true, "tur": 3})) && over(json!({"bitti": true})));
    }
}
