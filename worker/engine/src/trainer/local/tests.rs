use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use trainyard_shared::training::{ScheduleKind, TargetModules};

use super::*;
use crate::adapter::{ADAPTER_WEIGHTS, AdapterConfig};
use crate::data::{DataFile, TokenCache};
use crate::export::FloatType;
use crate::files;
use crate::golden;
use crate::trainer::RowSource;
use crate::weights::SafetensorsFile;

/// A tiny model, a shard and the weights with which rounds begin.
struct Bench {
    folder: tempfile::TempDir,
    model: tempfile::TempDir,
    config: TrainingConfig,
}

impl Bench {
    fn new() -> Self {
        let bench = Self {
            folder: tempfile::tempdir().unwrap(),
            model: golden::model_with_tokenizer("tied"),
            config: TrainingConfig {
                packing: false,
                batch_size: 2,
                learning_rate: 1e-2,
                lr_scheduler_type: ScheduleKind::Constant,
                max_length: 16,
                lora_r: 4,
                lora_alpha: 8.0,
                seed: 7,
                target_modules: TargetModules::Names(vec!["q_proj".into(), "v_proj".into()]),
                ..TrainingConfig::default()
            },
        };
        // Twelve windows of sixteen tokens.
        let ids: Vec<i32> = (0..193).map(|i| 5 + (i * i + i / 7) % 60).collect();
        let view = TensorView::new(Dtype::I32, vec![ids.len()], bytemuck::cast_slice(&ids));
        serialize_to_file([("ids", view.unwrap())], None, &bench.path("shard")).unwrap();
        let (files, adapter) = (bench.files(), bench.adapter());
        let fresh = adapter::fresh(&adapter, &files.config, 1).unwrap();
        adapter::save(bench.folder.path(), &fresh, &adapter, &files.config).unwrap();
        bench
    }

    fn files(&self) -> ModelFiles {
        ModelFiles::open(self.model.path()).unwrap()
    }

