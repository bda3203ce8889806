//! The adapter that a session trains: as its coordinator tells it, or as its weights' names and shapes do.

use serde_json::Value;
use trainyard_shared::training::{TargetModules, TrainingConfig};

use super::info::AdapterInfo;
use crate::engine::adapter::AdapterConfig;
use crate::engine::weights::SafetensorsFile;

/// Highest rank that is taken.
const MAX_RANK: u64 = 4096;

/// The adapter as the coordinator tells it; `alpha` where it does not say.
///
/// # Errors
/// What of it is not supported.
pub(super) fn told(
    info: &AdapterInfo,
    alpha: Option<f64>,
    model: &str,
) -> Result<AdapterConfig, String> {
    if let Some(peft) = &info.peft {
        let config = AdapterConfig::from_json(&Value::Object(peft.clone()));
        return config.map_err(|problem| format!("adaptor: peft: {problem}"));
    }
    of(info.r, info.alpha.or(alpha), info.targets.clone(), model)
}

/// The adapter whose weights are in `file`, under names that end like PEFT's.
///
/// # Errors
/// That these are no pairs of one rank.
pub(super) fn of_weights(
    file: &SafetensorsFile,
    alpha: Option<f64>,
    model: &str,
) -> Result<AdapterConfig, String> {
    let (mut rank, mut targets) = (None, Vec::new());
    for name in file.names() {
        let Some((module, _)) = name.split_once(".lora_A") else {
            continue;
        };
        let found = file.shape(name).and_then(|shape| shape.first().copied());
        if rank.is_some_and(|rank| Some(rank) != found) {
            return Err(
                "the weights are of several ranks, and the coordinator does not say which".into(),
            );
        }
        rank = rank.or(found);
        let target = module.rsplit('.').next().unwrap_or(module).to_owned();
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    let rank = rank.ok_or("the weights hold no LoRA adapter")?;
    of(rank as u64, alpha, targets, model)
}

fn of(
    rank: u64,
    alpha: Option<f64>,
    targets: Vec<String>,
    model: &str,
) -> Result<AdapterConfig, String> {
    let range = format!("adaptor: r {rank} is not in 1..={MAX_RANK}");
    let lora_r = u32::try_from(rank).map_err(|_| range.clone())?;
    if !(1..=MAX_RANK).contains(&rank) {
        return Err(range);
    }
    let lora_alpha = alpha.unwrap_or(2.0 * f64::from(lora_r));
    if !(lora_alpha.is_finite() && lora_alpha > 0.0) {
        return Err(format!("adaptor: alpha {lora_alpha} is not above 0"));
    }
    let config = TrainingConfig {
        lora_r,
        lora_alpha,
        target_modules: TargetModules::Names(targets),
        ..TrainingConfig::default()
    };
    Ok(AdapterConfig::from_training(&config, model))
}
