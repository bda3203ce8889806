//! Slices that are cut into parts, one for each item of a team's region, without a list of them.

use std::marker::PhantomData;

/// Something that is cut into parts, each of which goes to one thread.
///
/// # Safety
/// Parts of different indexes have nothing in common that can be written to.
pub(crate) unsafe trait Parts: Sync {
    /// One of them.
    type Part;

    /// How many there are.
    fn count(&self) -> usize;

    /// The part of an index below the count.
    ///
    /// # Safety
    /// Once for each index.
    unsafe fn part(&self, index: usize) -> Self::Part;
}

/// Neighbouring values `[rows, width]`, a row each.
pub(crate) struct RowsMut<'a, T> {
    start: *mut T,
    rows: usize,
    width: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: every part goes to one thread, and its values may.
unsafe impl<T: Send> Sync for RowsMut<'_, T> {}

/// Cuts a slice into rows of `width` values.
pub(crate) fn rows_mut<T>(slice: &mut [T], width: usize) -> RowsMut<'_, T> {
    RowsMut {
        rows: slice.len() / width,
        start: slice.as_mut_ptr(),
        width,
        slice: PhantomData,
    }
}

// SAFETY: rows lie side by side.
unsafe impl<'a, T: Send> Parts for RowsMut<'a, T> {
    type Part = &'a mut [T];

    fn count(&self) -> usize {
        self.rows
    }

    unsafe fn part(&self, index: usize) -> &'a mut [T] {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        // SAFETY: within the slice by the assertion; unaliased, as the caller asks once for each row.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(index * self.width), self.width) }
    }
}

/// Items without anything of their own.
pub(crate) struct Count(pub usize);

// SAFETY: there is nothing to write to.
unsafe impl Parts for Count {
    type Part = ();

    fn count(&self) -> usize {
        self.0
    }

    unsafe fn part(&self, _: usize) {}
}

// SAFETY: parts of different indexes are apart in each member.
unsafe impl<A: Parts, B: Parts> Parts for (A, B) {
    type Part = (A::Part, B::Part);

    fn count(&self) -> usize {
        self.0.count().min(self.1.count())
    }

    unsafe fn part(&self, index: usize) -> Self::Part {
        // SAFETY: by the caller.
        unsafe { (self.0.part(index), self.1.part(index)) }
    }
}

// SAFETY: as for pairs.
unsafe impl<A: Parts, B: Parts, C: Parts> Parts for (A, B, C) {
    type Part = (A::Part, B::Part, C::Part);

    fn count(&self) -> usize {
        self.0.count().min(self.1.count()).min(self.2.count())
    }

    unsafe fn part(&self, index: usize) -> Self::Part {
        // SAFETY: by the caller.
        unsafe { (self.0.part(index), self.1.part(index), self.2.part(index)) }
    }
}
