//! What is trained: the pairs of an adapter, or all weights; their values, gradients and names.

use std::ops::Range;

use super::{Adapter, Llama, LoraModule, ModelConfig, Parameter, Projection, llama::Weight};
use crate::{
    EngineError,
    device::Buffer,
    ops::{dropout::Dropout, linear::Lora},
};

/// Trained values with their gradients, in one order.
#[derive(Debug)]
pub(super) struct Values {
    values: Buffer,
    gradients: Buffer,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    shape: Vec<usize>,
    range: Range<usize>,
}

/// The pairs of an adapter in training.
#[derive(Debug)]
pub(super) struct AdapterWeights {
    pub(super) values: Values,
    /// Per layer and projection.
    slots: Vec<[Option<Slot>; 7]>,
    ranks: Vec<[usize; 7]>,
    dropout: f32,
}

/// One pair's place: A, and B right behind it.
#[derive(Debug, Clone)]
struct Slot {
    rank: usize,
    scale: f32,
    a: Range<usize>,
    b: Range<usize>,
}

/// All weights of a model in training.
#[derive(Debug)]
pub(super) struct FullWeights {
    pub(super) values: Values,
    places: Vec<(Weight, Range<usize>)>,
    /// No pairs.
    ranks: Vec<[usize; 7]>,
    /// Whether values may have changed since the model was last packed.
    pub(super) changed: bool,
}

impl Values {
    fn new(entries: Vec<Entry>) -> Result<Self, EngineError> {
        let len = entries.last().map_or(0, |e| e.range.end);
        Ok(Self {
            values: Buffer::zeroed(len)?,
            gradients: Buffer::zeroed(len)?,
            entries,
        })
    }

    pub(super) fn parameters_mut(&mut self) -> Vec<Parameter<'_>> {
        let mut values = self.values.as_mut_slice();
        let mut gradients = self.gradients.as_mut_slice();
        let entries = self.entries.iter().map(|entry| Parameter {
            name: &entry.name,
            shape: &entry.shape,
            value: values
                .split_off_mut(..entry.range.len())
                .unwrap_or_default(),
            gradient: gradients
                .split_off_mut(..entry.range.len())
                .unwrap_or_default(),
        });
        entries.collect()
    }

    pub(super) fn zero_gradients(&mut self) {
        self.gradients.as_mut_slice().fill(0.0);
    }

    pub(super) fn count(&self) -> u64 {
        self.values.as_slice().len() as u64
    }
}

impl AdapterWeights {
    pub(super) fn new(config: &ModelConfig, adapter: &Adapter) -> Result<Self, EngineError> {
        adapter.validate(config)?;
        let mut entries = Vec::new();
        let mut slots = vec![[const { None }; 7]; config.num_hidden_layers];
        let mut ranks = vec![[0; 7]; config.num_hidden_layers];
        let mut end = 0;
        for layer in 0..config.num_hidden_layers {
            for projection in Projection::ALL {
                let Some(module) = adapter.module(layer, projection) else {
                    continue;
                };
                let [output, input] = config.projection_shape(projection);
                let mut entry = |matrix: &str, shape: [usize; 2]| {
                    let range = end..end + shape[0] * shape[1];
                    end = range.end;
                    entries.push(Entry {
                        name: format!("{}.{matrix}", projection.full_name(layer)),
                        shape: shape.to_vec(),
                        range: range.clone(),
                    });
                    range
                };
                slots[layer][projection as usize] = Some(Slot {
                    rank: module.rank,
                    scale: module.scale,
                    a: entry("lora_A", [module.rank, input]),
                    b: entry("lora_B", [output, module.rank]),
                });
                ranks[layer][projection as usize] = module.rank;
            }
        }
        let mut weights = Self {
            values: Values::new(entries)?,
            slots,
            ranks,
            dropout: adapter.dropout,
        };
        let values = weights.values.values.as_mut_slice();
        for (slots, modules) in weights.slots.iter().zip(&adapter.layers) {
            for (slot, module) in slots.iter().zip(modules) {
                let (Some(slot), Some(module)) = (slot, module) else {
                    continue;
                };
                values[slot.a.clone()].copy_from_slice(&module.a);
                values[slot.b.clone()].copy_from_slice(&module.b);
            }
        }
        Ok(weights)
    }

    /// The pairs as they are now.
    pub(super) fn adapter(&self) -> Adapter {
        let values = self.values.values.as_slice();
        let module = |slot: &Slot| LoraModule {
            rank: slot.rank,
            scale: slot.scale,
            a: values[slot.a.clone()].to_vec(),
            b: values[slot.b.clone()].to_vec(),
        };
        let layers = self
            .slots
            .iter()
            .map(|slots| slots.each_ref().map(|s| s.as_ref().map(module)));
        Adapter {
            layers: layers.collect(),
            dropout: self.dropout,
        }
    }