    fn adapter(&self) -> AdapterConfig {
        AdapterConfig::from_training(&self.config, "test/tiny")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn training(&self) -> LocalTraining {
        LocalTraining::load(&self.files(), &self.adapter(), &self.config, u64::MAX).unwrap()
    }

    fn shard(&self) -> LocalData {
        LocalData::of_shard(&self.path("shard"), &self.files(), self.config.max_length).unwrap()
    }

    /// One round of three steps.
    fn round(
        &self,
        training: &mut LocalTraining,
        data: &LocalData,
        (round, weights, output): (u64, &str, &str),
        kept: Option<&Path>,
    ) -> Result<LocalOutcome, EngineError> {
        let weights = self.path(weights);
        let (_, sha256) = files::digest(&weights).unwrap();
        let round = LocalRound {
            data,
            config: &self.config,
            round,
            total_rounds: 4,
            steps: 3,
            weights: &weights,
            weights_sha256: &sha256,
            output: &self.path(output),
            moments: kept.map(|folder| MomentsPlace {
                folder,
                session: "a",
            }),
        };
        training.round(&round, &|| false, &mut |_| {})
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
}

fn trained(outcome: Result<LocalOutcome, EngineError>) -> LocalResult {
    match outcome.unwrap() {
        LocalOutcome::Trained(result) => result,
        LocalOutcome::Stopped => panic!("nobody stopped it"),
    }
}

#[test]
fn a_round_gives_the_same_tensors_with_other_values_and_its_digest() {
    let bench = Bench::new();
    let place = (0, ADAPTER_WEIGHTS, "out");
    let result = trained(bench.round(&mut bench.training(), &bench.shard(), place, None));
    let (size_bytes, sha256) = files::digest(&bench.path("out")).unwrap();
    assert_eq!(result.file, WrittenFile { size_bytes, sha256 });
    assert_eq!(result.learned_tokens, 3 * 2 * 16);
    assert!(result.loss.unwrap() > 0.0);
    let (before, after) = (bench.bytes(ADAPTER_WEIGHTS), bench.bytes("out"));
    let head = 8 + u64::from_le_bytes(before[..8].try_into().unwrap()) as usize;
    assert_eq!(before[..head], after[..head]);
    assert_eq!(before.len(), after.len());
    assert_ne!(before, after);
}

#[test]
fn the_same_weights_data_and_round_give_the_same_bytes_and_another_round_others() {
    let bench = Bench::new();
    let (mut training, data) = (bench.training(), bench.shard());
    trained(bench.round(&mut training, &data, (1, ADAPTER_WEIGHTS, "a"), None));
    trained(bench.round(&mut training, &data, (2, ADAPTER_WEIGHTS, "b"), None));
    trained(bench.round(
        &mut bench.training(),
        &data,
        (1, ADAPTER_WEIGHTS, "c"),
        None,
    ));
    assert_eq!(
        bench.bytes("a"),
        bench.bytes("c"),
        "whatever was trained in between"
    );
    assert_ne!(
        bench.bytes("a"),
        bench.bytes("b"),
        "another round has other data"
    );
}

#[test]
fn rounds_with_a_kept_optimizer_are_one_run() {
    let bench = Bench::new();
    let (mut training, data) = (bench.training(), bench.shard());
    let kept = bench.path("optimizer");
    trained(bench.round(
        &mut training,
        &data,
        (0, ADAPTER_WEIGHTS, "one"),
        Some(&kept),
    ));
    trained(bench.round(&mut bench.training(), &data, (1, "one", "two"), Some(&kept)));
    let (_, sha256) = files::digest(&bench.path(ADAPTER_WEIGHTS)).unwrap();
    let whole = LocalRound {
        data: &data,
        config: &bench.config,
        round: 0,
        total_rounds: 2,
        steps: 6,
        weights: &bench.path(ADAPTER_WEIGHTS),
        weights_sha256: &sha256,
        output: &bench.path("whole"),
        moments: None,
    };
    trained(training.round(&whole, &|| false, &mut |_| {}));
    assert_eq!(bench.bytes("two"), bench.bytes("whole"));
    trained(bench.round(&mut training, &data, (1, "one", "again"), Some(&kept)));
    assert_eq!(
        bench.bytes("two"),
        bench.bytes("again"),
        "a round that is trained once more"
    );
    trained(bench.round(&mut training, &data, (1, "one", "reset"), None));
    assert_ne!(bench.bytes("two"), bench.bytes("reset"));
}

#[test]
fn a_kept_optimizer_of_another_adapter_is_as_if_it_were_not_there() {
    let bench = Bench::new();
    let (data, kept) = (bench.shard(), bench.path("optimizer"));
    let place = (0, ADAPTER_WEIGHTS, "one");
    trained(bench.round(&mut bench.training(), &data, place, Some(&kept)));
    let other = AdapterConfig {
        r: 8,
        ..bench.adapter()
    };
    let model = bench.files();
    let fresh = adapter::fresh(&other, &model.config, 1).unwrap();
    std::fs::create_dir_all(bench.path("other")).unwrap();
    adapter::save(&bench.path("other"), &fresh, &other, &model.config).unwrap();
    let mut training = LocalTraining::load(&model, &other, &bench.config, u64::MAX).unwrap();
    let weights = "other/adapter_model.safetensors";
    trained(bench.round(&mut training, &data, (1, weights, "kept"), Some(&kept)));
    trained(bench.round(&mut training, &data, (1, weights, "reset"), None));
    assert_eq!(bench.bytes("kept"), bench.bytes("reset"));
}

#[test]
fn a_kept_optimizer_of_another_session_is_as_if_it_were_not_there() {
    let bench = Bench::new();
    let (mut training, data, kept) = (bench.training(), bench.shard(), bench.path("optimizer"));
    let first = (0, ADAPTER_WEIGHTS, "one");
    trained(bench.round(&mut training, &data, first, Some(&kept)));
    trained(bench.round(&mut training, &data, (1, "one", "reset"), None));
    let (_, sha256) = files::digest(&bench.path("one")).unwrap();
    let mut output_of = |session: &str| {
        let round = LocalRound {
            data: &data,
            config: &bench.config,
            round: 1,
            total_rounds: 4,
            steps: 3,
            weights: &bench.path("one"),
            weights_sha256: &sha256,
            output: &bench.path("two"),
            moments: Some(MomentsPlace {
                folder: &kept,
                session,
            }),
        };
        trained(training.round(&round, &|| false, &mut |_| {}));
        bench.bytes("two")
    };
    assert_ne!(output_of("a"), bench.bytes("reset"), "its own are taken up");
    assert_eq!(output_of("b"), bench.bytes("reset"));
}

#[test]
fn rounds_give_the_same_bytes_however_much_memory_is_free() {
    let mut bench = Bench::new();
    bench.config.batch_size = 4;
    let (files, adapter, data) = (bench.files(), bench.adapter(), bench.shard());
    let place = (0, ADAPTER_WEIGHTS, "much");
    trained(bench.round(&mut bench.training(), &data, place, None));
    let method = Method::Adapter(Box::new(adapter.clone()));
    let fit_into = |available_bytes| {
        let weight_bytes =
            Holding::for_training(&bench.config, &files, available_bytes).bytes(&files);
        let rows = data.rows().to_vec();
        let order = Order::new(data.examples(), rows, &bench.config);
        let most_tokens = |sequences: usize| order.most_tokens(sequences);
        let wanted = Fit::of_config(&bench.config);
        fit(
            &method,
            &files.config,
            weight_bytes,
            &most_tokens,
            wanted,
            &bench.config,
            available_bytes,
        )
    };
    let (mut low, mut high) = (0, 1 << 30);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match fit_into(middle) {
            Ok(Fit {
                micro_batch_size: 4,
                ..
            }) => high = middle,
            _ => low = middle,
        }
    }
    assert!(
        fit_into(high).unwrap().gradient_checkpointing,
        "that comes before smaller micro-batches"
    );
    let mut little = LocalTraining::load(&files, &adapter, &bench.config, high).unwrap();
    trained(bench.round(&mut little, &data, (0, ADAPTER_WEIGHTS, "little"), None));
    assert_eq!(bench.bytes("much"), bench.bytes("little"));
}

#[test]
fn micro_batches_are_cut_by_their_tokens_and_not_by_memory() {
    let of = |batch_size, length: usize| {
        let config = TrainingConfig {
            batch_size,
            ..TrainingConfig::default()
        };
        micro_batch_size(&config, &|sequences| sequences * length)
    };
    assert_eq!((of(4, 512), of(16, 512), of(3, 1024)), (4, 4, 2));
    assert_eq!((of(2, 8192), of(1, 16), of(64, 16)), (1, 1, 64));
}

#[test]
fn steps_that_cannot_be_counted_are_refused_by_name() {
    let bench = Bench::new();
    let (mut training, data) = (bench.training(), bench.shard());
    let most = 1 << 53;
    for (round, total_rounds, steps) in [(most, most, 2048), (0, most, 2048), (u64::MAX, 1, 1)] {
        let round = LocalRound {
            data: &data,
            config: &bench.config,
            round,
            total_rounds,
            steps,
            weights: &bench.path(ADAPTER_WEIGHTS),
            weights_sha256: "",
            output: &bench.path("out"),
            moments: None,
        };
        let refused = training.round(&round, &|| false, &mut |_| {});
        assert!(
            matches!(
                refused,
                Err(EngineError::InvalidSetting { field: "round", .. })
            ),
            "{refused:?}"
        );
    }
    assert!(!bench.path("out").exists());
}

#[test]
fn names_and_types_of_the_weights_file_are_kept() {
    let bench = Bench::new();
    let file = SafetensorsFile::open(&bench.path(ADAPTER_WEIGHTS)).unwrap();
    let mut tensors = Vec::new();
    for (i, name) in file.names().enumerate() {
        let values = file.tensor(name).unwrap();
        let (float_type, dtype) = match i % 3 {
            0 => (FloatType::F32, Dtype::F32),
            1 => (FloatType::F16, Dtype::F16),
            _ => (FloatType::Bf16, Dtype::BF16),
        };
        let mut bytes = Vec::new();
        float_type.encode(&values, &mut bytes).unwrap();
        let short = name.strip_prefix("base_model.model.model.").unwrap();
        let short = short.replace(".weight", ".default.weight");
        tensors.push((short, dtype, file.shape(name).unwrap().to_vec(), bytes));
    }
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (
            name.as_str(),
            TensorView::new(*dtype, shape.clone(), bytes).unwrap(),
        )
    });
    serialize_to_file(views, None, &bench.path("renamed")).unwrap();
    let place = (0, "renamed", "out");
    trained(bench.round(&mut bench.training(), &bench.shard(), place, None));
    let out = SafetensorsFile::open(&bench.path("out")).unwrap();
    let renamed = SafetensorsFile::open(&bench.path("renamed")).unwrap();
    assert_eq!(out.layout(), renamed.layout());
    assert_eq!(out.head(), renamed.head());
}

