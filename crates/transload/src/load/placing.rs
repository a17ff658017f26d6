//! Memory for all tensors: one allocation where it can be had, else several of bounded size.

use transload_core::{Error, ErrorKind, MemoryShortage, Place, RawBuffer, Result};
use transload_transfer::CrossBackendTransferManager;

use super::{
    header::Header,
    layout::{Layout, Spot},
    options::LoadOptions,
};

/// A layout, and the memory behind it.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) layout: Layout,
    /// One for each of the layout's segments, aligned and of its length.
    pub(super) segments: Vec<RawBuffer>,
}

impl Placed {
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] with what is needed and what there is, before anything is allocated where the device
    /// tells; the backend's. On an error nothing is kept.
    pub(super) fn allocate(
        manager: &CrossBackendTransferManager,
        header: &Header,
        options: &LoadOptions,
    ) -> Result<Self> {
        let layout = |most| Layout::new(&header.tensors, options.wanted_alignment(), most);
        let Some(whole) = layout(usize::MAX) else {
            return Err(too_large(manager, options.place, header.bytes));
        };
        fits(manager, options, &whole)?;
        let refused = match segments(manager, options, &whole) {
            Ok(segments) => return Ok(Self { layout: whole, segments }),
            Err(error) => error,
        };
        // There is enough memory, but not in one piece.
        let most = options.segment;
        match layout(most).filter(|cut| cut.segments.len() > 1) {
            Some(cut) if refused.kind() == ErrorKind::OutOfMemory => {
                fits(manager, options, &cut)?;
                Ok(Self { segments: segments(manager, options, &cut)?, layout: cut })
            }
            _ => Err(refused),
        }
    }

    /// The memory of one tensor.
    pub(super) fn tensor(&self, spot: Spot) -> Result<RawBuffer> {
        self.segment(spot.segment)?.slice(spot.offset..spot.offset + spot.bytes)
    }

    pub(super) fn segment(&self, index: usize) -> Result<&RawBuffer> {
        let missing = || Error::new(ErrorKind::OutOfRange, format!("there is no segment {index}"));
        self.segments.get(index).ok_or_else(missing)
    }
}

fn segments(
    manager: &CrossBackendTransferManager,
    options: &LoadOptions,
    layout: &Layout,
) -> Result<Vec<RawBuffer>> {
    layout.segments.iter().map(|bytes| segment(manager, options, *bytes)).collect()
}

/// `bytes` at an aligned address.
fn segment(manager: &CrossBackendTransferManager, options: &LoadOptions, bytes: usize) -> Result<RawBuffer> {
    let Place { device, kind } = options.place;
    let alignment = options.wanted_alignment();
    if alignment <= options.given_alignment() {
        let buffer = manager.allocate(device, kind, bytes)?;
        if shift(&buffer, alignment) == 0 {
            return Ok(buffer);
        }
    }
    let most = bytes.checked_add(alignment).ok_or_else(|| too_large(manager, options.place, bytes as u64))?;
    let buffer = manager.allocate(device, kind, most)?;
    let from = shift(&buffer, alignment);
    buffer.slice(from..from + bytes)
}

/// Bytes to the next aligned address; always less than the alignment.
fn shift(buffer: &RawBuffer, alignment: usize) -> usize {
    let host = || buffer.host_address().map(|address| address.as_ptr().addr() as u64);
    let over = buffer.device_address().or_else(host).unwrap_or(0) % alignment as u64;
    if over == 0 { 0 } else { alignment - over as usize }
}

/// Refuses what the device has no room for before anything is allocated. Where the free memory is not known, the
/// allocation tells.
fn fits(manager: &CrossBackendTransferManager, options: &LoadOptions, layout: &Layout) -> Result<()> {
    let place = options.place;
    let slack =
        if options.wanted_alignment() > options.given_alignment() { options.wanted_alignment() } else { 0 };
    let requested = layout.bytes() as u64 + (slack as u64).saturating_mul(layout.segments.len() as u64);
    match manager.backend(place.device)?.memory_info(place.device) {
        Ok(memory) if requested > memory.free => Err(too_large(manager, place, requested)),
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
