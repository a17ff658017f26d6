//! A segment of another resource with something beside it: how every adaptor hands on what it was given.

use std::{any::Any, ptr::NonNull, sync::Arc};

use transload_core::{Access, Claims, Fence, Place, RawBuffer, Reclaimer, Result, Storage};

/// Wraps segments for one adaptor.
#[derive(Default)]
pub(super) struct Wrapper {
    /// Holds only what a segment would not take over.
    reclaimer: Arc<Reclaimer>,
}

impl Wrapper {
    /// A buffer over all of a segment. `before` is dropped before the segment is given back, `after` once it is.
    pub(super) fn wrap<B, A>(&self, segment: RawBuffer, before: B, after: A) -> RawBuffer
    where
        B: Send + Sync + 'static,
        A: Send + Sync + 'static,
    {
        let wrapped = Wrapped { _before: before, segment, _after: after };
        RawBuffer::new(Box::new(wrapped), &self.reclaimer)
    }

    pub(super) fn sweep(&self) {
        self.reclaimer.sweep();
    }

    pub(super) fn drain(&self) -> Result<()> {
        self.reclaimer.drain_where(crate::manager::is_of_a_device)
    }
}

/// In the order of being dropped.
struct Wrapped<B, A> {
    _before: B,
    segment: RawBuffer,
    _after: A,
}

// SAFETY: every answer is that of a live segment, which is owned until drop.
unsafe impl<B: Send + Sync + 'static, A: Send + Sync + 'static> Storage for Wrapped<B, A> {
    fn place(&self) -> Place {
        self.segment.place()
    }

    fn len(&self) -> usize {
        self.segment.len()
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        self.segment.host_address()
    }

    fn device_address(&self) -> Option<u64> {
        self.segment.device_address()
    }

    fn is_writable(&self) -> bool {
        self.segment.is_writable()
    }

    /// Hands the fences on: the segment waits for them where it came from, also when this resource is gone by then.
    fn take_over(&mut self, until: &[Fence]) -> bool {
        until.iter().all(|fence| {
            let claims = Claims::of(&mut [(&self.segment, Access::Read)]);
            // SAFETY: nobody uses the segment's own buffer, so the claim came after nothing.
            claims.map(|claims| unsafe { claims.commit(fence) }).is_ok()
        })
    }

    /// The wrapped resource's memory, whatever is around it.
    fn as_any(&self) -> &dyn Any {
        self.segment.storage().map_or(self, Storage::as_any)
    }
}
