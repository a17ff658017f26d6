//! Addresses of buffers for driver calls, and which of them a stream can reach.

use std::os::raw::c_void;

use transload_core::{Error, ErrorKind, MemoryKind, Queue, RawBuffer, Result};
use transload_cuda_sys::{Context, cust::sys::CUmemorytype_enum};
use transload_memory::context_of;

use crate::{CudaStream, launch::reach::is_granted};

/// A buffer's address as passed to the driver.
#[derive(Clone, Copy)]
pub(crate) enum DriverAddress {
    Host(*mut c_void),
    /// Device or unified memory: the driver's own address.
    Device(u64),
}

impl DriverAddress {
    /// Fields of a 2D copy.
    pub(super) fn of_a_row(self) -> (CUmemorytype_enum, *mut c_void, u64) {
        match self {
            Self::Host(address) => (CUmemorytype_enum::CU_MEMORYTYPE_HOST, address, 0),
            Self::Device(address) => (CUmemorytype_enum::CU_MEMORYTYPE_DEVICE, std::ptr::null_mut(), address),
        }
    }
}

#[inline]
pub(crate) fn driver_address(buffer: &RawBuffer) -> Result<DriverAddress> {
    let address = match buffer.place().kind {
        MemoryKind::Device | MemoryKind::Unified => buffer.device_address().map(DriverAddress::Device),
        _ => buffer.host_address().map(|address| DriverAddress::Host(address.as_ptr().cast())),
    };
    address.ok_or_else(|| no_address(buffer))
}

#[cold]
fn no_address(buffer: &RawBuffer) -> Error {
    let text = format!("{} memory has no address for a CUDA stream", buffer.place());
    Error::new(ErrorKind::Unsupported, text)
}

#[inline]
pub(crate) fn reachable(stream: &CudaStream, src: &RawBuffer, dst: &RawBuffer) -> Result<()> {
    if stream.can_copy(src.place(), dst.place()) { Ok(()) } else { Err(unreachable(stream, src, dst)) }
}

#[cold]
pub(super) fn unreachable(stream: &CudaStream, src: &RawBuffer, dst: &RawBuffer) -> Error {
    let text = format!(
        "a stream of {} copies between its own and host memory, and lists to and from memory of a peer that grants access, not {} → {}",
        stream.device(),
        src.place(),
        dst.place()
    );
    Error::new(ErrorKind::Unsupported, text)
}

/// Returns device memory with its context, for a peer copy.
pub(super) fn peer(buffer: &RawBuffer) -> Result<(u64, &Context)> {
    buffer.device_address().zip(context_of(buffer)).ok_or_else(|| {
        let place = buffer.place();
        Error::new(
            ErrorKind::Unsupported,
            format!("a peer copy is between devices' own memory; {place} memory is not, or not ours"),
        )
    })
}

/// Returns whether a stream copies between its device and a peer whose memory it has access to.
#[cold]
pub(super) fn are_peers(stream: &CudaStream, src: &RawBuffer, dst: &RawBuffer) -> Result<bool> {
    let own = stream.device();
    let far = match (src.place(), dst.place()) {
        (from, to) if from.kind != MemoryKind::Device || to.kind != MemoryKind::Device => return Ok(false),
        (from, to) if from.device == own && to.device != own => dst,
        (from, to) if to.device == own && from.device != own => src,
        _ => return Ok(false),
    };
    is_granted(far, stream.own.context())
}

/// Returns the address by which the stream's device accesses the memory in place.
pub(super) fn in_place(buffer: &RawBuffer, stream: &CudaStream) -> Result<u64> {
    let place = buffer.place();
    let visible = match place.kind {
        MemoryKind::Device | MemoryKind::Unified if place.device == stream.device() => true,
        MemoryKind::Device => is_granted(buffer, stream.own.context())?,
        // Pinned memory has one if the driver assigned it.
        MemoryKind::Mapped | MemoryKind::Pinned => place.device.is_cpu(),
        MemoryKind::Unified | MemoryKind::Pageable => false,
    };
    buffer.device_address().filter(|_| visible).ok_or_else(|| {
        let device = stream.device();
        let text = format!(
            "{device} cannot use {place} memory in place; valid are mapped host memory, pinned host memory of this library, its own device and \
             unified memory, and device memory of peers with access enabled"
        );
        Error::new(ErrorKind::Unsupported, text)
    })
}
