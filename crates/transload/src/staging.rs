//! Host memory that bytes pass through on their way to or from a device.

use transload_core::{DeviceId, MemoryKind, RawBuffer, Result};
#[cfg(feature = "safetensors")]
use transload_core::{ErrorKind, events::report};
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

/// Returns the kind of staging memory that suits a device: pinned if it offers that, else pageable.
pub(crate) fn kind_for(manager: &CrossBackendTransferManager, device: DeviceId) -> MemoryKind {
    let devices = manager.devices();
    let pins = devices.iter().any(|info| info.id == device && info.kinds.contains(&MemoryKind::Pinned));
    if pins { MemoryKind::Pinned } else { MemoryKind::Pageable }
}

/// Calls `allocate` with the kind of memory that suits a device, or if there is too little of it with pageable.
#[cfg(feature = "safetensors")]
pub(crate) fn pinned_or_pageable<T>(
    manager: &CrossBackendTransferManager,
    device: DeviceId,
    allocate: impl Fn(MemoryKind) -> Result<T>,
) -> Result<T> {
    match allocate(kind_for(manager, device)) {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => {
            report::pages_declined("pinned staging memory", None, &error);
            allocate(MemoryKind::Pageable)
        }
        outcome => outcome,
    }
}
