//! Host slices of a unified buffer.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
    slice,
};

use transload_core::Pod;

use super::host::HostAccessGuard;

/// A read-only slice of elements. While it is open, device work that would write them and write guards fail with
/// `Busy`. Usable from any thread.
#[derive(Debug)]
pub struct UnifiedSlice<'a, T> {
    open: HostAccessGuard<'a>,
    elements: PhantomData<&'a [T]>,
}

/// A writable slice of elements. While it is open, device work on them and guards fail with `Busy`. Devices see its
/// content once it is dropped. Usable from any thread.
#[derive(Debug)]
pub struct UnifiedSliceMut<'a, T> {
    open: HostAccessGuard<'a>,
    elements: PhantomData<&'a mut [T]>,
}

impl<'a, T: Pod> UnifiedSlice<'a, T> {
    /// Creates a slice of whole, aligned elements.
    pub(crate) fn new(open: HostAccessGuard<'a>) -> Self {
        Self { open, elements: PhantomData }
    }
}

impl<'a, T: Pod> UnifiedSliceMut<'a, T> {
    /// Creates a slice of whole, aligned elements, opened for writing.
    pub(crate) fn new(open: HostAccessGuard<'a>) -> Self {
        Self { open, elements: PhantomData }
    }
}

impl<T: Pod> Deref for UnifiedSlice<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let count = self.open.len() / size_of::<T>().max(1);
        // SAFETY: the bytes are readable, initialised and not written while `open` lives, the buffer checked length and
        // alignment, and any bytes are a valid `T`.
        unsafe { slice::from_raw_parts(self.open.address().cast::<T>().as_ptr(), count) }
    }
}

impl<T: Pod> Deref for UnifiedSliceMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let count = self.open.len() / size_of::<T>().max(1);
        // SAFETY: as for `UnifiedSlice`; a writable one keeps every other user away.
        unsafe { slice::from_raw_parts(self.open.address().cast::<T>().as_ptr(), count) }
    }
}

impl<T: Pod> DerefMut for UnifiedSliceMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let count = self.open.len() / size_of::<T>().max(1);
        // SAFETY: as above, it was opened for writing, and `&mut self` makes this the only reference.
        unsafe { slice::from_raw_parts_mut(self.open.address().cast::<T>().as_ptr(), count) }
    }
}
