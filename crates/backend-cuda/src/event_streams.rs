//! Streams that do nothing but wait for events of other code.

use std::collections::VecDeque;

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
pub(crate) struct EventStreams(Mutex<VecDeque<(CudaStream, Fence)>>);

impl EventStreams {
    /// Returns a fence of what the event recorded last.
    ///
    /// # Safety
    /// * `event` is a live event of this process.
    pub(crate) unsafe fn fence_of(&self, device: &CudaDevice, event: RawEvent) -> Result<Fence> {
        let stream = self.take_idle().map_or_else(|| CudaStream::new(device), Ok)?;
        // SAFETY: the caller's promise.
        unsafe { stream.wait_raw_event(event) }?;
        let fence = stream.fence()?;
        self.keep(stream, fence.clone());
        Ok(fence)
    }

    /// Takes one stream at a time, so that concurrent callers find the others, and queries its fence without the lock.
    fn take_idle(&self) -> Option<CudaStream> {
        let kept = self.0.lock().len();
        for _ in 0..kept {
            let (stream, last) = self.0.lock().pop_front()?;
            if last.is_complete() && !transload_core::mutant!("backend-cuda/event-streams-kept") {
                return Some(stream);
            }
            self.keep(stream, last);
        }
        None
    }

    fn keep(&self, stream: CudaStream, last: Fence) {
        // Unlocked before a stream that is not kept is destroyed.
        let mut kept = self.0.lock();
        if kept.len() < KEPT {
            kept.push_back((stream, last));
        }
    }
}
