//! How well a model predicts data: the same figures however the rows are put into batches.
//!
//! ```text
//! loss = sum of NLL / number of targets      perplexity = e^loss
//! token_accuracy = targets that no other token was more likely than / number of targets
//! ```
//! Every row begins a block of its own, where it is computed by the same operations in the same order whatever
//! is beside it; and the sum runs over the rows in the file's order.

use std::sync::Arc;

use super::EngineError;
use super::data::Examples;
use super::device::LANES;
use super::model::{Adapter, Batch, IGNORE, Llama, LossSum, TrainModel};

/// Tokens that run at once at most, whatever the batch's number of rows.
const BATCH_TOKENS: usize = 4096;

/// The figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Mean loss over all labelled tokens, in nats.
    pub loss: f64,
    /// e to the power of the loss; infinite where that is too large.
    pub perplexity: f64,
    /// Part of the labelled tokens that no other token was more likely than, 0 to 1.
    pub token_accuracy: f64,
    /// Labelled tokens.
    pub tokens: u64,
}

/// How an evaluation ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Evaluated {
    /// All rows are measured.
    Completed(Evaluation),
    /// The caller asked to stop.
    Stopped,
}

/// Measures a model, with an adapter where one is given, on `examples`: at most `batch_size` rows at once.
/// `is_stopped` is asked before every batch and before every layer of the model; `on_progress` is told how many rows are done.
///
/// # Errors
/// An adapter that does not fit the model, [`EngineError::InvalidData`] without any row,
/// [`EngineError::OutOfMemory`], and [`EngineError::NotFinite`] where the model gives no numbers.
pub fn evaluate(
    model: Arc<Llama>,
    adapter: Option<&Adapter>,
    examples: &Examples,
    batch_size: usize,
    is_stopped: &(dyn Fn() -> bool + Sync),
    on_progress: &mut dyn FnMut(usize),
) -> Result<Evaluated, EngineError> {
    let none = Adapter::empty(model.config());
    let mut model = TrainModel::new(model, adapter.unwrap_or(&none))?;
    let rows: Vec<u32> = (0..examples.len() as u32).collect();
    measure(
        &mut model,
        (examples, &rows),
        batch_size,
        is_stopped,
        on_progress,
    )
}

/// As [`evaluate`], of a model in training, on some rows of the examples.
///
/// # Errors
/// As [`evaluate`].
pub fn measure(
    model: &mut TrainModel,
    (examples, rows): (&Examples, &[u32]),
    batch_size: usize,
    is_stopped: &(dyn Fn() -> bool + Sync),
    on_progress: &mut dyn FnMut(usize),
) -> Result<Evaluated, EngineError> {
    let mut sums = Sums::default();
    let mut done = 0;
    while done < rows.len() {
        if is_stopped() {
            return Ok(Evaluated::Stopped);
        }
        let batch = &rows[done..][..batch_len(examples, &rows[done..], batch_size)];
        let Some(scores) = model.score(&aligned(examples, batch), is_stopped)? else {
            return Ok(Evaluated::Stopped);
        };
        for score in scores {
            sums.loss += score;
            sums.likeliest += u64::from(score.is_likeliest);
        }
        done += batch.len();
        on_progress(done);
    }
    sums.figures().map(Evaluated::Completed)
}

#[derive(Debug, Default)]
struct Sums {
    loss: LossSum,
    likeliest: u64,
}

impl Sums {
    fn figures(&self) -> Result<Evaluation, EngineError> {
        if self.loss.tokens == 0 {
            return Err(EngineError::InvalidData("no labelled tokens".to_owned()));
        }
        let loss = self.loss.mean();
        if !loss.is_finite() {
            return Err(EngineError::NotFinite);
        }
        Ok(Evaluation {
            loss,
            perplexity: loss.exp(),
            token_accuracy: self.likeliest as f64 / self.loss.tokens as f64,
            tokens: self.loss.tokens,
        })
    }
}

/// How many of `rows` make up the next batch.
fn batch_len(examples: &Examples, rows: &[u32], batch_size: usize) -> usize {
    let mut tokens = 0;
    let fits = |(place, row): &(usize, &u32)| {
        tokens += examples
            .input_length(**row as usize)
            .next_multiple_of(LANES);
        *place == 0 || tokens <= BATCH_TOKENS
    };
    let most = rows.iter().take(batch_size.max(1)).enumerate();
    most.take_while(fits).count()
}

