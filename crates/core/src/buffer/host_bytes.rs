//! Host memory of whatever owner, as a buffer's storage.

use std::{any::Any, ptr::NonNull};

use crate::{DeviceId, MemoryKind, Place, Storage};

/// Bytes of the host's memory, of an owner who keeps them until it is dropped: a vector, a file's mapping, or nobody where the
/// maker promises it. For backends and for whoever wraps memory that exists.
#[derive(Debug)]
pub struct HostBytes<O> {
    address: NonNull<u8>,
    len: usize,
    kind: MemoryKind,
    writable: bool,
    owner: O,
}

// SAFETY: the owner may be sent, and the address is only a copy of what it owns, usable from any thread as `new` was promised.
unsafe impl<O: Send> Send for HostBytes<O> {}
// SAFETY: nothing but the answers and the owner is reachable through a shared reference.
unsafe impl<O: Sync> Sync for HostBytes<O> {}

impl<O> HostBytes<O> {
    /// Memory of `owner`.
    ///
    /// # Safety
    /// * `len` bytes at `address` are initialised, readable, and where `writable` also writable, from any thread, until `owner` is
    ///   dropped, and nobody uses them in conflict with the buffer over them.
    /// * The address does not change when the owner is moved.
    /// * The memory is of that kind, and aligned to 16 bytes unless it is foreign.
    pub unsafe fn new(owner: O, address: NonNull<u8>, len: usize, kind: MemoryKind, writable: bool) -> Self {
        Self { address, len, kind, writable, owner }
    }

    /// Whose memory it is.
    pub fn owner(&self) -> &O {
        &self.owner
    }
}

// SAFETY: `new` was promised all of this; nothing changes afterwards.
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
