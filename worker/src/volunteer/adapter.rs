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
        let config = AdapterConfig::from_json(&Value::Object(peft.clone()))
            .map_err(|problem| format!("adaptor: peft: {problem}"))?;
        let is_rank = |rank: &usize| (1..=MAX_RANK).contains(&(*rank as u64));
        let is_alpha = |alpha: &f64| alpha.is_finite() && *alpha > 0.0;
        let is_sound = is_rank(&config.r)
            && config.rank_pattern.values().all(is_rank)
            && is_alpha(&config.lora_alpha)
            && config.alpha_pattern.values().all(is_alpha)
            && (0.0..1.0).contains(&config.lora_dropout);
        return match is_sound {
            true => Ok(config),
            false => Err("adaptor: peft: a rank, alpha or dropout is out of range".to_owned()),
        };
    }
    let (rank, targets) = (info.r.unwrap_or(0), info.targets.clone());
    of(rank, alpha, targets.unwrap_or_default(), model)
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
    of(rank as u64, alpha, TargetModules::Names(targets), model)
}

fn of(
    rank: u64,
    alpha: Option<f64>,
    target_modules: TargetModules,
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
        target_modules,
        ..TrainingConfig::default()
    };
    Ok(AdapterConfig::from_training(&config, model))
}
