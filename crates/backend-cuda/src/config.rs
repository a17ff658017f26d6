//! What a CUDA backend is made with.

/// Settings of a [`CudaBackend`](crate::CudaBackend).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaBackendConfig {
    /// Ordinals of the devices to use; `None` means every device that the driver shows.
    pub devices: Option<Vec<u32>>,
    /// Streams per device and priority; at least 1. Two keep both directions of the link busy.
    pub streams_per_priority: usize,
}

impl Default for CudaBackendConfig {
    fn default() -> Self {
        Self { devices: None, streams_per_priority: 2 }
    }
}

impl CudaBackendConfig {
    /// Uses only these devices.
    #[must_use]
    pub fn with_devices(mut self, ordinals: impl IntoIterator<Item = u32>) -> Self {
        self.devices = Some(ordinals.into_iter().collect());
        self
    }

    /// Sets the streams per device and priority.
    #[must_use]
    pub fn with_streams_per_priority(mut self, streams: usize) -> Self {
        self.streams_per_priority = streams;
        self
    }
}
