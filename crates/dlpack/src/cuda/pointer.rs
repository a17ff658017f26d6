//! Checks tensors of CUDA memory against what the driver knows of their pointers.

use std::any::Any;

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, Place, Result};
use transload_cuda_sys::{Context, RelaxedCapture, check, ffi};
use transload_memory::{CudaDevice, CudaFeature, InContext, lift};

use crate::{
    DLDevice, DLDeviceType, Importer, device::DeviceName, import::host_location, imported_storage::Location,
};

/// The driver's attributes of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PointerInfo {
    is_host: bool,
    is_managed: bool,
    ordinal: u64,
}

impl Importer {
    /// Also accepts memory of this device. Creates its context at the first such tensor.
    #[must_use]
    pub fn with_device(mut self, device: &CudaDevice) -> Self {
        self.devices.push(device.clone());
        self
    }

    /// Returns whether the driver knows the host memory as pinned.
    pub(crate) fn is_pinned(&self, address: usize, bytes: usize) -> Result<bool> {
        let Some(device) = self.devices.first().filter(|_| bytes > 0) else { return Ok(false) };
        let known = range_info(device.context()?, address, bytes)?;
        Ok(known.is_some_and(|known| known.is_host))
    }

    pub(crate) fn locate_cuda(&self, device: DLDevice, address: usize, bytes: usize) -> Result<Location> {
        let of_host = device.device_type == DLDeviceType::CUDAHOST;
        let of_device = device.device_type == DLDeviceType::CUDA;
        // Pinned memory belongs to all devices; the driver knows the device of managed memory.
        let named = self.devices.iter().find(|own| i32::try_from(own.ordinal()) == Ok(device.device_id));
        let exists = if of_host { device.device_id == 0 } else { named.is_some() || !of_device };
        let Some(asked) = named.or(self.devices.first()).filter(|_| exists) else {
            return Err(self.unknown(device));
        };
        if bytes == 0 {
            return location_of(device, asked, address);
        }
        let Some(known) = range_info(asked.context()?, address, bytes)? else {
            return Err(contradiction(device, address, bytes, "not all of them are one kind of memory"));
        };
        let own = self.devices.iter().find(|own| u64::from(own.ordinal()) == known.ordinal);
        match device.device_type {
            DLDeviceType::CUDAHOST if known.is_host => location_of(device, asked, address),
            DLDeviceType::CUDAHOST => Err(contradiction(device, address, bytes, "they are device memory")),
            _ if known.is_host => Err(contradiction(device, address, bytes, "they are host memory")),
            DLDeviceType::CUDAMANAGED if !known.is_managed => {
                Err(contradiction(device, address, bytes, "they are not managed memory"))
            }
            DLDeviceType::CUDAMANAGED => match own {
                Some(own) => location_of(device, own, address),
                None => {
                    let ordinal = i32::try_from(known.ordinal).unwrap_or(i32::MAX);
                    Err(self.unknown(DLDevice::cuda(ordinal)))
                }
            },
            _ if known.ordinal != u64::from(asked.ordinal()) => {
                let text = format!("they are memory of device {}", known.ordinal);
                Err(contradiction(device, address, bytes, &text))
            }
            _ => location_of(device, asked, address),
        }
    }
}

fn location_of(device: DLDevice, own: &CudaDevice, address: usize) -> Result<Location> {
    let id = DeviceId::Cuda(own.ordinal());
    let there = Some(address as u64);
    Ok(match device.device_type {
        DLDeviceType::CUDAHOST => host_location(MemoryKind::Pinned, address),
        DLDeviceType::CUDAMANAGED => {
            let beside = own.supports_feature(CudaFeature::ConcurrentManagedAccess)?;
            let host = host_location(MemoryKind::Unified, address).host.filter(|_| beside);
            Location { place: Place::new(id, MemoryKind::Unified), host, device: there, backend_data: None }
        }
        _ => {
            let known: Box<dyn Any + Send + Sync> = Box::new(InContext::new(own.context()?));
            let place = Place::new(id, MemoryKind::Device);
            Location { place, host: None, device: there, backend_data: Some(known) }
        }
    })
}

fn contradiction(device: DLDevice, address: usize, bytes: usize, truth: &str) -> Error {
    let text = format!(
        "the tensor declares {bytes} bytes at {address:#x} as {}, but according to the driver {truth}",
        DeviceName(device)
    );
    Error::new(ErrorKind::InvalidArgument, text)
}

/// Returns the attributes of a range, as those of its first and last byte: a tensor may span several mappings. `None`
/// if the driver does not know them or they differ.
fn range_info(context: &Context, address: usize, bytes: usize) -> Result<Option<PointerInfo>> {
    let first = query(context, address as u64)?;
    let last = query(context, (address + (bytes - 1)) as u64)?;
    Ok(first.filter(|first| Some(*first) == last))
}

fn query(context: &Context, address: u64) -> Result<Option<PointerInfo>> {
    /// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`; 1 is host memory.
    const MEMORY_TYPE: u32 = 2;
    /// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
    const IS_MANAGED: u32 = 8;
    /// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
    const DEVICE_ORDINAL: u32 = 9;

    let Some(kind) = attribute(context, MEMORY_TYPE, address)? else { return Ok(None) };
    let Some(managed) = attribute(context, IS_MANAGED, address)? else { return Ok(None) };
    let Some(ordinal) = attribute(context, DEVICE_ORDINAL, address)? else { return Ok(None) };
    // Managed memory counts as device memory, wherever it is resident.
    let is_managed = managed & 1 == 1;
    Ok(Some(PointerInfo { is_host: kind == 1 && !is_managed, is_managed, ordinal }))
}

/// Returns `None` for an address that the driver does not know.
fn attribute(context: &Context, which: u32, address: u64) -> Result<Option<u64>> {
    const INVALID_VALUE: u32 = 1;
    let _bound = context.enter().map_err(lift)?;
    let _capture = RelaxedCapture::enter().map_err(lift)?;
    let mut value = 0_u64;
    // SAFETY: the attributes are numbers of at most 8 bytes; any address may be queried.
    match unsafe { ffi::cuPointerGetAttribute((&raw mut value).cast(), which, address) } {
        INVALID_VALUE => Ok(None),
        code => check("cuPointerGetAttribute", code).map(|()| Some(value & 0xFFFF_FFFF)).map_err(lift),
    }
}
