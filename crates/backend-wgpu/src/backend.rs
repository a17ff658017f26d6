//! The wgpu backend.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use transload_core::{
    Backend, DeviceId, DeviceInfo, Error, ErrorKind, MemoryInfo, MemoryKind, OperationSampling,
    OperationSink, PathCost, Place, Queue, QueueLease, RawBuffer, ResourceCounts, Result, SharedBuffer,
    StagingHints, StreamPriority, WorkloadType, events::report,
};

use crate::{WgpuBackendConfig, api::ApiDevice, open::open_all};

/// The devices that wgpu finds. Usable from any thread.
pub struct WgpuBackend {
    pub(crate) devices: Vec<Arc<dyn ApiDevice>>,
}

impl WgpuBackend {
    /// Opens a device on each adapter of one API: of Vulkan if that has any that can be used, and otherwise of Metal, DX12 or OpenGL,
    /// whichever the platform has; see [`WgpuBackendConfig::with_apis`]. So no GPU is there twice. Takes some ten milliseconds. The order
    /// of the devices is the same in every process: discrete GPUs first, then by UUID, or by bus and name. An adapter that cannot be used
    /// is left out, and the reason is an event.
    ///
    /// With devices of a framework in the configuration, uses these only.
    ///
    /// # Errors
    /// [`ErrorKind::NoDriver`] without a Vulkan loader, if no other API is tried, and [`ErrorKind::NoDevice`] without an adapter that can
    /// be used: both say what to install. [`ErrorKind::InvalidArgument`] if [`with_apis`](WgpuBackendConfig::with_apis) names no API of the platform. For a device of a framework that cannot be used, [`ErrorKind::Unsupported`], [`ErrorKind::InvalidArgument`] or the
    /// driver's.
    pub fn open(config: &WgpuBackendConfig) -> Result<Arc<Self>> {
        open_all(config).map(|devices| Arc::new(Self { devices }))
    }

    pub(crate) fn device_of(&self, device: DeviceId) -> Result<&Arc<dyn ApiDevice>> {
        self.devices.iter().find(|one| one.info().id == device).ok_or_else(|| {
            let valid: Vec<_> = self.devices.iter().map(|one| one.info().id.to_string()).collect();
            let text = format!("the wgpu backend has no device {device}; valid are {}", valid.join(", "));
            Error::new(ErrorKind::UnknownDevice, text)
        })
    }

    fn lease(
        &self,
        device: DeviceId,
        queue: impl FnOnce(Arc<dyn ApiDevice>) -> Result<Arc<dyn Queue>>,
    ) -> Result<QueueLease> {
        let device = self.device_of(device)?;
        let queue = queue(Arc::clone(device))?;
        device.leases().fetch_add(1, Ordering::Relaxed);
        Ok(QueueLease::new(queue))
    }
}

