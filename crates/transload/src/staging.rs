//! Which host memory bytes pass through on their way to or from a device.

use transload_core::{DeviceId, MemoryKind};
#[cfg(feature = "safetensors")]
use transload_core::{ErrorKind, Result, events::report};
use transload_transfer::CrossBackendTransferManager;

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
