//! Shares memory with a device: in place if the hardware allows it, else as a copy.

use transload_core::{
    Backend, DeviceId, Error, ErrorKind, MemoryKind, Operation, RawBuffer, Result, SharedBuffer,
    StreamPriority, Timing, WorkloadType, submit,
};
use transload_memory::CudaFeature;

use crate::CudaBackend;

/// Returns the buffer itself if `device` can use it in place, else a copy in flight, with its fence.
///
/// # Errors
/// `UnknownDevice`; `Unsupported` if neither is possible: memory of another device needs a peer copy or staging.
pub(crate) fn share(backend: &CudaBackend, buffer: &RawBuffer, device: DeviceId) -> Result<SharedBuffer> {
    let place = buffer.place();
    if !device.is_cpu() && !matches!(device, DeviceId::Cuda(_)) {
        let text = format!("{device} is a device of another backend; transfer {place} memory there instead");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    if place.device == device || in_place(backend, buffer, device)? {
        return Ok(SharedBuffer::in_place(buffer));
    }
    let (kind, lane) = match (place.device, device) {
        (DeviceId::Cpu, device) => (MemoryKind::Device, device),
        // Copies from a device are fastest into pinned memory.
        (device, DeviceId::Cpu) => (MemoryKind::Pinned, device),
        _ => {
            let text = format!(
                "{device} cannot use {place} memory in place, and no single queue copies it there; transfer it instead"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
    };
    let copy = backend.allocate(lane, kind, buffer.len())?;
    let queue = backend.lease_queue(lane, StreamPriority::Normal, WorkloadType::Memory)?;
    let arrival = submit(&*queue, &Operation::Copy { src: buffer, dst: &copy }, Timing::Off)?;
    let arrival = (!transload_core::mutant!("backend-cuda/share-drops-fence")).then_some(arrival);
    Ok(SharedBuffer { buffer: copy, copied: true, arrival })
}

/// Returns whether `device`, which may be the host, can use the buffer in place.
fn in_place(backend: &CudaBackend, buffer: &RawBuffer, device: DeviceId) -> Result<bool> {
    let place = buffer.place();
    if device.is_cpu() {
        // Fails for a device of another backend.
        backend.state(place.device)?;
        return Ok(buffer.host_address().is_some());
    }
    let state = backend.state(device)?;
    match place.kind {
        MemoryKind::Mapped => Ok(place.device.is_cpu() && buffer.device_address().is_some()),
        // Devices that fault pages in can access each other's managed memory.
        MemoryKind::Unified => {
            let concurrent = |device: &transload_memory::CudaDevice| {
                device.supports_feature(CudaFeature::ConcurrentManagedAccess)
            };
            match backend.state(place.device) {
                Ok(home) => Ok(concurrent(&home.device)? && concurrent(&state.device)?),
                Err(_) => Ok(false),
            }
        }
        _ => Ok(false),
    }
}
