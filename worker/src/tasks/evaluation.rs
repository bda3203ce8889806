//! One evaluation, from `start_evaluation` to its figures.
//!
//! 1. The request is checked. It then waits for its turn.
//! 2. Data set, adapter and base model are found or fetched. Where the message names no base model, it is
//!    the one that the adapter was made for.
//! 3. The engine measures on a thread of its own and tells how far it is.

use std::sync::Arc;

use tempfile::TempDir;
use tokio::sync::Semaphore;
use trainyard_shared::Secret;
use trainyard_shared::dataset::DatasetFormat;
use trainyard_shared::ids::DatasetId;
use trainyard_shared::message::{
    BaseModel, DatasetSource, EvaluationMetrics, StartEvaluation, StartEvaluationData,
};
use trainyard_shared::training::TrainOn;

use super::base_model::ModelId;
use super::dataset::fetch_dataset;
use super::failure::Failure;
use super::loaded::LoadedModel;
use super::model_task::{TaskProgress, off_thread, refused};
use super::result_files::{AdapterFiles, JobResult, fetch_result};
use super::{StopSignal, TaskContext};
use crate::engine::adapter;
use crate::engine::data::{DataFile, RowEncoder, TokenCache, read_examples};
use crate::engine::evaluate::{Evaluated, Evaluation, evaluate};

/// Rows at a time, where the request does not say.
const DEFAULT_BATCH_SIZE: u64 = 8;
/// Longest row in tokens, where the request does not say.
const DEFAULT_MAX_LENGTH: u64 = 1024;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Metric {
    Perplexity,
    Loss,
    TokenAccuracy,
}

/// Everything that is needed, on this machine.
struct Prepared {
    model: Arc<LoadedModel>,
    adapter: Option<AdapterFiles>,
    dataset: DataFile,
    token_cache: TokenCache,
    max_bad_rows: u64,
    batch_size: usize,
    max_length: usize,
    /// Goes with the data set in it, where that is not kept.
    _own_dir: TempDir,
}

/// The figures; none when it was stopped.
pub(super) async fn measured(
    start: &StartEvaluation,
    context: &TaskContext,
    turns: &Semaphore,
    stop: &StopSignal,
) -> Result<Option<EvaluationMetrics>, Failure> {
    let metrics = metrics(&start.data.metrics)?;
    let prepare = async {
        let turn = turns.acquire().await;
        Ok::<_, Failure>((turn, prepare(&start.data, context).await?))
    };
    let (_turn, prepared) = tokio::select! {
        prepared = prepare => prepared?,
        _ = stop.stopped() => return Ok(None),
    };
    let (id, reports, stop) = (start.evaluation_id, context.reports.clone(), stop.clone());
    let progress = TaskProgress::new(id.into(), reports);
    let evaluated = off_thread(move || prepared.measure(progress, &stop)).await?;
    Ok(match evaluated {
        Evaluated::Completed(figures) => Some(chosen(&figures, &metrics)),
        Evaluated::Stopped => None,
    })
}

fn metrics(names: &[String]) -> Result<Vec<Metric>, Failure> {
    if names.is_empty() {
        return Err(refused("metrics: none is asked for".to_owned()));
    }
    let metric = |name: &String| match name.as_str() {
        "perplexity" => Ok(Metric::Perplexity),
        "loss" => Ok(Metric::Loss),
        "token_accuracy" => Ok(Metric::TokenAccuracy),
        other => Err(refused(format!(
            "metrics: `{other}` is none of perplexity, loss, token_accuracy"
        ))),
    };
    names.iter().map(metric).collect()
}

fn chosen(figures: &Evaluation, metrics: &[Metric]) -> EvaluationMetrics {
    let if_asked = |metric, value| metrics.contains(&metric).then_some(value);
    EvaluationMetrics {
        perplexity: if_asked(Metric::Perplexity, figures.perplexity),
        loss: if_asked(Metric::Loss, figures.loss),
        token_accuracy: if_asked(Metric::TokenAccuracy, figures.token_accuracy),
        tokens: Some(figures.tokens),
    }
}

async fn prepare(data: &StartEvaluationData, context: &TaskContext) -> Result<Prepared, Failure> {
    let count = |field: &str, number: Option<u64>, default| match number.unwrap_or(default) {
        0 => Err(refused(format!("{field}: must be at least 1"))),
        number => Ok(usize::try_from(number).unwrap_or(usize::MAX)),
    };
    let batch_size = count("batch_size", data.batch_size, DEFAULT_BATCH_SIZE)?;
    let max_length = count("max_length", data.max_length, DEFAULT_MAX_LENGTH)?;
    let own_dir = context.own_folder("evaluation-")?;
    let source = match &data.dataset {
        Some(dataset) => dataset.clone(),
        None => plain_dataset(&data.dataset_url)?,
    };
    let dataset = fetch_dataset(&source, context, own_dir.path(), async || Ok(None)).await?;
    let (base, result_path) = named_models(data);
    let result = match result_path {
        Some(path) => {
            Some(fetch_result(path, ("download_urls", &data.download_urls), context).await?)
        }
        None => None,
    };
    let (path, adapter) = match result {
        Some(JobResult::Model(folder)) => (folder, None),
        Some(JobResult::Adapter(files)) => {
            let base = base.map_or_else(|| base_of(&files), Ok)?;
            (context.models.find(&base, |_| {}).await?, Some(files))
        }
        None => {
            let unnamed =
                || refused("base_model: neither a base model nor an adapter is named".to_owned());
            let base = base.ok_or_else(unnamed)?;
            (context.models.find(&base, |_| {}).await?, None)
        }
    };
    let model = match &adapter {
        Some(files) => context.loaded.get_for(&path, files).await?,
        None => context.loaded.get(&path).await?,
    };
    Ok(Prepared {
        max_length: max_length.min(model.config().max_position_embeddings),
        model,
        adapter,
        dataset,
        token_cache: context.token_cache(),
        max_bad_rows: source.max_bad_rows.unwrap_or(0),
        batch_size,
        _own_dir: own_dir,
    })
}

