//! Settings of a wgpu backend.

/// Settings of a [`WgpuBackend`](crate::WgpuBackend).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WgpuBackendConfig {
    /// Whether adapters that run on the host's processor are used, such as Mesa's llvmpipe; see
    /// [`with_software_adapters`](Self::with_software_adapters).
    pub software_adapters: bool,
}

impl WgpuBackendConfig {
    /// Also uses adapters that run on the host's processor. They are for tests: work on them gains nothing over the host's own, and a
    /// program that looks for a GPU should not find one.
    #[must_use]
    pub fn with_software_adapters(mut self) -> Self {
        self.software_adapters = true;
        self
    }
}
