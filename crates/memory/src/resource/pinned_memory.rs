//! One segment of pinned memory whose pages are ours: mapped, registered, and taken back in the opposite order.

use std::{any::Any, ptr::NonNull, sync::Arc};

use transload_core::{DeviceId, MemoryKind, Place, RawBuffer, Result, Storage};
use transload_cuda_sys::Context;

use super::{
    mapping::{Mapping, Wanted},
    pins::{DEVICE_MAP, Pins},
};
use crate::{
    CudaMemoryManager,
    error::lift_allocation,
    janitor::{Address, Janitor},
    manager::Parts,
    tally::Counted,
};

/// A registered mapping.
pub(super) struct PinnedMemory {
    address: NonNull<u8>,
    device_address: Option<u64>,
    bytes: usize,
    context: Context,
    janitor: Arc<Janitor>,
    /// Taken when the memory goes back.
    held: Option<(Pins, Counted)>,
}

// SAFETY: the memory is owned and not tied to a thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above; access to the bytes is ordered by the buffer over it.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub(super) fn allocate(manager: &CudaMemoryManager, bytes: usize, wanted: Wanted) -> Result<RawBuffer> {
        let Parts { context, janitor, reclaimer, tally } = manager.parts();
        reclaimer.sweep();
        let counted = tally.enter(bytes);
        let mapping = Mapping::new(bytes, wanted)?;
        let (address, len) = (mapping.start(), mapping.len());
        let start = address.as_ptr().expose_provenance();
        // SAFETY: the mapping is its own owner.
        let pins = unsafe { Pins::new(context, start, len, DEVICE_MAP, Box::new(mapping)) };
        let place = Place::new(DeviceId::Cpu, MemoryKind::Pinned);
        let pins = pins.map_err(|error| lift_allocation(error, context, place, bytes))?;
        let memory = Self {
            address,
            device_address: pins.device_address(),
            bytes,
            context: context.clone(),
            janitor: Arc::clone(janitor),
            held: Some((pins, counted)),
        };
        Ok(RawBuffer::new(Box::new(memory), reclaimer))
    }
}

// SAFETY: the mapping has `bytes` bytes, zeroed by the system and aligned to a page, and is kept until drop.
unsafe impl Storage for PinnedMemory {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, MemoryKind::Pinned)
    }

    fn len(&self) -> usize {
        self.bytes
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        Some(self.address)
    }

    fn device_address(&self) -> Option<u64> {
        self.device_address
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if let Some((pins, counted)) = self.held.take() {
            self.janitor.free(self.context.clone(), Address::Registered(pins), counted);
        }
    }
}
