//! Aliases: buffers over the bytes of another one, by another driver's handle.

use std::{mem::ManuallyDrop, sync::Arc};

use crate::{Error, ErrorKind, RawBuffer, Reclaimer, Result, Storage, buffer::raw_buffer::Allocation};

impl RawBuffer {
    /// Returns a buffer over the same bytes as `original`, a slice included, at the place of `storage`: by which another driver on the
    /// same device uses the memory. Both have one id and one table of uses: what conflicts with a view of or work on the one does so with
    /// the other. It keeps the original, and thus the memory, alive.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the storage is not as long as the original's allocation.
    pub fn new_alias(storage: Box<dyn Storage>, reclaimer: &Arc<Reclaimer>, original: &Self) -> Result<Self> {
        let of = original.alias_of().unwrap_or_else(|| original.clone());
        if storage.len() != of.allocation_len() {
            let text = format!(
                "an alias of {} bytes is not one of {of:?}, of {}",
                storage.len(),
                of.allocation_len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let mut allocation = Allocation::new(storage, reclaimer, &[], None);
        (allocation.id, allocation.is_alias) = (of.id(), true);
        allocation.aliased = Some(Arc::clone(&of.allocation));
        let (offset, len) = (of.offset, of.len);
        Ok(Self { allocation: ManuallyDrop::new(Arc::new(allocation)), offset, len })
    }

    /// Returns the same bytes of the buffer that this is an [alias](Self::new_alias) of; `None` if it is none.
    #[must_use]
    pub fn alias_of(&self) -> Option<Self> {
        let allocation = ManuallyDrop::new(Arc::clone(self.allocation.aliased.as_ref()?));
        Some(Self { allocation, offset: self.offset, len: self.len })
    }

    /// Returns whether both are views of one allocation, and neither is an alias of the other. Faster than a comparison of their ids.
    #[must_use]
    #[inline]
    pub fn shares_allocation(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.allocation, &other.allocation)
    }
}
