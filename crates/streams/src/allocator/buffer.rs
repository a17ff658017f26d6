//! Owned buffers over blocks, freed on drop with the fences of their uses.

use std::{any::Any, ptr::NonNull, sync::Arc};

use transload_core::{Error, ErrorKind, Fence, Place, RawBuffer, Recycler, Result, Storage, TimelineId};

use super::{
    arena::{Handle, blocks::Order, size::AllocParams},
    arenas::Owner,
    segments::start,
    shared::{AllocatedBlock, Shared},
};
use crate::CudaStream;

/// A block that a buffer owns.
struct Pooled {
    shared: Arc<Shared>,
    arena: u32,
    handle: Handle,
    address: u64,
    /// The stream of its allocation.
    stream: TimelineId,
    segment: RawBuffer,
    offset: usize,
    len: usize,
    /// Work in flight when the buffer was dropped.
    until: Vec<Fence>,
}

impl Shared {
    /// Allocates a buffer for work of `stream`.
    pub(super) fn buffer(self: &Arc<Self>, stream: &CudaStream, bytes: usize) -> Result<RawBuffer> {
        let params = AllocParams::new(bytes, true)?.within(self.options.max_split);
        let taken = self.allocate_for_buffer(stream, params, self.run_ahead_limit)?;
        self.wrap(stream, bytes, taken, false)
    }

    /// Allocates a buffer that prefers memory without work in flight.
    #[inline]
    pub(super) fn idle_buffer(self: &Arc<Self>, stream: &CudaStream, bytes: usize) -> Result<RawBuffer> {
        self.kept_buffer(bytes).map_or_else(|| self.new_idle_buffer(stream, bytes), Ok)
    }

    #[inline(never)]
    fn new_idle_buffer(self: &Arc<Self>, stream: &CudaStream, bytes: usize) -> Result<RawBuffer> {
        if let Some(buffer) = self.polled_kept_buffer(bytes) {
            return Ok(buffer);
        }
        let params = AllocParams::new(bytes, true)?.within(self.options.max_split);
        let taken = match self.take_own(stream, params)? {
            Some(taken) => taken,
            None => {
                // Buffers of other lengths, which may coalesce into this one.
                self.empty_own_cache();
                self.allocate_for_buffer(stream, params, u64::MAX)?
            }
        };
        self.wrap(stream, bytes, taken, true)
    }

    /// Wraps a block in a buffer; with `keep` it is cached when dropped.
    fn wrap(
        self: &Arc<Self>,
        stream: &CudaStream,
        bytes: usize,
        taken: AllocatedBlock,
        keep: bool,
    ) -> Result<RawBuffer> {
        let AllocatedBlock { arena, handle, address, segment, behind } = taken;
        let segment = self.segments.lock().get(segment).map(|found| found.buffer.clone());
        let Some((start, segment)) = segment.and_then(|segment| Some((start(&segment)?, segment))) else {
            return Err(Error::new(ErrorKind::Device, "a block without a segment"));
        };
        let storage = Pooled {
            shared: Arc::clone(self),
            arena,
            handle,
            address,
            stream: stream.id(),
            segment,
            offset: (address - start) as usize,
            len: bytes,
            until: Vec::new(),
        };
        let storage = Box::new(storage);
        Ok(match keep {
            true => RawBuffer::new_recycled(
                storage,
                &self.reclaimer,
                &behind,
                Arc::clone(self) as Arc<dyn Recycler>,
            ),
            false => RawBuffer::new_after(storage, &self.reclaimer, &behind),
        })
    }
}

// SAFETY: the block lies within the segment, which `segment` keeps alive, and has no other owner until it is freed;
// its memory is initialised and aligned like the segment's, at a multiple of 512 bytes from an aligned start. Adopted
// fences are kept with the block, and its next user waits for them.
unsafe impl Storage for Pooled {
    fn place(&self) -> Place {
        self.segment.place()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        // SAFETY: the block lies within the segment.
        self.segment.host_address().map(|address| unsafe { address.add(self.offset) })
    }

    fn device_address(&self) -> Option<u64> {
        self.segment.device_address().map(|address| address + self.offset as u64)
    }

    fn is_writable(&self) -> bool {
        self.segment.is_writable()
    }

    fn adopt_fences(&mut self, until: &[Fence]) -> bool {
        self.until.extend_from_slice(until);
        true
    }

    fn as_any(&self) -> &dyn Any {
        // The caller wants the segment's storage.
        self.segment.storage().map_or(self, Storage::as_any)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let Some(arena) = self.shared.arenas.get(self.arena) else { return };
        // Work of the block's own stream needs only a point, for other streams.
        let is_own = |fence: &Fence| fence.timeline().id() == self.stream;
        self.until.retain(|fence| !fence.is_known_complete());
        let own: Vec<Fence> = self.until.extract_if(.., |fence| is_own(fence)).collect();
        let mut point = own.iter().map(Fence::point).max().unwrap_or(0);
        let mut others = std::mem::take(&mut self.until);
        let mut state = arena.lock();
        let Ok(node) = state.live(self.handle, self.address) else { return };
        if !matches!(state.owner, Owner::Stream(_)) {
            // Used after the stream's release.
            others.extend(own.iter().cloned());
            point = 0;
        }
        state.last_point = state.last_point.max(point);
        if others.is_empty() && point > 0 && state.is_hosts {
            state.free_in_flight(node, point);
        } else {
            state.free_after(node, Order { freed: 0, point }, others);
        }
    }
}
