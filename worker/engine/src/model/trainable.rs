//! What is trained: pairs of an adapter, weights of the model itself, or both; values, gradients and names.

use std::{ops::Range, sync::Arc};

use super::{Adapter, Llama, Masks, ModelConfig, Parameter, Projection, llama::Weight};
use crate::{
    EngineError,
    device::Buffer,
    ops::{dropout::Dropout, linear::Lora},
    profile::{Operation, Timed},
};

/// Trained values with their gradients, in one order.
#[derive(Debug)]
struct Values {
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

/// What is trained: pairs beside projections, and weights of the model itself.
#[derive(Debug)]
pub(super) struct Trainable {
    values: Values,
    /// Per layer and projection.
    slots: Vec<[Option<Slot>; 7]>,
    /// Rank of each projection's pair in each layer, 0 for none.
    ranks: Arc<[[usize; 7]]>,
    dropout: f32,
    /// Places of the model's own weights that are trained.
    whole: Vec<(Weight, Range<usize>)>,
    /// Whether those may have changed since the model was last packed.
    changed: bool,
}

/// One pair's place: A, and B right behind it.
#[derive(Debug, Clone)]
struct Slot {
    rank: usize,
    scale: f32,
    a: Range<usize>,
    b: Range<usize>,
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

    fn parameters(&mut self) -> impl Iterator<Item = Parameter<'_>> {
        let mut values = self.values.as_mut_slice();
        let mut gradients = self.gradients.as_mut_slice();
        self.entries.iter().map(move |entry| Parameter {
            name: &entry.name,
            shape: &entry.shape,
            value: values
                .split_off_mut(..entry.range.len())
                .unwrap_or_default(),
            gradient: gradients
                .split_off_mut(..entry.range.len())
                .unwrap_or_default(),
        })
    }
}

impl Trainable {
    /// The pairs of an adapter and the weights `whole` of the model, in this order.
    pub(super) fn new(
        model: &Llama,
        adapter: &Adapter,
        whole: &[Weight],
    ) -> Result<Self, EngineError> {
        let mut trainable = Self::with_places(model.config(), adapter, whole)?;
        let values = trainable.values.values.as_mut_slice();
        for (weight, range) in &trainable.whole {
            values[range.clone()].copy_from_slice(&model.get(*weight));
        }
        Ok(trainable)
    }

    /// The pairs of an adapter alone.
    pub(super) fn pairs(config: &ModelConfig, adapter: &Adapter) -> Result<Self, EngineError> {
        Self::with_places(config, adapter, &[])
    }

    /// With the adapter's values, and zeros for the model's weights.
    fn with_places(
        config: &ModelConfig,
        adapter: &Adapter,
        whole: &[Weight],
    ) -> Result<Self, EngineError> {
        adapter.validate(config)?;
        let mut entries = Entries::default();
        let mut slots = vec![[const { None }; 7]; config.num_hidden_layers];
        let mut ranks = vec![[0; 7]; config.num_hidden_layers];
        for layer in 0..config.num_hidden_layers {
            for projection in Projection::ALL {
                let Some(module) = adapter.module(layer, projection) else {
                    continue;
                };
                let [output, input] = config.projection_shape(projection);
                let name = |matrix| format!("{}.{matrix}", projection.full_name(layer));
                slots[layer][projection as usize] = Some(Slot {
                    rank: module.rank,
                    scale: module.scale,
                    a: entries.add(name("lora_A"), vec![module.rank, input]),
                    b: entries.add(name("lora_B"), vec![output, module.rank]),
                });
                ranks[layer][projection as usize] = module.rank;
            }
        }
        let place = |weight: &Weight| (*weight, entries.add(weight.name(), weight.shape(config)));
        let whole: Vec<_> = whole.iter().map(place).collect();
        let mut trainable = Self {
            values: Values::new(entries.0)?,
            slots,
            ranks: ranks.into(),
            dropout: adapter.dropout,
            whole,
            changed: false,
        };
        let values = trainable.values.values.as_mut_slice();
        for (slots, modules) in trainable.slots.iter().zip(&adapter.layers) {
            for (slot, module) in slots.iter().zip(modules) {
                let (Some(slot), Some(module)) = (slot, module) else {
                    continue;
                };
                values[slot.a.clone()].copy_from_slice(&module.a);
                values[slot.b.clone()].copy_from_slice(&module.b);
            }
        }
        Ok(trainable)
    }