    /// What a pair drops; `seed` selects the masks of a training step.
    fn dropout_of(
        &self,
        layer: usize,
        projection: Projection,
        seed: Option<u64>,
    ) -> Option<Dropout> {
        let place = (layer * 7 + projection as usize + 1) as u64;
        seed.filter(|_| self.dropout > 0.0).map(|seed| Dropout {
            probability: self.dropout,
            key: seed ^ place.wrapping_mul(0xD1B5_4A32_D192_ED03),
        })
    }
}

impl Slot {
    fn lora<'a>(&self, values: &'a [f32], dropout: Option<Dropout>) -> Lora<'a> {
        Lora {
            a: &values[self.a.clone()],
            b: &values[self.b.clone()],
            rank: self.rank,
            scale: self.scale,
            dropout,
        }
    }
}

impl FullWeights {
    pub(super) fn new(model: &Llama) -> Result<Self, EngineError> {
        let config = model.config();
        let mut end = 0;
        let mut entries = Vec::new();
        let mut places = Vec::new();
        for weight in Weight::all(config) {
            let shape = weight.shape(config);
            let range = end..end + shape.iter().product::<usize>();
            end = range.end;
            places.push((weight, range.clone()));
            entries.push(Entry {
                name: weight.name(),
                shape,
                range,
            });
        }
        let mut values = Values::new(entries)?;
        for (weight, range) in &places {
            values.values.as_mut_slice()[range.clone()].copy_from_slice(&model.get(*weight));
        }
        Ok(Self {
            values,
            places,
            ranks: vec![[0; 7]; config.num_hidden_layers],
            changed: false,
        })
    }

    /// Packs the values into the model, if they may have changed.
    pub(super) fn pack_into(&mut self, model: &mut Llama) {
        if std::mem::take(&mut self.changed) {
            for (weight, range) in &self.places {
                model.set(*weight, &self.values.values.as_slice()[range.clone()]);
            }
        }
    }
}

/// Either of the two, as passes through the model see it.
#[derive(Debug)]
pub(super) enum Trainable {
    Adapter(AdapterWeights),
    Full(FullWeights),
}

impl Trainable {
    pub(super) fn values(&self) -> &Values {
        match self {
            Trainable::Adapter(weights) => &weights.values,
            Trainable::Full(weights) => &weights.values,
        }
    }

    pub(super) fn values_mut(&mut self) -> &mut Values {
        match self {
            Trainable::Adapter(weights) => &mut weights.values,
            Trainable::Full(weights) => &mut weights.values,
        }
    }

    /// Rank of each projection's pair in each layer, 0 for none.
    pub(super) fn ranks(&self) -> &[[usize; 7]] {
        match self {
            Trainable::Adapter(weights) => &weights.ranks,
            Trainable::Full(weights) => &weights.ranks,
        }
    }

    pub(super) fn dropout(&self) -> bool {
        matches!(self, Trainable::Adapter(weights) if weights.dropout > 0.0)
    }

    pub(super) fn is_full(&self) -> bool {
        matches!(self, Trainable::Full(_))
    }

    /// The pair beside a projection; `dropout_seed` selects the masks of a training step.
    pub(super) fn lora(
        &self,
        layer: usize,
        projection: Projection,
        dropout_seed: Option<u64>,
    ) -> Option<Lora<'_>> {
        let Trainable::Adapter(weights) = self else {
            return None;
        };
        let slot = weights.slots[layer][projection as usize].as_ref()?;
        let dropout = weights.dropout_of(layer, projection, dropout_seed);
        Some(slot.lora(weights.values.values.as_slice(), dropout))
    }

    /// The pair beside a projection, with the gradients of its A and B.
    pub(super) fn lora_mut(
        &mut self,
        layer: usize,
        projection: Projection,
        dropout_seed: Option<u64>,
    ) -> Option<(Lora<'_>, &mut [f32], &mut [f32])> {
        let Trainable::Adapter(weights) = self else {
            return None;
        };
        let dropout = weights.dropout_of(layer, projection, dropout_seed);
        let slot = weights.slots[layer][projection as usize].as_ref()?;
        let Values {
            values, gradients, ..
        } = &mut weights.values;
        let pair = &mut gradients.as_mut_slice()[slot.a.start..slot.b.end];
        let (da, db) = pair.split_at_mut(slot.a.len());
        Some((slot.lora(values.as_slice(), dropout), da, db))
    }

    /// The gradient of one weight, where all are trained.
    pub(super) fn gradient(&mut self, weight: Weight) -> Option<&mut [f32]> {
        let Trainable::Full(weights) = self else {
            return None;
        };
        let (_, range) = weights.places.iter().find(|(w, _)| *w == weight)?;
        Some(&mut weights.values.gradients.as_mut_slice()[range.clone()])
    }
}
