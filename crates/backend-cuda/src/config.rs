//! Settings of a CUDA backend.

use transload_core::Result;
use transload_memory::CudaDevice;
use transload_streams::{AdvancedStreamPool, AllocationStrategy};

/// Settings of a [`CudaBackend`](crate::CudaBackend).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaBackendConfig {
    /// Ordinals of the devices to use; `None` means every visible device.
    pub devices: Option<Vec<u32>>,
    /// The most streams per device and priority, 1 to 64; `None` means as many as suit the device (see
    /// [`PoolBuilder`](transload_streams::PoolBuilder)). Streams are created on demand.
    pub streams_per_priority: Option<usize>,
    /// How a stream is chosen. By default each workload has its own streams, so that copies do not queue after kernels.
    pub strategy: AllocationStrategy,
    /// The most bytes of pageable host memory that each device keeps registered for [`Backend::register`]; `None` means
    /// 8 GiB.
    ///
    /// [`Backend::register`]: transload_core::Backend::register
    pub registration_limit: Option<u64>,
    /// The most bytes of host memory that all devices together have pinned: pinned and mapped buffers, also those that are only
    /// kept for reuse, staging buffers and registrations. `None` means no limit.
    pub pinned_limit: Option<u64>,
    /// Whether streams wait for copies within the host on the device; see [`with_device_waits`](Self::with_device_waits).
    pub device_waits: bool,
}

impl Default for CudaBackendConfig {
    fn default() -> Self {
        Self {
            devices: None,
            streams_per_priority: None,
            strategy: AllocationStrategy::default(),
            registration_limit: None,
            pinned_limit: None,
            device_waits: true,
        }
    }
}

impl CudaBackendConfig {
    /// Uses only these devices.
    #[must_use]
    pub fn with_devices(mut self, ordinals: impl IntoIterator<Item = u32>) -> Self {
        self.devices = Some(ordinals.into_iter().collect());
        self
    }

    /// Sets the most streams per device and priority: 1 to 64. Opening the backend refuses other numbers.
    #[must_use]
    pub fn with_streams_per_priority(mut self, streams: usize) -> Self {
        self.streams_per_priority = Some(streams);
        self
    }

    /// Sets the most bytes of pageable host memory that each device keeps registered.
    #[must_use]
    pub fn with_registration_limit(mut self, bytes: u64) -> Self {
        self.registration_limit = Some(bytes);
        self
    }

    /// Sets the most bytes of host memory that all devices together have pinned.
    #[must_use]
    pub fn with_pinned_limit(mut self, bytes: u64) -> Self {
        self.pinned_limit = Some(bytes);
        self
    }

    /// Sets whether streams wait on the device for copies within the host (default), or the submitting thread waits. On the device, a
    /// submission does not block, but while other code frees memory synchronously, as by `cuMemFreeHost`, nearly every driver call of
    /// the process blocks until that copy is complete. For streams of the program's own see
    /// [`CudaStream::set_device_waits`](transload_streams::CudaStream::set_device_waits).
    #[must_use]
    pub fn with_device_waits(mut self, device_waits: bool) -> Self {
        self.device_waits = device_waits;
        self
    }

    /// Sets how a stream is chosen.
    #[must_use]
    pub fn with_strategy(mut self, strategy: AllocationStrategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Creates the stream pool of a device.
    pub(crate) fn pool(&self, device: &CudaDevice) -> Result<AdvancedStreamPool> {
        let builder =
            AdvancedStreamPool::builder(device).strategy(self.strategy).device_waits(self.device_waits);
        match self.streams_per_priority {
            // Of 0 streams, `build` refuses the maximum.
            Some(streams) => builder.streams(streams.min(1)..=streams).build(),
            None => builder.build(),
        }
    }
}
