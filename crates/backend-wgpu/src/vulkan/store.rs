//! Short uploads to an idle queue, which the host stores where it sees the device's memory: a submission takes many microseconds.

use std::{
    ptr::NonNull,
    sync::atomic::{Ordering, fence},
};

use transload_core::{MemoryKind, Operation, Place, Result, mutant};

use super::{
    Submissions,
    copy::copy_bytes,
    state::{DeviceState, Line},
    storage::WgpuStorage,
};

/// Most bytes of an upload that the host stores. Not measured: so many take some microseconds over PCIe, less than a submission.
const MOST: usize = 16 << 10;

/// Has the calling thread store an upload, if it is short and nothing is in flight on the queue. Returns its point, which is reached, or `None` if
/// nothing was done.
///
/// # Errors
/// The loss of the device. Nothing was done then.
///
/// # Safety
/// * Those of [`perform`](super::copy::perform).
pub(super) unsafe fn store(
    device: &DeviceState,
    line: &Line,
    operation: &Operation<'_>,
) -> Result<Option<u64>> {
    let Some((src, dst, bytes)) = addresses(device, operation) else { return Ok(None) };
    // SAFETY: both have the bytes, of different allocations; the caller keeps them, and has claimed them.
    line.queue.run_idle(|| unsafe { copy_bytes(src, dst, bytes) })
}

/// Returns from where to where the host stores how many bytes, if it does.
fn addresses(device: &DeviceState, operation: &Operation<'_>) -> Option<(NonNull<u8>, NonNull<u8>, usize)> {
    let Operation::Copy { src, dst } = *operation else { return None };
    let there = Place::new(device.id(), MemoryKind::Device);
    if src.len() > MOST || !src.place().device.is_cpu() || dst.place() != there {
        return None;
    }
    let storage = dst.storage()?.as_any().downcast_ref::<WgpuStorage>()?;
    let vulkan = &device.queue.vulkan;
    let memory = Some(storage.memory()).filter(|memory| memory.is_of(vulkan) && vulkan.stores())?;
    // SAFETY: the offset is within the allocation.
    let dst = unsafe { memory.address()?.add(dst.offset()) };
    Some((src.host_address()?, dst, src.len()))
}

impl Submissions {
    /// Calls `run` if nothing is in flight, before everything submitted later. Returns a point, which is reached, or `None` without the
    /// call.
    ///
    /// # Errors
    /// The loss of the device. `run` was not called then.
    pub(crate) fn run_idle(&self, run: impl FnOnce()) -> Result<Option<u64>> {
        let _state = self.lock()?;
        let last = self.enqueued.load(Ordering::Relaxed);
        if self.reached() < last {
            self.refresh_locked();
        }
        // A lost device has reached more.
        if self.reached() != last && !mutant!("wgpu/store-if-idle") {
            return Ok(None);
        }
        run();
        // Ordinary stores may overtake those to a GPU's memory, which are combined, and another thread may submit next.
        fence(Ordering::SeqCst);
        // No submission signals it, and none waits for it: the semaphore has the value of the next one then.
        let point = last + 1;
        self.enqueued.store(point, Ordering::Release);
        self.reach(point);
        Ok(Some(point))
    }
}

#[cfg(test)]
#[path = "../../tests/unit/store.rs"]
mod tests;
