//! Host memory of any owner, as a buffer's storage.

use std::{any::Any, ptr::NonNull};

use crate::{DeviceId, MemoryKind, Place, Storage};

/// Host memory with an owner that keeps it alive: a vector, a file mapping, or `()` if the caller guarantees
/// its lifetime. For backends and for wrapping existing memory. The thread that ends the last use drops the
/// owner, so its destructor must not block: otherwise use `ExternalStorage` of `transload-executor`.
#[derive(Debug)]
pub struct HostBytes<O> {
    address: NonNull<u8>,
    len: usize,
    kind: MemoryKind,
    writable: bool,
    owner: O,
}

// SAFETY: the owner is Send, and the address refers to memory that the owner keeps alive and that any thread
// may use, as `new` requires.
unsafe impl<O: Send> Send for HostBytes<O> {}
// SAFETY: a shared reference gives access only to the fields' values and to the owner, which is Sync.
unsafe impl<O: Sync> Sync for HostBytes<O> {}

impl<O> HostBytes<O> {
    /// Wraps memory of `owner`.
    ///
    /// # Safety
    /// * `len` bytes at `address` are initialised, readable, and if `writable` also writable, from any
    ///   thread, until `owner` is dropped, and nothing uses them in conflict with the buffer over them.
    /// * The address does not change when the owner is moved.
    /// * The memory is of that kind, and aligned to 16 bytes unless it is foreign.
    pub unsafe fn new(owner: O, address: NonNull<u8>, len: usize, kind: MemoryKind, writable: bool) -> Self {
        Self { address, len, kind, writable, owner }
    }

    /// Returns the owner.
    pub fn owner(&self) -> &O {
        &self.owner
    }
}

// SAFETY: the caller of `new` promised all of this, and nothing changes afterwards.
unsafe impl<O: Send + Sync + 'static> Storage for HostBytes<O> {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, self.kind)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        Some(self.address)
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