#[test]
fn weights_of_another_adapter_or_digest_are_refused_with_the_tensor_named() {
    let bench = Bench::new();
    let (mut training, data) = (bench.training(), bench.shard());
    let mut other = bench.adapter();
    other.target_modules =
        TargetModules::Names(vec!["q_proj".into(), "v_proj".into(), "up_proj".into()]);
    let refused = |changed: &AdapterConfig, training: &mut LocalTraining| {
        let folder = bench.path("other");
        std::fs::create_dir_all(&folder).unwrap();
        let model = bench.files().config;
        let fresh = adapter::fresh(changed, &model, 1).unwrap();
        adapter::save(&folder, &fresh, changed, &model).unwrap();
        let place = (0, "other/adapter_model.safetensors", "out");
        bench
            .round(training, &data, place, None)
            .unwrap_err()
            .to_string()
    };
    let more = refused(&other, &mut training);
    assert!(more.contains("up_proj"), "{more}");
    other.target_modules = TargetModules::Names(vec!["q_proj".into()]);
    let fewer = refused(&other, &mut training);
    assert!(fewer.contains("v_proj"), "{fewer}");
    other = AdapterConfig {
        r: 8,
        ..bench.adapter()
    };
    let rank = refused(&other, &mut training);
    assert!(rank.contains("lora_A") && rank.contains('8'), "{rank}");
    let weights = bench.path(ADAPTER_WEIGHTS);
    let round = LocalRound {
        data: &data,
        config: &bench.config,
        round: 0,
        total_rounds: 1,
        steps: 1,
        weights: &weights,
        weights_sha256: &"0".repeat(64),
        output: &bench.path("out"),
        moments: None,
    };
    let digest = training.round(&round, &|| false, &mut |_| {}).unwrap_err();
    assert!(digest.to_string().contains("SHA-256"), "{digest}");
    assert!(!bench.path("out").exists());
    trained(bench.round(&mut training, &data, (0, ADAPTER_WEIGHTS, "out"), None));
}

