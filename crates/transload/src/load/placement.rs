//! Memory for all tensors: one allocation if possible, else several of bounded size.

use std::sync::OnceLock;

use transload_core::{Backend, Error, ErrorKind, MemoryKind, MemoryShortage, Place, RawBuffer, Result};
use transload_transfer::CrossBackendTransferManager;

use super::{
    header::Header,
    layout::{Layout, TensorRange},
    options::LoadOptions,
};

/// A layout and its memory, once it is allocated.
#[derive(Debug)]
pub(super) struct TensorPlacement {
    pub(super) layout: Layout,
    /// Buffers of the layout's segments, aligned and of equal length.
    segments: OnceLock<Vec<RawBuffer>>,
}

impl TensorPlacement {
    /// Lays the tensors out in segments of at most `most` bytes, but no smaller ones than a tensor.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] with the requested and free bytes, if the device reports its free memory.
    pub(super) fn plan(
        manager: &CrossBackendTransferManager,
        header: &Header,
        options: &LoadOptions,
        most: usize,
    ) -> Result<Self> {
        let layout = Layout::new(&header.tensors, options.alignment_bytes(), most)
            .ok_or_else(|| too_large(manager, options.place, header.bytes))?;
        check_total_memory(manager, options, &layout)?;
        Ok(Self { layout, segments: OnceLock::new() })
    }

    /// Allocates the segments.
    ///
    /// # Errors
    /// Those of the backend; everything is freed then.
    pub(super) fn allocate(
        &self,
        manager: &CrossBackendTransferManager,
        options: &LoadOptions,
    ) -> Result<()> {
        let segments = self.layout.segments.iter().map(|bytes| segment(manager, options, *bytes));
        let _only_once = self.segments.set(segments.collect::<Result<_>>()?);
        Ok(())
    }

    /// Returns the memory of all segments; none until it is allocated.
    pub(super) fn segments(&self) -> &[RawBuffer] {
        self.segments.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the memory of one tensor.
    pub(super) fn tensor(&self, range: TensorRange) -> Result<RawBuffer> {
        self.segment(range.segment)?.slice(range.offset..range.offset + range.bytes)
    }

    pub(super) fn segment(&self, index: usize) -> Result<&RawBuffer> {
        let missing = || Error::new(ErrorKind::OutOfRange, format!("there is no segment {index}"));
        self.segments().get(index).ok_or_else(missing)
    }
}

/// Returns the bytes of the longest segment that is within the device's largest allocation, with what aligning it may take.
pub(super) fn largest_segment(backend: &dyn Backend, options: &LoadOptions) -> usize {
    let of_device = backend.devices().into_iter().find(|info| info.id == options.place.device);
    let largest = of_device.and_then(|info| info.largest_allocation);
    let largest = largest.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    largest.saturating_sub(padding(options)).max(1)
}

/// Returns the bytes by which an allocation is longer than its segment.
fn padding(options: &LoadOptions) -> usize {
    let alignment = options.alignment_bytes();
    if alignment > options.allocator_alignment() { alignment } else { 0 }
}

/// Allocates `bytes` at an aligned address.
fn segment(manager: &CrossBackendTransferManager, options: &LoadOptions, bytes: usize) -> Result<RawBuffer> {
    let Place { device, kind } = options.place;
    let alignment = options.alignment_bytes();
    if alignment <= options.allocator_alignment() {
        let buffer = manager.allocate(device, kind, bytes)?;
        if alignment_offset(&buffer, alignment) == 0 {
            return Ok(buffer);
        }
    }
    let most = bytes.checked_add(alignment).ok_or_else(|| too_large(manager, options.place, bytes as u64))?;
    let buffer = manager.allocate(device, kind, most)?;
    let from = alignment_offset(&buffer, alignment);
    buffer.slice(from..from + bytes)
}

/// Returns the bytes to the next aligned address; less than the alignment.
fn alignment_offset(buffer: &RawBuffer, alignment: usize) -> usize {
    let host = || buffer.host_address().map(|address| address.as_ptr().addr() as u64);
    let over = buffer.device_address().or_else(host).unwrap_or(0) % alignment as u64;
    if over == 0 { 0 } else { alignment - over as usize }
}

/// Fails if the device has too little memory in all. Whether enough of it is free the allocation tells: what the driver and this library keep for
/// reuse does not count as free.
fn check_total_memory(
    manager: &CrossBackendTransferManager,
    options: &LoadOptions,
    layout: &Layout,
) -> Result<()> {
    let place = options.place;
    let padding = padding(options) as u64;
    let requested = layout.bytes() as u64 + padding.saturating_mul(layout.segments.len() as u64);
    // Pinned memory for a device is the host's.
    let is_of_device =
        matches!(place.kind, MemoryKind::Device | MemoryKind::Unified) || place.device.is_cpu();
    match manager.backend(place.device)?.memory_info(place.device) {
        Ok(memory) if is_of_device && requested > memory.total => Err(too_large(manager, place, requested)),
        _ => Ok(()),
    }
}

fn too_large(manager: &CrossBackendTransferManager, place: Place, requested: u64) -> Error {
    let memory = manager.backend(place.device).and_then(|backend| backend.memory_info(place.device)).ok();
    let shortage = MemoryShortage {
        requested,
        free: memory.map(|memory| memory.free),
        total: memory.map(|memory| memory.total),
    };
    Error::out_of_memory(place, shortage)
}
