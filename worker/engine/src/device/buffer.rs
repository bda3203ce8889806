//! Large zeroed memory for weights and activations, and how one such buffer is handed out in parts.

use memmap2::MmapMut;

use crate::EngineError;

#[cfg(test)]
pub(crate) use limited::LimitedAllocations;

/// Zeroed `f32` storage straight from the system, in huge pages where it offers them.
///
/// Pages that are never touched cost nothing.
#[derive(Debug, Default)]
pub struct Buffer {
    map: Option<MmapMut>,
    len: usize,
}

impl Buffer {
    /// No storage yet.
    pub const fn empty() -> Self {
        Self { map: None, len: 0 }
    }

    /// Storage for `len` values, all zero.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] when the system refuses.
    pub fn zeroed(len: usize) -> Result<Self, EngineError> {
        if len == 0 {
            return Ok(Self::empty());
        }
        let bytes = len * size_of::<f32>();
        #[cfg(test)]
        limited::check(bytes)?;
        let map = MmapMut::map_anon(bytes).map_err(|_| EngineError::OutOfMemory { bytes })?;
        // Only a hint: a kernel without huge pages refuses it, and all works the same.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self {
            map: Some(map),
            len,
        })
    }

    /// Makes room for at least `len` values; what the buffer held is lost if it has to grow.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] when the system refuses.
    pub fn reserve(&mut self, len: usize) -> Result<(), EngineError> {
        if len > self.len {
            // Given back first, so that both are never held at once.
            *self = Self::empty();
            *self = Self::zeroed(len)?;
        }
        Ok(())
    }

    /// Makes room for at least `len` values and keeps those that are there; new ones are zero.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] when the system refuses; the buffer is then as it was.
    pub fn extend(&mut self, len: usize) -> Result<(), EngineError> {
        if len > self.len {
            let mut larger = Self::zeroed(len)?;
            larger.as_mut_slice()[..self.len].copy_from_slice(self.as_slice());
            *self = larger;
        }
        Ok(())
    }

    /// The values.
    pub fn as_slice(&self) -> &[f32] {
        match &self.map {
            Some(map) => &bytemuck::cast_slice(map)[..self.len],
            None => &[],
        }
    }

    /// The values, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        match &mut self.map {
            Some(map) => &mut bytemuck::cast_slice_mut(map)[..self.len],
            None => &mut [],
        }
    }
}

/// Hands out disjoint parts of a slice one after the other.
#[derive(Debug)]
pub struct Carver<'a> {
    rest: &'a mut [f32],
}

/// Left free behind each part, so that parts of like size do not fall on the same lines of the cache.
const GAP: usize = 17 * 16;

impl<'a> Carver<'a> {
    /// Starts at the front of `slice`.
    pub fn new(slice: &'a mut [f32]) -> Self {
        Self { rest: slice }
    }

    /// The next `len` values. The caller has planned the slice with [`Carver::space`].
    pub fn take(&mut self, len: usize) -> &'a mut [f32] {
        let rest = std::mem::take(&mut self.rest);
        let (part, rest) = rest.split_at_mut(Self::space(len));
        self.rest = rest;
        &mut part[..len]
    }

    /// Everything that was not taken.
    pub fn into_rest(self) -> &'a mut [f32] {
        self.rest
    }

    /// What a part of `len` values takes up, its alignment and gap included.
    pub fn space(len: usize) -> usize {
        len.next_multiple_of(16) + GAP
    }
}

/// Allocations that fail as they would on a machine with less memory.
#[cfg(test)]
mod limited {
    use std::cell::Cell;

    use crate::EngineError;

    thread_local! {
        static LARGEST: Cell<u64> = const { Cell::new(u64::MAX) };
    }

    /// While it lives, buffers larger than this are refused to its thread.
    #[derive(Debug)]
    pub(crate) struct LimitedAllocations;

    impl LimitedAllocations {
        pub(crate) fn up_to(bytes: u64) -> Self {
            LARGEST.set(bytes);
            Self
        }
    }

    impl Drop for LimitedAllocations {
        fn drop(&mut self) {
            LARGEST.set(u64::MAX);
        }
    }

    pub(super) fn check(bytes: usize) -> Result<(), EngineError> {
        match bytes as u64 > LARGEST.get() {
            true => Err(EngineError::OutOfMemory { bytes }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_zeroed_and_grows() {
        let mut buffer = Buffer::zeroed(0).unwrap();
        assert!(buffer.as_slice().is_empty());
        buffer.reserve(100_000).unwrap();
        assert!(buffer.as_slice().iter().all(|&v| v == 0.0));
        assert_eq!(buffer.as_mut_slice().len(), 100_000);
        let before = buffer.as_slice().as_ptr();
        buffer.reserve(50).unwrap();
        assert_eq!(buffer.as_slice().as_ptr(), before);
    }

    #[test]
    fn extended_buffer_keeps_what_it_held() {
        let mut buffer = Buffer::zeroed(3).unwrap();
        buffer.as_mut_slice().copy_from_slice(&[1.0, 2.0, 3.0]);
        buffer.extend(5000).unwrap();
        assert_eq!(buffer.as_slice()[..5], [1.0, 2.0, 3.0, 0.0, 0.0]);
        buffer.extend(10).unwrap();
        assert_eq!(buffer.as_slice().len(), 5000);
    }

    #[test]
    fn parts_are_disjoint_and_in_order() {
        let mut memory = vec![0.0; Carver::space(5) + Carver::space(40)];
        let mut carver = Carver::new(&mut memory);
        let (first, second) = (carver.take(5), carver.take(40));
        first.fill(1.0);
        second.fill(2.0);
        assert_eq!((first.len(), second.len()), (5, 40));
        assert!(first.iter().all(|&v| v == 1.0));
    }
}
