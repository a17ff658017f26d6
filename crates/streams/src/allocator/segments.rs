//! Segments reserved from the upstream resource.

use transload_core::{Access, Claims, Fence, RawBuffer};

use super::arena::size::MIN_BLOCK_SIZE;

/// One segment.
pub(crate) struct Segment {
    pub(crate) buffer: RawBuffer,
    /// Address of its first block, and total bytes of its blocks.
    pub(crate) base: u64,
    pub(crate) size: u64,
    /// Bytes counted towards the limit.
    pub(crate) reserved: u64,
    pub(crate) small: bool,
}

/// Segments by index.
#[derive(Default)]
pub(crate) struct Segments {
    list: Vec<Option<Segment>>,
}

impl Segment {
    /// Returns `None` if the memory has no address.
    pub(crate) fn new(buffer: RawBuffer, reserved: u64, small: bool) -> Option<Self> {
        let start = start(&buffer)?;
        let base = start.checked_next_multiple_of(MIN_BLOCK_SIZE)?;
        let size = (buffer.len() as u64).checked_sub(base - start)? & !(MIN_BLOCK_SIZE - 1);
        Some(Self { buffer, base, size, reserved, small })
    }

    /// Keeps the memory alive until the fence is complete, even if the segment is dropped now.
    pub(crate) fn keep_until(&self, fence: &Fence) {
        let claims = Claims::acquire(&mut [(&self.buffer, Access::Read)]);
        if let Ok(claims) = claims {
            // SAFETY: the segment's own buffer is never written, so the claim waits for nothing.
            unsafe { claims.commit(fence) };
        }
    }
}

/// Returns the address by which blocks are named: the device's, and of the host's memory the host's, which may be another one than that for devices.
pub(crate) fn start(buffer: &RawBuffer) -> Option<u64> {
    let of_host = || buffer.host_address().map(|address| address.addr().get() as u64);
    match buffer.place().device.is_cpu() {
        true => of_host(),
        false => buffer.device_address().or_else(of_host),
    }
}

impl Segments {
    pub(crate) fn add(&mut self, segment: Segment) -> u32 {
        let vacant = self.list.iter().position(Option::is_none);
        let index = vacant.unwrap_or_else(|| {
            self.list.push(None);
            self.list.len() - 1
        });
        self.list[index] = Some(segment);
        // Each has at least 512 bytes, so there are fewer than 2^32.
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Segment> {
        self.list.get(index as usize)?.as_ref()
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<Segment> {
        self.list.get_mut(index as usize)?.take()
    }

    pub(crate) fn count(&self) -> usize {
        self.list.iter().flatten().count()
    }

    pub(crate) fn take_all(&mut self) -> Vec<Segment> {
        std::mem::take(&mut self.list).into_iter().flatten().collect()
    }
}
