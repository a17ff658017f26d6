//! Memory of one place made usable by a device: as it is where the hardware allows, else as a copy.

use transload_core::{
    Backend, DeviceId, Error, ErrorKind, MemoryKind, Operation, RawBuffer, Result, SharedBuffer,
    StreamPriority, Timing, WorkloadType, submit,
};
use transload_memory::CudaFeature;

use crate::CudaBackend;

/// The buffer itself where `device` can use it in place, else a copy under way, with its fence.
///
/// # Errors
/// `UnknownDevice`; `Unsupported` where neither is possible: memory of another device goes by peer copy or through the host.
pub(crate) fn share(backend: &CudaBackend, buffer: &RawBuffer, device: DeviceId) -> Result<SharedBuffer> {
    let place = buffer.place();
    if place.device == device || in_place(backend, buffer, device)? {
        return Ok(SharedBuffer::in_place(buffer));
    }
    let (kind, lane) = match (place.device, device) {
        (DeviceId::Cpu, device) => (MemoryKind::Device, device),
        // The host's side of a copy from a device is best pinned.
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

/// Whether the device, or the host, can use memory of another place as it is.
fn in_place(backend: &CudaBackend, buffer: &RawBuffer, device: DeviceId) -> Result<bool> {
    let place = buffer.place();
    if device.is_cpu() {
        // The memory of a device that this backend does not have is not for it to tell.
        backend.state(place.device)?;
        return Ok(buffer.host_address().is_some());
    }
    let state = backend.state(device)?;
    match place.kind {
        MemoryKind::Mapped => Ok(place.device.is_cpu() && buffer.device_address().is_some()),
        // Managed memory of one device is every device's that faults its pages in.
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
