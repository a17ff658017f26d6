//! The ring: pinned memory of a device, made as it is needed, kept, and never more than so many slots.

use std::{collections::VecDeque, ptr::NonNull, sync::Arc};

use parking_lot::{Condvar, Mutex};
use transload_core::{Backend, DeviceId, Error, ErrorKind, Fence, MemoryKind, RawBuffer, Result};

/// Bytes of a slot. Pieces of 4 MiB reach 0.97 of a link's rate where each is a copy of its own.
pub(crate) const SLOT: usize = 4 << 20;

/// Pinned memory for one piece.
pub(crate) struct Slot {
    pub(crate) buffer: RawBuffer,
    /// Where the host sees it.
    pub(crate) address: NonNull<u8>,
    /// The copy that still reads it, if one may.
    pub(crate) busy: Option<Fence>,
}

// SAFETY: the address is that of the buffer, which is Send; whoever holds the slot has it for itself.
unsafe impl Send for Slot {}

/// The slots of one device. A worker that holds one never waits for another, so the ring cannot run dry for good.
pub(crate) struct Slots {
    backend: Arc<dyn Backend>,
    device: DeviceId,
    most: usize,
    ring: Mutex<Ring>,
    returned: Condvar,
}

#[derive(Default)]
struct Ring {
    free: VecDeque<Slot>,
    made: usize,
}

impl Slots {
    pub(crate) fn new(backend: &Arc<dyn Backend>, device: DeviceId, most: usize) -> Self {
        Self {
            backend: Arc::clone(backend),
            device,
            most: most.max(1),
            ring: Mutex::default(),
            returned: Condvar::new(),
        }
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.device
    }

    /// A slot that nothing reads any more; waits for one where all are in use. Only for who holds none.
    ///
    /// # Errors
    /// That of allocating the first slot; once there is one it is waited for instead.
    pub(crate) fn take(&self) -> Result<Slot> {
        let mut ring = self.ring.lock();
        loop {
            if let Some(slot) = ring.free.pop_front() {
                drop(ring);
                return Ok(Self::rested(slot));
            }
            if ring.made < self.most {
                ring.made += 1;
                drop(ring);
                match self.make() {
                    Ok(slot) => return Ok(slot),
                    Err(error) => {
                        ring = self.ring.lock();
                        ring.made -= 1;
                        if ring.made == 0 && ring.free.is_empty() {
                            // Whoever waits tries for itself, and fails likewise.
                            self.returned.notify_all();
                            return Err(error);
                        }
                        // Fewer slots must do.
                        if ring.free.is_empty() {
                            self.returned.wait(&mut ring);
                        }
                        continue;
                    }
                }
            }
            self.returned.wait(&mut ring);
        }
    }

    /// A slot, if one can be had without waiting for another worker.
    pub(crate) fn try_take(&self) -> Option<Slot> {
        let mut ring = self.ring.lock();
        if let Some(slot) = ring.free.pop_front() {
            drop(ring);
            return Some(Self::rested(slot));
        }
        if ring.made >= self.most {
            return None;
        }
        ring.made += 1;
        drop(ring);
        let made = self.make().ok();
        if made.is_none() {
            self.ring.lock().made -= 1;
            self.returned.notify_all();
        }
        made
    }

    pub(crate) fn put(&self, slot: Slot) {
        self.ring.lock().free.push_back(slot);
        self.returned.notify_one();
    }

    /// Gives the slots that are free back to the backend.
    pub(crate) fn release(&self) {
        let mut ring = self.ring.lock();
        let free = std::mem::take(&mut ring.free);
        ring.made -= free.len();
        drop(ring);
        for slot in free {
            drop(Self::rested(slot));
        }
    }

    /// Waits for the copy that reads the slot. What it failed with, its own job reports.
    fn rested(mut slot: Slot) -> Slot {
        if let Some(fence) = slot.busy.take() {
            let _reported_by_its_job = fence.wait();
        }
        slot
    }

    fn make(&self) -> Result<Slot> {
        let buffer = self.backend.allocate(self.device, MemoryKind::Pinned, SLOT)?;
        let Some(address) = buffer.host_address() else {
            return Err(Error::new(ErrorKind::Unsupported, "pinned memory that the host cannot address"));
        };
        Ok(Slot { buffer, address, busy: None })
    }
}
