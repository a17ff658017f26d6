//! Settings of a wgpu backend.

/// Settings of a [`WgpuBackend`](crate::WgpuBackend).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WgpuBackendConfig {
    /// Whether adapters that run on the host's processor are used, such as Mesa's llvmpipe; see
    /// [`with_software_adapters`](Self::with_software_adapters).
    pub software_adapters: bool,
    /// The APIs to try; see [`with_apis`](Self::with_apis). `None` is all.
    pub apis: Option<wgpu::Backends>,
    pub(crate) is_portable: bool,
    pub(crate) adopted: Vec<AdoptedDevice>,
}

/// A device that a framework made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdoptedDevice {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    /// Whether the queue may have no lock of ours.
    pub(crate) is_foreign: bool,
}

impl WgpuBackendConfig {
    /// Also uses adapters that run on the host's processor. They are for tests: work on them gains nothing over the host's own, and a
    /// program that looks for a GPU should not find one.
    #[must_use]
    pub fn with_software_adapters(mut self) -> Self {
        self.software_adapters = true;
        self
    }

    /// Tries these APIs only. By default all that the platform has are tried: Vulkan, then DX12 on Windows and OpenGL on Linux, and Metal on
    /// macOS. The first one of which an adapter can be used is used, alone, so that no GPU is there twice.
    #[must_use]
    pub fn with_apis(mut self, apis: wgpu::Backends) -> Self {
        self.apis = Some(apis);
        self
    }

    /// Uses Vulkan as the other APIs are used: for tests of that where only Vulkan is.
    #[doc(hidden)]
    #[must_use]
    pub fn with_portable_vulkan(mut self) -> Self {
        self.is_portable = true;
        self
    }

    /// Uses this device of a framework, which `create_shared_device` made if it is one of Vulkan, and other devices given so, in
    /// the place of those that are found: as `wgpu:0` (`metal:0` on macOS) and so on, in this order. Both are kept until the backend and all its handles are
    /// dropped. The device's handlers of errors and of its loss stay the framework's. On other APIs than Vulkan, opening the backend waits for what the queue was given before, and tells by a word
    /// that it writes whether the queue is the device's.
    ///
    /// The framework goes on to submit to the queue, from any thread. Copies by wgpu's queue are in order with that by the order of the calls
    /// alone, others by [`WgpuBackend::fence`](crate::WgpuBackend::fence) and by waiting for them.
    #[must_use]
    pub fn with_device(mut self, device: wgpu::Device, queue: wgpu::Queue) -> Self {
        self.adopted.push(AdoptedDevice { device, queue, is_foreign: false });
        self
    }

    /// Like [`with_device`](Self::with_device), but takes any device of Vulkan. If `create_shared_device` did not make it, each
    /// submission costs what one of wgpu does, and `CudaInterop` refuses it. A submission of the library that the driver refuses, for lack
    /// of memory too, is the loss of the device: wgpu's later ones, also the framework's, wait for it.
    ///
    /// # Safety
    /// * While the backend or a handle of it lives, no surface that is configured for the device is presented, and nothing but wgpu uses
    ///   the Vulkan queue beneath it.
    #[must_use]
    pub unsafe fn with_foreign_device(mut self, device: wgpu::Device, queue: wgpu::Queue) -> Self {
        self.adopted.push(AdoptedDevice { device, queue, is_foreign: true });
        self
    }
}