#[test]
fn a_stopped_round_writes_nothing_and_can_be_trained_again() {
    let bench = Bench::new();
    let (mut training, data) = (bench.training(), bench.shard());
    let (_, sha256) = files::digest(&bench.path(ADAPTER_WEIGHTS)).unwrap();
    let steps = std::cell::Cell::new(0);
    let round = LocalRound {
        data: &data,
        config: &bench.config,
        round: 0,
        total_rounds: 1,
        steps: 3,
        weights: &bench.path(ADAPTER_WEIGHTS),
        weights_sha256: &sha256,
        output: &bench.path("out"),
        moments: None,
    };
    let outcome = training.round(&round, &|| steps.get() == 2, &mut |event| {
        if matches!(event, TrainingEvent::Step(_)) {
            steps.set(steps.get() + 1);
        }
    });
    assert_eq!(outcome.unwrap(), LocalOutcome::Stopped);
    assert!(!bench.path("out").exists());
    trained(bench.round(&mut training, &data, (0, ADAPTER_WEIGHTS, "out"), None));
    trained(bench.round(
        &mut bench.training(),
        &data,
        (0, ADAPTER_WEIGHTS, "fresh"),
        None,
    ));
    assert_eq!(bench.bytes("out"), bench.bytes("fresh"));
}

#[test]
fn parts_of_a_data_set_share_its_rows_without_overlap() {
    let bench = Bench::new();
    let rows: String = (0..7)
        .map(|i| format!("{{\"text\":\"row {i}\"}}\n"))
        .collect();
    std::fs::write(bench.path("rows.jsonl"), rows).unwrap();
    let (files, dataset) = (bench.files(), DataFile::by_name(bench.path("rows.jsonl")));
    let cache = TokenCache::new(bench.path("tokens"));
    let source = RowSource {
        model: &files,
        dataset: &dataset,
        config: &bench.config,
        max_bad_rows: 0,
        token_cache: &cache,
        chat_time: Local::now().fixed_offset(),
    };
    let part = |index, count| {
        LocalData::of_rows(&source, Part { index, count }, &|| false, &mut |_, _| {})
    };
    let mut seen = Vec::new();
    for index in 0..3 {
        seen.extend_from_slice(part(index, 3).unwrap().0.rows());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..7).collect::<Vec<_>>());
    let empty = part(8, 9).unwrap_err().to_string();
    assert!(empty.contains("part 8 of 9"), "{empty}");
    let (data, report) = part(0, 2).unwrap();
    assert_eq!((data.row_count(), report.examples), (4, 7));
    let place = (0, ADAPTER_WEIGHTS, "out");
    trained(bench.round(&mut bench.training(), &data, place, None));
}

#[test]
fn a_model_that_does_not_fit_is_refused_before_it_is_loaded() {
    let bench = Bench::new();
    let refused = LocalTraining::load(&bench.files(), &bench.adapter(), &bench.config, 1 << 20);
    assert!(matches!(refused, Err(EngineError::TooLarge(_))));
}
