//! What belongs to one sequence that is being generated: its adapter, and the keys and values of its tokens.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::super::{Adapter, ModelConfig, trainable::Trainable};
use crate::{
    EngineError,
    device::{Buffer, padded_tokens},
};

/// An adapter as steps use it. Shared by all sequences that have it.
#[derive(Debug)]
pub struct LoadedAdapter {
    pub(super) pairs: Trainable,
}

impl LoadedAdapter {
    /// An adapter for a model of this shape.
    ///
    /// # Errors
    /// What [`Adapter::validate`] says, and [`EngineError::OutOfMemory`].
    pub fn new(config: &ModelConfig, adapter: &Adapter) -> Result<Self, EngineError> {
        Ok(Self {
            pairs: Trainable::pairs(config, adapter)?,
        })
    }

    /// No adapter: the base model as it is.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`].
    pub fn none(config: &ModelConfig) -> Result<Self, EngineError> {
        Self::new(config, &Adapter::empty(config))
    }

    /// Bytes that it holds in memory.
    pub fn bytes(&self) -> u64 {
        self.pairs.count() * size_of::<f32>() as u64
    }
}

/// How much memory the contexts that share this may hold together. Clones share it.
#[derive(Debug, Clone)]
pub struct CacheRoom(Arc<Room>);

#[derive(Debug)]
struct Room {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
}

impl CacheRoom {
    /// Room for so many bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self(Arc::new(Room {
            limit_bytes,
            used_bytes: AtomicUsize::new(0),
        }))
    }

    /// Room for as much as the system has.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// Bytes that contexts hold.
    pub fn used_bytes(&self) -> usize {
        self.0.used_bytes.load(Ordering::Relaxed)
    }

    /// Counts `bytes` more as used, if they fit.
    fn take(&self, bytes: usize) -> Result<(), EngineError> {
        let fits = |used: usize| {
            let total = used.checked_add(bytes)?;
            (total <= self.0.limit_bytes).then_some(total)
        };
        let taken = self
            .0
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        match taken {
            Ok(_) => Ok(()),
            Err(_) => Err(EngineError::OutOfMemory { bytes }),
        }
    }

    fn give_back(&self, bytes: usize) {
        self.0.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// One sequence: its adapter, and what its tokens left in every layer. Grows as tokens come.
#[derive(Debug)]
pub struct Context {
    pub(super) adapter: Arc<LoadedAdapter>,
    pub(super) layers: Vec<Cached>,
    /// Tokens that there is room for, in whole blocks.
    pub(super) capacity: usize,
    /// Tokens that are there.
    pub(super) len: usize,
    /// Width of all key heads together.
    width: usize,
    room: CacheRoom,
    bytes: usize,
}

/// Keys and values of one layer, `[tokens, width]` each.
#[derive(Debug)]
pub(super) struct Cached {
    pub(super) keys: Buffer,
    pub(super) values: Buffer,
}

impl Context {
    /// An empty context for a model of this shape.
    pub fn new(config: &ModelConfig, adapter: Arc<LoadedAdapter>, room: CacheRoom) -> Self {
        let empty = |_| Cached {
            keys: Buffer::empty(),
            values: Buffer::empty(),
        };
        Self {
            adapter,
            layers: (0..config.num_hidden_layers).map(empty).collect(),
            capacity: 0,
            len: 0,
            width: config.key_value_width(),
            room,
            bytes: 0,
        }
    }

    /// Tokens that are there.
    pub fn tokens(&self) -> usize {
        self.len
    }

    /// Makes room for `more` tokens behind those that are there.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] when the shared room or the system has none left; what is there stays.
    pub fn make_room(&mut self, more: usize) -> Result<(), EngineError> {
        let needed = padded_tokens(self.len + more);
        if needed <= self.capacity {
            return Ok(());
        }
        // Half as much again, so that growing token by token copies each token a few times at most.
        let ample = padded_tokens(needed.max(self.capacity + self.capacity / 2));
        match self.grow(ample) {
            Err(_) if needed < ample => self.grow(needed),
            result => result,
        }
    }

    fn grow(&mut self, tokens: usize) -> Result<(), EngineError> {
        let values = tokens * self.width;
        let bytes = 2 * self.layers.len() * values * size_of::<f32>();
        self.room.take(bytes - self.bytes)?;
        for layer in &mut self.layers {
            let extended = layer
                .keys
                .extend(values)
                .and_then(|()| layer.values.extend(values));
            if let Err(error) = extended {
                self.room.give_back(bytes - self.bytes);
                return Err(error);
            }
        }
        self.bytes = bytes;
        self.capacity = tokens;
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.room.give_back(self.bytes);
    }
}