/// Rows as a batch in which each begins a block; what lies between them has no target.
fn aligned(examples: &Examples, rows: &[u32]) -> Batch {
    let mut batch = Batch::default();
    for &row in rows {
        let gap = batch.tokens().next_multiple_of(LANES) - batch.tokens();
        if gap > 0 {
            batch.push_sequence(&vec![0; gap], &vec![IGNORE; gap]);
        }
        let one = examples.batch(&[row]);
        batch.push_sequence(&one.ids, &one.targets);
    }
    batch
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::data::Example;
    use crate::golden;
    use crate::weights::ModelFiles;

    fn model() -> Arc<Llama> {
        let files = ModelFiles::open(&golden::path("untied")).unwrap();
        Arc::new(Llama::load(&files).unwrap())
    }

    fn examples(lengths: &[u32]) -> Examples {
        let mut examples = Examples::new();
        for (row, &length) in lengths.iter().enumerate() {
            let ids: Vec<u32> = (0..length).map(|i| (i * 37 + row as u32) % 128).collect();
            examples.push(&Example {
                trained: ids.iter().enumerate().map(|(i, _)| i % 3 != 0).collect(),
                ids,
                truncated: false,
            });
        }
        examples
    }

    fn run(examples: &Examples, batch_size: usize) -> Evaluation {
        let mut done = Vec::new();
        let evaluated = evaluate(
            model(),
            None,
            examples,
            batch_size,
            &|| false,
            &mut |rows| done.push(rows),
        );
        assert_eq!(done.last(), Some(&examples.len()));
        match evaluated.unwrap() {
            Evaluated::Completed(figures) => figures,
            Evaluated::Stopped => panic!("nobody stopped it"),
        }
    }

    #[test]
    fn g095_figures_are_the_same_bits_whatever_the_batch_size() {
        let examples = examples(&[3, 7, 40, 33, 5, 100, 2, 64]);
        let one = run(&examples, 1);
        for batch_size in [2, 4, 8, 100] {
            assert_eq!(run(&examples, batch_size), one, "batch_size {batch_size}");
        }
        assert_eq!(one.perplexity, one.loss.exp());
        assert!((0.0..=1.0).contains(&one.token_accuracy));
    }

    #[test]
    fn g095_the_loss_is_the_mean_over_tokens_and_not_over_rows_or_batches() {
        let sums = Sums {
            loss: LossSum {
                nll_sum: 2.0 + 12.0,
                tokens: 2 + 6,
            },
            likeliest: 2,
        };
        let figures = sums.figures().unwrap();
        assert!((figures.perplexity - 5.7546).abs() < 1e-4, "{figures:?}");
        assert_eq!((figures.token_accuracy, figures.tokens), (0.25, 8));
        let (short, long) = (examples(&[9]), examples(&[0, 61]));
        let mut both = LossSum::default();
        for rows in [&short, &long] {
            let figures = run(rows, 1);
            both += LossSum {
                nll_sum: figures.loss * figures.tokens as f64,
                tokens: figures.tokens,
            };
        }
        let mut all = examples(&[9]);
        let ids: Vec<u32> = (0..61).map(|i| (i * 37 + 1) % 128).collect();
        all.push(&Example {
            trained: ids.iter().enumerate().map(|(i, _)| i % 3 != 0).collect(),
            ids,
            truncated: false,
        });
        assert!((run(&all, 2).loss - both.mean()).abs() < 1e-12);
    }

    #[test]
    fn it_agrees_with_the_training_loss() {
        let examples = examples(&[40, 12, 33]);
        let none = Adapter::empty(model().config());
        let mut trained = TrainModel::new(model(), &none).unwrap();
        let loss = trained.evaluate(&examples.batch(&[0, 1, 2])).unwrap();
        let figures = run(&examples, 3);
        assert!((figures.loss - loss.mean()).abs() < 1e-5);
        assert_eq!(figures.tokens, loss.tokens);
    }

    #[test]
    fn it_can_be_stopped_between_batches_and_wants_rows() {
        let examples = examples(&[3, 7, 40]);
        let done = AtomicUsize::new(0);
        let stopped = evaluate(
            model(),
            None,
            &examples,
            1,
            &|| done.load(Ordering::Relaxed) >= 2,
            &mut |rows| done.store(rows, Ordering::Relaxed),
        );
        assert_eq!(stopped.unwrap(), Evaluated::Stopped);
        let nothing = evaluate(model(), None, &Examples::new(), 1, &|| false, &mut |_| {});
        assert!(matches!(nothing, Err(EngineError::InvalidData(_))));
    }

    #[test]
    fn it_can_be_stopped_before_every_layer_within_a_batch() {
        let examples = examples(&[40]);
        let asked_up_to = |stop_at: usize| {
            let asked = AtomicUsize::new(0);
            let is_stopped = || asked.fetch_add(1, Ordering::Relaxed) + 1 == stop_at;
            let evaluated = evaluate(model(), None, &examples, 1, &is_stopped, &mut |_| {
                assert_eq!(stop_at, 0, "a stopped batch is not done");
            });
            (evaluated.unwrap(), asked.load(Ordering::Relaxed))
        };
        let (completed, asked) = asked_up_to(0);
        assert!(matches!(completed, Evaluated::Completed(_)));
        assert_eq!(asked, 1 + model().config().num_hidden_layers);
        for stop_at in 1..=asked {
            assert_eq!(asked_up_to(stop_at), (Evaluated::Stopped, stop_at));
        }
    }

    #[test]
    fn batches_hold_no_more_tokens_than_fit_and_at_least_one_row() {
        let examples = examples(&[3000, 3000, 40, 5000, 2]);
        let len = |rows: &[u32], batch_size| batch_len(&examples, rows, batch_size);
        assert_eq!(len(&[0, 1, 2, 3, 4], 8), 1);
        assert_eq!(len(&[1, 2, 3, 4], 8), 2);
        assert_eq!(len(&[3, 4], 8), 1);
        assert_eq!(len(&[1, 2], 1), 1);
        assert_eq!(len(&[4], 0), 1);
    }
}
