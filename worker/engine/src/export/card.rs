//! What is published beside an adapter or a model: the model card that says where it comes from.

use std::fs;
use std::path::Path;

use crate::EngineError;
use crate::adapter::AdapterConfig;
use crate::checkpoint::TrainerState;
use crate::data::DatasetReport;

/// What a model card tells.
#[derive(Debug)]
pub struct ModelCard<'a> {
    /// The run: its figures, data, config and base model.
    pub state: &'a TrainerState,
    /// What became of the data set's rows.
    pub dataset: &'a DatasetReport,
    /// Rows that were kept for evaluation.
    pub evaluation_rows: u64,
    /// The adapter; none where all weights were trained.
    pub adapter: Option<&'a AdapterConfig>,
    /// SHA-256 over the base model's weights.
    pub base_sha256: String,
}

/// Writes `README.md` into the result's folder, in the form that model hubs read.
///
/// # Errors
/// [`EngineError::Io`] where the disk does not take it.
pub fn write_card(folder: &Path, card: &ModelCard<'_>) -> Result<(), EngineError> {
    let path = folder.join("README.md");
    fs::write(&path, card.text()).map_err(|error| EngineError::io("write", path, error))
}

impl ModelCard<'_> {
    fn text(&self) -> String {
        let Self {
            state,
            dataset,
            evaluation_rows,
            adapter,
            base_sha256,
        } = self;
        let base_model = &state.run.base_model;
        let figure =
            |figure: Option<f64>| figure.map_or("none".to_owned(), |figure| format!("{figure:.4}"));
        let mut text = String::new();
        let mut line = |line: &str| {
            text += line;
            text.push('\n');
        };
        line("---");
        line(&format!(
            "base_model: {}",
            serde_json::Value::from(base_model.as_str())
        ));
        let (library, tags, title, load) = match adapter {
            Some(_) => (
                "peft",
                "- lora\n- trainyard",
                format!("LoRA adapter for {base_model}"),
                "PEFT: `PeftModel.from_pretrained(base, folder)`",
            ),
            None => (
                "transformers",
                "- trainyard",
                format!("{base_model}, fine-tuned in all its weights"),
                "transformers: `AutoModelForCausalLM.from_pretrained(folder)`",
            ),
        };
        line(&format!("library_name: {library}"));
        line("pipeline_tag: text-generation");
        line(&format!("tags:\n{tags}\n---\n"));
        line(&format!("# {title}\n"));
        line(&format!(
            "Made by Trainyard {}. Load it with {load}.\n",
            env!("CARGO_PKG_VERSION")
        ));
        line("| | |\n| --- | --- |");
        line(&format!("| base model | {base_model} |"));
        line(&format!("| its weights, SHA-256 | `{base_sha256}` |"));
        line(&format!(
            "| data set, SHA-256 | `{}` |",
            state.run.dataset_sha256
        ));
        line(&format!(
            "| rows | {} trained on, {evaluation_rows} kept for evaluation, {} dropped, {} skipped, {} cut |",
            dataset.examples - evaluation_rows,
            dataset.dropped_rows,
            dataset.skipped_rows,
            dataset.truncated_rows
        ));
        line(&format!(
            "| tokens an epoch | {}, of which {} are learned |",
            dataset.tokens, dataset.trained_tokens
        ));
        if let Some(adapter) = adapter {
            line(&format!(
                "| adapter | rank {}, alpha {}{} |",
                adapter.r,
                adapter.lora_alpha,
                if adapter.use_rslora {
                    ", rank-stabilised"
                } else {
                    ""
                }
            ));
        }
        line(&format!(
            "| steps | {}, of which {} were skipped |",
            state.step, state.skipped_steps
        ));
        line(&format!(
            "| loss | {} at the start, {} at the end |",
            figure(state.first_loss),
            figure(state.last_loss)
        ));
        line(&format!(
            "| smoothed loss at the end | {} |",
            figure(state.loss_ema)
        ));
        if let Some(best) = state.evaluations.best {
            let newest = figure(state.evaluations.newest_loss);
            line(&format!(
                "| evaluation loss | {:.4} at best, after step {}; {newest} at the end |",
                best.loss, best.step
            ));
        }
        line(&format!(
            "| tokens trained | {} in {:.0} s |",
            state.tokens, state.training_seconds
        ));
        line("\n## Config\n\n```json");
        line(
            &serde_json::to_string_pretty(&state.run.config)
                .expect("a map of JSON values is written"),
        );
        line("```");
        text
    }
}
