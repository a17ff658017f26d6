//! The wgpu backend.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use transload_core::{
    Backend, DeviceId, DeviceInfo, Error, ErrorKind, MemoryInfo, MemoryKind, OperationSampling,
    OperationSink, PathCost, Place, QueueLease, RawBuffer, ResourceCounts, Result, StreamPriority,
    WorkloadType, events::report,
};

use crate::{WgpuBackendConfig, costs, device::DeviceState, queue::WgpuQueue, vulkan::open_all};

/// The Vulkan devices that wgpu finds. Usable from any thread.
pub struct WgpuBackend {
    states: Vec<Arc<DeviceState>>,
}

impl WgpuBackend {
    /// Loads Vulkan, and opens a device on each adapter. Takes some ten milliseconds. The order of the devices is the same in every
    /// process: discrete GPUs first, then by UUID. An adapter that cannot be used is left out, and the reason is an event.
    ///
    /// With devices of a framework in the configuration, uses these only.
    ///
    /// # Errors
    /// [`ErrorKind::NoDriver`] without a Vulkan loader, and [`ErrorKind::NoDevice`] without an adapter that can be used: both say what
    /// to install. For a device of a framework that cannot be used, [`ErrorKind::Unsupported`], [`ErrorKind::InvalidArgument`] or the
    /// driver's.
    pub fn open(config: &WgpuBackendConfig) -> Result<Arc<Self>> {
        open_all(config).map(|states| Arc::new(Self { states }))
    }

    #[cfg(test)]
    pub(crate) fn states(&self) -> &[Arc<DeviceState>] {
        &self.states
    }

    pub(crate) fn state(&self, device: DeviceId) -> Result<&Arc<DeviceState>> {
        self.states.iter().find(|state| state.id() == device).ok_or_else(|| {
            let valid: Vec<_> = self.states.iter().map(|state| state.id().to_string()).collect();
            let text = format!("the wgpu backend has no device {device}; valid are {}", valid.join(", "));
            Error::new(ErrorKind::UnknownDevice, text)
        })
    }
}

impl Backend for WgpuBackend {
    fn name(&self) -> &'static str {
        "wgpu"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.states.iter().map(|state| state.info.clone()).collect()
    }

    /// Allocates memory, whose content is undefined. Each allocation is one of the driver, of which most allow some thousand.
    fn allocate(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        self.state(device)?.allocate(kind, bytes)
    }

    /// Returns the driver's budget for this process; [`ErrorKind::Unsupported`] if it has none.
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.state(device)?.queue.vulkan.memory_info()
    }

    /// Leases the device's only queue: priorities have no effect.
    fn lease_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        _workload: WorkloadType,
    ) -> Result<QueueLease> {
        let state = self.state(device)?;
        state.queue.check_usable()?;
        state.leases.fetch_add(1, Ordering::Relaxed);
        Ok(QueueLease::new(Arc::new(WgpuQueue::new(state, priority))))
    }

    fn copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        self.states.iter().find(|state| state.can_copy(src, dst)).map(|state| state.id())
    }

    /// Returns the host for a device whose memory is the host's: its threads copy.
    fn in_place_copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        let is_mapped = |state: &Arc<DeviceState>| state.is_mapped_between(src, dst);
        self.states.iter().any(is_mapped).then_some(DeviceId::Cpu)
    }

    fn default_costs(&self) -> Vec<PathCost> {
        self.states.iter().flat_map(|state| costs::of(state)).collect()
    }

    fn resource_counts(&self) -> ResourceCounts {
        let mut counts = ResourceCounts::default();
        self.states.iter().for_each(|state| state.add_to(&mut counts));
        counts
    }

    /// [`ErrorKind::Unsupported`] if a device's timestamps wrap around.
    fn attach_sink(&self, sink: &Arc<dyn OperationSink>, sampling: OperationSampling) -> Result<()> {
        if let Some(state) = self.states.iter().find(|state| !state.queue.has_timestamps()) {
            return Err(state.queue.no_timestamps());
        }
        for (index, state) in self.states.iter().enumerate() {
            state.sink.attach(Arc::clone(sink), sampling).inspect_err(|_| {
                // The others may have this sink since before.
                self.states.iter().take(index).for_each(|state| state.sink.detach(sink));
            })?;
        }
        Ok(())
    }

    fn detach_sink(&self, sink: &Arc<dyn OperationSink>) {
        self.states.iter().for_each(|state| state.sink.detach(sink));
    }

    fn drain(&self) -> Result<()> {
        let mut outcome = Ok(());
        // All, also after an error.
        for state in &self.states {
            outcome = outcome.and(state.drain());
        }
        report::emit_deferred();
        outcome
    }
}

impl fmt::Debug for WgpuBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgpuBackend")
            .field("devices", &self.states.iter().map(|state| state.id()).collect::<Vec<_>>())
            .field("counts", &self.resource_counts())
            .finish_non_exhaustive()
    }
}
