//! Host memory that bytes pass through on their way to or from a device.

use transload_core::{DeviceId, ErrorKind, MemoryKind, RawBuffer, Result, events::report};
use transload_transfer::CrossBackendTransferManager;

/// Allocates a staging buffer of a kind of host memory. Pinned and mapped memory is that of the device that copies it.
pub(crate) fn allocate(
    manager: &CrossBackendTransferManager,
    device: DeviceId,
    kind: MemoryKind,
    bytes: usize,
) -> Result<RawBuffer> {
    match kind {
        MemoryKind::Pinned | MemoryKind::Mapped if !device.is_cpu() => {
            manager.allocate_for(device, kind, bytes)
        }
        _ => manager.allocate(DeviceId::Cpu, kind, bytes),
    }
}

/// Calls `allocate` with the kind of memory that suits a device: pinned if it offers that and there is some, else pageable.
pub(crate) fn pinned_or_pageable<T>(
    manager: &CrossBackendTransferManager,
    device: DeviceId,
    allocate: impl Fn(MemoryKind) -> Result<T>,
) -> Result<T> {
    let devices = manager.devices();
    if devices.iter().any(|info| info.id == device && info.kinds.contains(&MemoryKind::Pinned)) {
        match allocate(MemoryKind::Pinned) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                report::pages_declined("pinned staging memory", None, &error);
            }
            outcome => return outcome,
        }
    }
    allocate(MemoryKind::Pageable)
}
