//! Streams that do nothing but wait for events of other code.

use parking_lot::Mutex;
use transload_core::{Fence, Result};
use transload_cuda_sys::RawEvent;
use transload_memory::CudaDevice;
use transload_streams::CudaStream;

/// Maximum number of streams kept.
const KEPT: usize = 8;

/// Streams of one device, each with the fence of the last event that it waited for. A stream waits for one event at a time: two
/// events of other code need not complete in the order in which they were passed.
#[derive(Default)]
pub(crate) struct EventStreams(Mutex<Vec<(CudaStream, Fence)>>);

impl EventStreams {
    /// Returns a fence of what the event recorded last.
    ///
    /// # Safety
    /// * `event` is a live event of this process.
    pub(crate) unsafe fn fence_of(&self, device: &CudaDevice, event: RawEvent) -> Result<Fence> {
        // Query fences and create streams without the lock.
        let mut kept = std::mem::take(&mut *self.0.lock());
        let idle = kept.iter().position(|(_, last)| last.is_complete());
        let idle = idle.filter(|_| !transload_core::mutant!("backend-cuda/event-streams-kept"));
        let stream = match idle.map(|index| kept.swap_remove(index)) {
            Some((stream, _)) => Ok(stream),
            None => CudaStream::new(device),
        };
        let waited = stream.and_then(|stream| {
            // SAFETY: the caller's promise.
            unsafe { stream.wait_raw_event(event) }?;
            let fence = stream.fence()?;
            Ok((stream, fence))
        });
        let outcome = waited.map(|(stream, fence)| {
            kept.push((stream, fence.clone()));
            fence
        });
        let mut all = self.0.lock();
        all.append(&mut kept);
        let most = all.len().min(KEPT);
        let surplus = all.split_off(most);
        drop(all);
        drop(surplus);
        outcome
    }
}
