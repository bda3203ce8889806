//! `modules_to_save`: modules of the model that an adapter brings along in a version of its own.

use super::AdapterConfig;
use crate::EngineError;
use crate::model::{Llama, ModelConfig, Weight};

/// The model's weights that an adapter replaces, with their values.
#[derive(Debug, Default)]
pub struct WholeWeights(pub(crate) Vec<(Weight, Vec<f32>)>);

impl WholeWeights {
    /// Whether it replaces nothing: the adapter is pairs alone.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts the weights into a model, which is then the one that the adapter was trained with.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`].
    pub fn put_into(&self, model: &mut Llama) -> Result<(), EngineError> {
        for (weight, _) in &self.0 {
            model.unpack(*weight)?;
        }
        for (weight, values) in &self.0 {
            model.set(*weight, values);
        }
        Ok(())
    }
}

/// The weights of the modules that a config names, as PEFT finds them: those whose name ends with one of the names.
/// An output projection that is tied to the embedding counts as a module of its own.
pub(super) fn whole_weights(
    config: &AdapterConfig,
    model: &ModelConfig,
) -> Result<Vec<Weight>, String> {
    let names = &config.modules_to_save;
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut all = Weight::all(model);
    if model.tie_word_embeddings {
        all.push(Weight::Head);
    }
    let is_of = |weight: &Weight, name: &String| weight.module().ends_with(name.as_str());
    if let Some(name) = names
        .iter()
        .find(|name| !all.iter().any(|weight| is_of(weight, name)))
    {
        return Err(format!(
            "modules_to_save: no module with weights is called {name}"
        ));
    }
    all.retain(|weight| names.iter().any(|name| is_of(weight, name)));
    let targets = config.targets(model)?;
    let both = all.iter().find(|weight| match weight {
        Weight::Projection(layer, p) | Weight::Bias(layer, p) => targets
            .iter()
            .any(|target| (target.layer, target.projection) == (*layer, *p)),
        _ => false,
    });
    match both {
        Some(weight) => Err(format!(
            "modules_to_save: {} is in target_modules too",
            weight.module()
        )),
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::golden;
    use crate::weights::ModelFiles;

    fn found(names: &[&str]) -> Result<Vec<String>, String> {
        let model = ModelFiles::open(&golden::path("tied")).unwrap().config;
        let config = json!({
            "peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "modules_to_save": names
        });
        let weights = whole_weights(&AdapterConfig::from_json(&config)?, &model)?;
        Ok(weights.iter().map(|weight| weight.name()).collect())
    }

    #[test]
    fn modules_are_found_as_peft_does_and_must_be_some() {
        assert_eq!(
            found(&["lm_head", "embed_tokens"]).unwrap(),
            ["model.embed_tokens.weight", "lm_head.weight"]
        );
        let norms = found(&["norm"]).unwrap();
        assert_eq!(norms.len(), 5, "two in each layer, and the last");
        assert_eq!(
            found(&["0.mlp.up_proj"]).unwrap(),
            ["model.layers.0.mlp.up_proj.weight"]
        );
        assert!(found(&["lm_head", "FAKE"]).unwrap_err().contains("FAKE"));
        assert!(found(&["q_proj"]).unwrap_err().contains("target_modules"));
    }
}