impl Backend for WgpuBackend {
    fn name(&self) -> &'static str {
        "wgpu"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.devices.iter().map(|device| device.info().clone()).collect()
    }

    /// Allocates memory, whose content is undefined. On Vulkan up to 16 MiB are a part of a block that others share, since drivers allow
    /// some thousand allocations; more is one of the driver.
    fn allocate(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        self.device_of(device)?.allocate(kind, bytes)
    }

    /// Returns the driver's budget for this process; [`ErrorKind::Unsupported`] if it has none.
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.device_of(device)?.memory_info()
    }

    /// Leases wgpu's queue. For copies of high priority, while it has work, another one that only copies, if the Vulkan device has one, and
    /// no framework's buffer is adopted: a copy there that comes after work of wgpu's has its submitting thread wait for that.
    fn lease_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        workload: WorkloadType,
    ) -> Result<QueueLease> {
        match (priority, workload) {
            (StreamPriority::High, WorkloadType::Memory) => {
                self.lease(device, |device| device.urgent_queue())
            }
            _ => self.lease(device, |device| device.queue(priority)),
        }
    }

    /// On a Vulkan device that is not foreign, leases a queue that only copies, the next one each time, which copies beside shaders; of other
    /// devices, while a framework's buffer is adopted, and for computing, which lists of short pieces are copied by, wgpu's.
    fn lease_reserved_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        workload: WorkloadType,
    ) -> Result<QueueLease> {
        match workload {
            WorkloadType::Compute => self.lease_queue(device, priority, workload),
            _ => self.lease(device, |device| device.reserved_queue(priority)),
        }
    }

    fn staging_hints(&self, device: DeviceId) -> StagingHints {
        self.device_of(device).map(|device| device.staging_hints()).unwrap_or_default()
    }

    fn copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        self.devices.iter().find(|device| device.can_copy(src, dst)).map(|device| device.info().id)
    }

    fn checks_copies(&self, place: Place) -> bool {
        place.kind == MemoryKind::Device
            && self.device_of(place.device).is_ok_and(|device| device.checks_copies())
    }

    fn check_copy(&self, src: Option<&RawBuffer>, dst: Option<&RawBuffer>) -> Result<()> {
        self.devices.iter().try_for_each(|device| device.check_copy(src, dst))
    }

    /// Returns the host for a device whose memory is the host's: its threads copy.
    fn in_place_copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        self.devices.iter().any(|device| device.is_mapped_between(src, dst)).then_some(DeviceId::Cpu)
    }

    fn default_costs(&self) -> Vec<PathCost> {
        self.devices.iter().flat_map(|device| device.default_costs()).collect()
    }

    fn resource_counts(&self) -> ResourceCounts {
        let mut counts = ResourceCounts::default();
        self.devices.iter().for_each(|device| device.add_to(&mut counts));
        counts
    }

    fn device_bytes(&self, device: DeviceId) -> Option<u64> {
        self.device_of(device).ok()?.device_bytes()
    }

    /// [`ErrorKind::Unsupported`] if no device has timestamps that do not wrap around, which are used on Vulkan only.
    fn attach_sink(&self, sink: &Arc<dyn OperationSink>, sampling: OperationSampling) -> Result<()> {
        let slots: Vec<_> = self.devices.iter().filter_map(|device| device.sink().ok()).collect();
        if let (true, Some(device)) = (slots.is_empty(), self.devices.first()) {
            return device.sink().map(drop);
        }
        for (index, slot) in slots.iter().enumerate() {
            slot.attach(Arc::clone(sink), sampling).inspect_err(|_| {
                // The others may have this sink since before.
                slots.iter().take(index).for_each(|slot| slot.detach(sink));
            })?;
        }
        Ok(())
    }

    fn unprofiled_devices(&self) -> Vec<(DeviceId, Error)> {
        let of = |device: &Arc<dyn ApiDevice>| Some((device.info().id, device.sink().err()?));
        self.devices.iter().filter_map(of).collect()
    }

    /// Returns memory of the device itself in place, and what `CudaInterop` allocated, from CUDA to wgpu and back; [`ErrorKind::Unsupported`] for other
    /// memory.
    fn share(&self, buffer: &RawBuffer, device: DeviceId) -> Result<SharedBuffer> {
        if buffer.place().device == device && self.device_of(device).is_ok() {
            return Ok(SharedBuffer::in_place(buffer));
        }
        if let Some(original) = buffer.alias_of().filter(|of| of.place().device == device) {
            return Ok(SharedBuffer::in_place(&original));
        }
        let mut here = self.devices.iter().filter(|one| one.info().id == device);
        match here.find_map(|one| one.alias(buffer)) {
            Some(alias) => Ok(SharedBuffer { buffer: alias?, copied: false, arrival: None }),
            None => {
                let text = format!("{} memory is not shared with {device}; copy it there", buffer.place());
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }

    fn detach_sink(&self, sink: &Arc<dyn OperationSink>) {
        self.devices.iter().filter_map(|device| device.sink().ok()).for_each(|slot| slot.detach(sink));
    }

    fn drain(&self) -> Result<()> {
        let mut outcome = Ok(());
        // All, also after an error.
        for device in &self.devices {
            outcome = outcome.and(device.drain());
        }
        report::emit_deferred();
        outcome
    }
}

impl fmt::Debug for WgpuBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgpuBackend")
            .field("devices", &self.devices.iter().map(|device| device.info().id).collect::<Vec<_>>())
            .field("counts", &self.resource_counts())
            .finish_non_exhaustive()
    }
}
