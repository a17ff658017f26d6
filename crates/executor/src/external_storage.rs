//! Memory of another owner as a buffer's storage.

use std::{any::Any, fmt, mem, ptr::NonNull};

use transload_core::{Fence, Place, Storage};

use crate::DropQueue;

/// Where memory of another owner lies, for [`ExternalStorage`].
#[derive(Debug)]
pub struct ExternalMemory {
    /// Device and kind of memory.
    pub place: Place,
    /// Length in bytes.
    pub bytes: usize,
    /// Address for the host, if the host can address it.
    pub host_address: Option<NonNull<u8>>,
    /// Address for devices, if they can address it.
    pub device_address: Option<u64>,
    /// Whether it may be written.
    pub writable: bool,
    /// Data that queues of the device need, returned by [`Storage::as_any`].
    pub backend_data: Option<Box<dyn Any + Send + Sync>>,
}

/// Memory of another owner, as a buffer's storage. When the last handle of the buffer was dropped and no operation uses the memory
/// any more, the owner is dropped by a [`DropQueue`]: never by the thread that drops the handle, or that wakes tasks.
pub struct ExternalStorage {
    memory: ExternalMemory,
    /// Taken on drop.
    owner: Option<Box<dyn Any + Send>>,
    /// Work in flight at the drop.
    until: Vec<Fence>,
    drops: DropQueue,
}

// SAFETY: the addresses are plain numbers, and the owner is Send.
unsafe impl Send for ExternalStorage {}
// SAFETY: as above; a shared reference does not reach the owner, and the buffer orders access to the bytes.
unsafe impl Sync for ExternalStorage {}

impl ExternalStorage {
    /// Wraps memory of `owner`.
    ///
    /// # Safety
    /// * The description is true, and the memory is valid until `owner` is dropped: the promises of [`Storage`] about addresses.
    /// * Nothing uses the memory in conflict with the buffer over it.
    pub unsafe fn new(memory: ExternalMemory, owner: Box<dyn Any + Send>, drops: &DropQueue) -> Self {
        Self { memory, owner: Some(owner), until: Vec::new(), drops: drops.clone() }
    }
}

// SAFETY: the caller of `new` promised what concerns the addresses. Adopted fences are waited for before the owner is dropped, which
// keeps the memory until then.
unsafe impl Storage for ExternalStorage {
    fn place(&self) -> Place {
        self.memory.place
    }

    fn len(&self) -> usize {
        self.memory.bytes
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        self.memory.host_address
    }

    fn device_address(&self) -> Option<u64> {
        self.memory.device_address
    }

    fn is_writable(&self) -> bool {
        self.memory.writable
    }

    fn adopt_fences(&mut self, until: &[Fence]) -> bool {
        if !transload_core::mutant!("executor/owner-after-last-use") {
            self.until.extend_from_slice(until);
        }
        true
    }

    fn as_any(&self) -> &dyn Any {
        match &self.memory.backend_data {
            Some(backend_data) => &**backend_data,
            None => self,
        }
    }
}

impl Drop for ExternalStorage {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            if transload_core::mutant!("executor/owner-by-drop-queue") {
                return drop(owner);
            }
            self.drops.push(owner, mem::take(&mut self.until));
        }
    }
}

impl fmt::Debug for ExternalStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalStorage").field("memory", &self.memory).finish_non_exhaustive()
    }
}
