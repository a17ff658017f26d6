//! Checks tensors of CUDA memory against what the driver knows of their pointers.

use std::any::Any;

use transload_core::{Error, ErrorKind, MemoryKind, Place, Result};
use transload_memory::{CudaDevice, CudaFeature, InContext, pointer_attributes};

use transload_executor::ExternalMemory;

use crate::{DLDevice, DLDeviceType, Importer, device::DeviceName, import::host_memory};

impl Importer {
    /// Also accepts memory of this device. Creates its context at the first such tensor, but not for memory of the host.
    #[must_use]
    pub fn with_device(mut self, device: &CudaDevice) -> Self {
        self.devices.push(device.clone());
        self
    }

    /// Returns an owner of a tensor, which deletes one of memory that the driver knows with a context current.
    pub(crate) fn bound(&self, place: Place, tensor: impl Any + Send) -> Box<dyn Any + Send> {
        let pinned = place.kind == MemoryKind::Pinned;
        match self.devices.iter().find(|own| pinned || own.id() == place.device) {
            Some(device) => Box::new(device.bound(tensor)),
            None => Box::new(tensor),
        }
    }

    /// Returns whether the driver knows the host memory as pinned. Only a hint: a device that fails, or has no context, is not asked.
    pub(crate) fn is_pinned(&self, address: usize, bytes: usize) -> bool {
        let mut usable = self.devices.iter().filter(|own| bytes > 0 && own.has_context());
        let known = usable.find_map(|own| pointer_attributes(own, address as u64, bytes).ok());
        known.flatten().is_some_and(|known| known.is_host)
    }

    pub(crate) fn locate_cuda(
        &self,
        device: DLDevice,
        address: usize,
        bytes: usize,
    ) -> Result<ExternalMemory> {
        let of_host = device.device_type == DLDeviceType::CUDAHOST;
        let of_device = device.device_type == DLDeviceType::CUDA;
        // Pinned memory belongs to all devices; the driver knows the device of managed memory.
        let named = self.devices.iter().find(|own| i32::try_from(own.ordinal()) == Ok(device.device_id));
        let exists = if of_host { device.device_id == 0 } else { named.is_some() || !of_device };
        let Some(asked) = named.or(self.devices.first()).filter(|_| exists) else {
            return Err(self.unknown(device));
        };
        if bytes == 0 {
            return memory_of(device, asked, address, bytes);
        }
        let Some(known) = pointer_attributes(asked, address as u64, bytes)? else {
            return Err(contradiction(device, address, bytes, "not all of them are one kind of memory"));
        };
        let own = self.devices.iter().find(|own| own.ordinal() == known.ordinal);
        match device.device_type {
            DLDeviceType::CUDAHOST if known.is_host => memory_of(device, asked, address, bytes),
            DLDeviceType::CUDAHOST => Err(contradiction(device, address, bytes, "they are device memory")),
            _ if known.is_host => Err(contradiction(device, address, bytes, "they are host memory")),
            DLDeviceType::CUDAMANAGED if !known.is_managed => {
                Err(contradiction(device, address, bytes, "they are not managed memory"))
            }
            DLDeviceType::CUDAMANAGED => match own {
                Some(own) => memory_of(device, own, address, bytes),
                None => {
                    let ordinal = i32::try_from(known.ordinal).unwrap_or(i32::MAX);
                    Err(self.unknown(DLDevice::cuda(ordinal)))
                }
            },
            _ if known.ordinal != asked.ordinal() => {
                let text = format!("they are memory of device {}", known.ordinal);
                Err(contradiction(device, address, bytes, &text))
            }
            _ => memory_of(device, asked, address, bytes),
        }
    }
}

fn memory_of(device: DLDevice, own: &CudaDevice, address: usize, bytes: usize) -> Result<ExternalMemory> {
    let there = Some(address as u64);
    Ok(match device.device_type {
        DLDeviceType::CUDAHOST => host_memory(MemoryKind::Pinned, address, bytes),
        DLDeviceType::CUDAMANAGED => {
            let concurrent = own.supports_feature(CudaFeature::ConcurrentManagedAccess)?;
            let host = host_memory(MemoryKind::Unified, address, bytes);
            ExternalMemory {
                place: Place::new(own.id(), MemoryKind::Unified),
                host_address: host.host_address.filter(|_| concurrent),
                device_address: there,
                ..host
            }
        }
        _ => {
            let known: Box<dyn Any + Send + Sync> = Box::new(InContext::new(own.context()?));
            let place = Place::new(own.id(), MemoryKind::Device);
            let (host_address, backend_data) = (None, Some(known));
            ExternalMemory { place, bytes, host_address, device_address: there, writable: true, backend_data }
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
