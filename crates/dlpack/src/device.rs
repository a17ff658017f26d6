//! DLPack devices of buffers.

use std::{ffi::c_void, fmt};

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, Place, RawBuffer, Result};

use crate::{DLDevice, DLDeviceType};

/// Pinned host memory.
pub(crate) const CUDA_HOST: DLDevice = DLDevice { device_type: DLDeviceType::CUDAHOST, device_id: 0 };
/// Managed memory of any device.
pub(crate) const CUDA_MANAGED: DLDevice = DLDevice { device_type: DLDeviceType::CUDAMANAGED, device_id: 0 };

/// Displays a device as DLPack's documentation names it.
pub(crate) struct DeviceName(pub(crate) DLDevice);

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.0.device_id;
        match self.0.device_type {
            DLDeviceType::CPU => write!(f, "kDLCPU {id}"),
            DLDeviceType::CUDA => write!(f, "kDLCUDA {id}"),
            DLDeviceType::CUDAHOST => write!(f, "kDLCUDAHost {id}"),
            DLDeviceType::CUDAMANAGED => write!(f, "kDLCUDAManaged {id}"),
            DLDeviceType(other) => write!(f, "device type {other}, id {id}"),
        }
    }
}

/// Returns whether consumers access the memory from the host, where a stream cannot make them wait.
pub(crate) fn is_host_device(device: DLDevice) -> bool {
    matches!(device.device_type, DLDeviceType::CPU | DLDeviceType::CUDAHOST)
}

/// Returns the DLPack devices that a buffer can be exported as, its own first.
fn device_names(buffer: &RawBuffer) -> Vec<DLDevice> {
    let Place { device, kind } = buffer.place();
    match (device, kind) {
        (DeviceId::Cpu, MemoryKind::Pageable) => vec![DLDevice::CPU],
        // CUDA does not know what a device of another family pinned.
        (DeviceId::Cpu, MemoryKind::Pinned | MemoryKind::Mapped) if buffer.maker().is_some() => {
            vec![DLDevice::CPU]
        }
        (DeviceId::Cpu, MemoryKind::Pinned | MemoryKind::Mapped) => vec![CUDA_HOST, DLDevice::CPU],
        (DeviceId::Cuda(ordinal), kind) => {
            let Ok(ordinal) = i32::try_from(ordinal) else { return Vec::new() };
            match kind {
                MemoryKind::Device => vec![DLDevice::cuda(ordinal)],
                MemoryKind::Unified if buffer.host_address().is_some() => {
                    vec![CUDA_MANAGED, DLDevice::cuda(ordinal), DLDevice::CPU]
                }
                MemoryKind::Unified => vec![CUDA_MANAGED, DLDevice::cuda(ordinal)],
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

/// Returns the device of an export and the buffer's address there.
pub(crate) fn export_device(buffer: &RawBuffer, asked: Option<DLDevice>) -> Result<(DLDevice, *mut c_void)> {
    let names = device_names(buffer);
    let place = buffer.place();
    let Some(proper) = names.first() else {
        let text = format!("DLPack has no device type for {place} memory");
        return Err(Error::new(ErrorKind::Unsupported, text));
    };
    let device = asked.unwrap_or(*proper);
    if !names.contains(&device) {
        let valid: Vec<String> = names.iter().map(|name| DeviceName(*name).to_string()).collect();
        let text = format!(
            "{place} memory cannot be exported as {} without a copy; valid: {}",
            DeviceName(device),
            valid.join(", ")
        );
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let address = if is_host_device(device) {
        buffer.host_address().map(|address| address.as_ptr().cast())
    } else {
        let address = buffer.device_address().and_then(|address| usize::try_from(address).ok());
        address.map(std::ptr::with_exposed_provenance_mut)
    };
    let none = || Error::new(ErrorKind::Unsupported, format!("this {place} memory has no address to export"));
    Ok((device, address.ok_or_else(none)?))
}
