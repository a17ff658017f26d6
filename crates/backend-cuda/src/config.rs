//! Settings of a CUDA backend.

use transload_core::Result;
use transload_memory::CudaDevice;
use transload_streams::{AdvancedStreamPool, AllocationStrategy};

/// Settings of a [`CudaBackend`](crate::CudaBackend).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

    /// Sets how a stream is chosen.
    #[must_use]
    pub fn with_strategy(mut self, strategy: AllocationStrategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Creates the stream pool of a device.
    pub(crate) fn pool(&self, device: &CudaDevice) -> Result<AdvancedStreamPool> {
        match self.streams_per_priority {
            Some(streams) => AdvancedStreamPool::new_with_strategy(device, streams, self.strategy),
            None => AdvancedStreamPool::builder(device).strategy(self.strategy).build(),
        }
    }
}