/// The base model and the adapter's path, as far as the message names them. Its `model_url` may also name a
/// base model to be measured as it is.
fn named_models(data: &StartEvaluationData) -> (Option<BaseModel>, Option<&str>) {
    let model_url = data.model_url.as_deref().filter(|name| !name.is_empty());
    match (&data.base_model, model_url) {
        (Some(base), Some(name)) if base.huggingface_id == name => (Some(base.clone()), None),
        (None, Some(name)) if data.download_urls.is_empty() && ModelId::parse(name).is_some() => {
            let base = BaseModel {
                huggingface_id: name.to_owned(),
                download_urls: Vec::new(),
            };
            (Some(base), None)
        }
        (base, name) => (base.clone(), name),
    }
}

/// The plain form of the source document: only an address.
fn plain_dataset(url: &str) -> Result<DatasetSource, Failure> {
    if !(url.starts_with("http://") || url.starts_with("https://")) {
        return Err(refused(format!(
            "dataset: {url} is no address, and no other is given"
        )));
    }
    let without_query = url.split(['?', '#']).next().unwrap_or(url);
    let name = without_query.rsplit('/').next().unwrap_or_default();
    let format = DatasetFormat::of_file_name(name).unwrap_or_default();
    Ok(DatasetSource {
        // Addresses count as secrets and are not shown.
        storage_path: name.to_owned(),
        download_url: Secret::from(url.to_owned()),
        format: format.to_string(),
        id: DatasetId(1),
        sha256: None,
        size_bytes: None,
        max_bad_rows: None,
    })
}

fn base_of(adapter: &AdapterFiles) -> Result<BaseModel, Failure> {
    match adapter::base_model_of(adapter.folder())? {
        Some(huggingface_id) => Ok(BaseModel {
            huggingface_id,
            download_urls: Vec::new(),
        }),
        None => Err(refused(
            "base_model: the adapter does not say which it was made for".to_owned(),
        )),
    }
}

impl Prepared {
    fn measure(self, mut progress: TaskProgress, stop: &StopSignal) -> Result<Evaluated, Failure> {
        let chat = self.model.chat()?;
        let encoder = RowEncoder {
            chat: &chat,
            train_on: TrainOn::Auto,
            max_length: self.max_length,
            vocab_size: self.model.config().vocab_size,
        };
        let is_stopped = || stop.is_set();
        let read = read_examples(
            &self.dataset,
            &encoder,
            self.max_bad_rows,
            &self.token_cache,
            &is_stopped,
        );
        if is_stopped() {
            return Ok(Evaluated::Stopped);
        }
        let (examples, _) = read?;
        let adapter = match &self.adapter {
            Some(files) => Some(adapter::load_all(files.folder(), self.model.config())?.pairs),
            None => None,
        };
        let total = examples.len() as u64;
        progress.tell(0, total);
        Ok(evaluate(
            self.model.llama().clone(),
            adapter.as_ref(),
            &examples,
            self.batch_size,
            &is_stopped,
            &mut |done| progress.tell(done as u64, total),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for_is_told_and_unknown_metrics_are_refused_by_name() {
        let figures = Evaluation {
            loss: 0.5,
            perplexity: 1.6487,
            token_accuracy: 0.25,
            tokens: 8,
        };
        let asked = metrics(&["perplexity".to_owned(), "token_accuracy".to_owned()]).unwrap();
        let told = chosen(&figures, &asked);
        assert_eq!(told.perplexity, Some(1.6487));
        assert_eq!((told.loss, told.token_accuracy), (None, Some(0.25)));
        assert_eq!(told.tokens, Some(8));
        let refused = metrics(&["bleu".to_owned()]).unwrap_err();
        assert_eq!(refused.kind, trainyard_shared::FailureKind::BadConfig);
        assert!(refused.message.contains("`bleu`"), "{refused:?}");
        assert!(metrics(&[]).unwrap_err().message.starts_with("metrics: "));
    }

    #[test]
    fn a_plain_address_is_fetched_and_anything_else_is_refused() {
        let source = plain_dataset("https://x.example/a/eval.jsonl?sig=secret").unwrap();
        assert_eq!(source.storage_path, "eval.jsonl");
        assert_eq!(source.format, "jsonl");
        let packed = plain_dataset("https://x.example/eval.csv.gz?a=b.jsonl").unwrap();
        assert_eq!(packed.format, "csv");
        let refused = plain_dataset("datasets/43/eval.jsonl").unwrap_err();
        assert!(refused.message.starts_with("dataset: "), "{refused:?}");
    }
}