    /// All values with their gradients; the model has to be packed again before its next pass.
    pub(super) fn parameters(&mut self) -> impl Iterator<Item = Parameter<'_>> {
        self.changed = true;
        self.values.parameters()
    }

    pub(super) fn zero_gradients(&mut self) {
        let _timed = Timed::begin(Operation::ZeroGradients, 0);
        self.values.gradients.as_mut_slice().fill(0.0);
    }

    /// Number of trained values.
    pub(super) fn count(&self) -> u64 {
        self.values.values.as_slice().len() as u64
    }

    /// Whether weights of the model must be packed into it before its next pass.
    pub(super) fn must_pack(&self) -> bool {
        self.changed && self.trains_weights()
    }

    /// Packs the trained weights into the model.
    pub(super) fn pack_into(&mut self, model: &mut Llama) {
        let _timed = Timed::begin(Operation::Packing, 0);
        self.changed = false;
        for (weight, range) in &self.whole {
            model.set(*weight, &self.values.values.as_slice()[range.clone()]);
        }
    }

    /// Rank of each projection's pair in each layer, 0 for none.
    pub(super) fn ranks(&self) -> &Arc<[[usize; 7]]> {
        &self.ranks
    }

    pub(super) fn dropout(&self) -> bool {
        self.dropout > 0.0
    }

    /// Whether weights of the model itself are trained.
    pub(super) fn trains_weights(&self) -> bool {
        !self.whole.is_empty()
    }

    /// What a pair drops in a training step.
    fn dropout_of(
        &self,
        layer: usize,
        projection: Projection,
        masks: Option<Masks>,
    ) -> Option<Dropout> {
        let place = (layer * 7 + projection as usize + 1) as u64;
        masks.filter(|_| self.dropout > 0.0).map(|masks| Dropout {
            probability: self.dropout,
            key: masks.seed ^ place.wrapping_mul(0xD1B5_4A32_D192_ED03),
            first_token: masks.first_token,
        })
    }

    /// The pair beside a projection, with its masks in a training step.
    pub(super) fn lora(
        &self,
        layer: usize,
        projection: Projection,
        masks: Option<Masks>,
    ) -> Option<Lora<'_>> {
        let slot = self.slots[layer][projection as usize].as_ref()?;
        let dropout = self.dropout_of(layer, projection, masks);
        Some(slot.lora(self.values.values.as_slice(), dropout))
    }

    /// The pair beside a projection, with the gradients of its A and B.
    pub(super) fn lora_mut(
        &mut self,
        layer: usize,
        projection: Projection,
        masks: Option<Masks>,
    ) -> Option<(Lora<'_>, &mut [f32], &mut [f32])> {
        let dropout = self.dropout_of(layer, projection, masks);
        let slot = self.slots[layer][projection as usize].as_ref()?;
        let Values {
            values, gradients, ..
        } = &mut self.values;
        let pair = &mut gradients.as_mut_slice()[slot.a.start..slot.b.end];
        let (da, db) = pair.split_at_mut(slot.a.len());
        Some((slot.lora(values.as_slice(), dropout), da, db))
    }

    /// The gradient of one of the model's weights, where it is trained.
    pub(super) fn gradient(&mut self, weight: Weight) -> Option<&mut [f32]> {
        let (_, range) = self.whole.iter().find(|(w, _)| *w == weight)?;
        Some(&mut self.values.gradients.as_mut_slice()[range.clone()])
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

/// Values that get their places one behind the other.
#[derive(Default)]
struct Entries(Vec<Entry>);

impl Entries {
    fn add(&mut self, name: String, shape: Vec<usize>) -> Range<usize> {
        let start = self.0.last().map_or(0, |entry| entry.range.end);
        let range = start..start + shape.iter().product::<usize>();
        self.0.push(Entry {
            name,
            shape,
            range: range.clone(),
        });
        range
    }
}
