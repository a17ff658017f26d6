//! The families of devices besides the host: each opens its backend, or returns the reason why it is absent.

use std::sync::Arc;

use async_trait::async_trait;
use transload_core::{Backend, Result};
use transload_executor::Executor;
use transload_transfer::CrossBackendTransferManager;

/// Devices that a machine may have, which [`RuntimeBuilder::discover`](crate::RuntimeBuilder::discover) looks for: for backends that
/// may be absent. One that exists is given to [`RuntimeBuilder::backend`](crate::RuntimeBuilder::backend).
///
/// ```
/// use std::sync::Arc;
/// use transload::{
///     DeviceId, Error, ErrorKind, Result, Runtime,
///     backend::{Backend, DeviceFamily, async_trait, executor::{BlockingKey, Executor}},
/// };
///
/// struct Npu;
///
/// # fn open_driver() -> Result<Arc<dyn Backend>> { Err(Error::new(ErrorKind::NoDriver, "there is no /dev/npu0")) }
/// #[async_trait]
/// impl DeviceFamily for Npu {
///     fn name(&self) -> &'static str {
///         "npu"
///     }
///
///     async fn discover(&self, executor: &Executor) -> Result<Arc<dyn Backend>> {
///         executor.spawn_blocking(&BlockingKey::new(1), open_driver).await?
///     }
/// }
///
/// let rt = Runtime::builder().family(Arc::new(Npu)).discover()?;
/// println!("{}", rt.explain(DeviceId::Other("npu", 0))); // There is no device npu:0; there are cpu; npu is absent: there is no /dev/npu0.
/// # assert!(rt.absent().iter().any(|(family, reason)| *family == "npu" && reason.kind() == ErrorKind::NoDriver));
/// # Ok::<(), transload::Error>(())
/// ```
#[async_trait]
pub trait DeviceFamily: Send + Sync {
    /// Returns the family's name, which is that of [`DeviceId::family`](crate::DeviceId::family) of its devices.
    fn name(&self) -> &'static str;

    /// Opens the backend of the family's devices. What may block, as loading a driver does, is a blocking call of the runtime's
    /// executor.
    ///
    /// # Errors
    /// The reason why the family is absent; see [`Runtime::absent`](crate::Runtime::absent).
    async fn discover(&self, executor: &Executor) -> Result<Arc<dyn Backend>>;
}

/// The family of CUDA devices.
pub(crate) struct CudaFamily(pub(crate) CudaConfig);

/// Bytes of pinned host memory.
pub(crate) struct Pinned {
    pub(crate) bytes: u64,
    pub(crate) limit: u64,
    pub(crate) registered: u64,
    pub(crate) cached: u64,
}

#[async_trait]
impl DeviceFamily for CudaFamily {
    fn name(&self) -> &'static str {
        "cuda"
    }

    async fn discover(&self, executor: &Executor) -> Result<Arc<dyn Backend>> {
        cuda::open(&self.0, executor).await
    }
}

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod cuda {
    use std::any::Any;

    use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
    use transload_executor::BlockingKey;

    use super::{Arc, Backend, Executor, Pinned, Result};

    pub(crate) type Config = CudaBackendConfig;

    pub(crate) async fn open(config: &Config, executor: &Executor) -> Result<Arc<dyn Backend>> {
        let config = config.clone();
        let open = move || {
            // CUPTI knows migrations of contexts only if it was loaded before the first one. What fails here fails again, and is told, when engines are recorded.
            #[cfg(feature = "profiler")]
            let _early = crate::profiler::recording::are_engines_wanted()
                .then(|| transload_memory::ActivityRecording::start([]));
            CudaBackend::open(&config)
        };
        Ok(executor.spawn_blocking(&BlockingKey::new(1), open).await?? as _)
    }

    pub(crate) fn limit_pinned(config: &mut Config, bytes: u64) {
        config.pinned_limit = Some(bytes);
    }

    /// Returns what a backend has pinned, if that can be read.
    pub(crate) fn pinned(backend: &dyn Backend) -> Option<Pinned> {
        let cuda = (backend as &dyn Any).downcast_ref::<CudaBackend>()?;
        let cached = cuda.cached_pinned_bytes();
        let pinned = cuda.pinned();
        let (bytes, limit) = (pinned.bytes(), pinned.limit());
        Some(Pinned { bytes, limit, registered: pinned.registered(), cached })
    }
}

/// Without CUDA there is nothing to configure and never a backend.
#[cfg(not(all(feature = "cuda", any(target_os = "linux", windows))))]
mod cuda {
    use transload_core::{Error, ErrorKind};

    use super::{Arc, Backend, Executor, Pinned, Result};

    #[derive(Debug, Default)]
    pub(crate) struct Config;

    pub(crate) async fn open(_: &Config, _: &Executor) -> Result<Arc<dyn Backend>> {
        let text = if cfg!(feature = "cuda") {
            "CUDA exists on Linux and Windows only; no driver was looked for"
        } else {
            "this program was built without the feature `cuda` of transload; no driver was looked for"
        };
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// Only devices need pinned memory.
    pub(crate) fn limit_pinned(_: &mut Config, _: u64) {}

    pub(crate) fn pinned(_: &dyn Backend) -> Option<Pinned> {
        None
    }
}

/// The family of wgpu's devices.
#[cfg(all(feature = "wgpu", any(target_os = "linux", target_os = "macos", windows)))]
pub(crate) struct WgpuFamily(pub(crate) transload_backend_wgpu::WgpuBackendConfig);

#[cfg(all(feature = "wgpu", any(target_os = "linux", target_os = "macos", windows)))]
#[async_trait]
impl DeviceFamily for WgpuFamily {
    fn name(&self) -> &'static str {
        // All of a platform are of one.
        if cfg!(target_os = "macos") { "metal" } else { "wgpu" }
    }

    async fn discover(&self, executor: &Executor) -> Result<Arc<dyn Backend>> {
        let config = self.0.clone();
        let open = move || transload_backend_wgpu::WgpuBackend::open(&config);
        Ok(executor.spawn_blocking(&transload_executor::BlockingKey::new(1), open).await?? as _)
    }
}

/// Returns whether a backend is that of wgpu's devices.
pub(crate) fn is_wgpu(backend: &dyn Backend) -> bool {
    #[cfg(all(feature = "wgpu", any(target_os = "linux", target_os = "macos", windows)))]
    let is_wgpu = (backend as &dyn std::any::Any).is::<transload_backend_wgpu::WgpuBackend>();
    #[cfg(not(all(feature = "wgpu", any(target_os = "linux", target_os = "macos", windows))))]
    let is_wgpu = {
        let _none = backend;
        false
    };
    is_wgpu
}

/// Has copies between the memory of CUDA and wgpu devices that are one GPU stay there, of devices that a manager knows and those of a
/// backend that it is about to know. Where that is not possible, they pass the host.
#[cfg(all(feature = "cuda", feature = "wgpu", any(target_os = "linux", windows)))]
pub(crate) fn connect(manager: &CrossBackendTransferManager, opened: &Arc<dyn Backend>) {
    use std::any::Any;

    use transload_backend_cuda::CudaBackend;
    use transload_core::{DeviceId, Error, ErrorKind};

    fn cuda_of(backend: &Arc<dyn Backend>) -> Result<&CudaBackend> {
        let other = || Error::new(ErrorKind::Unsupported, "the devices are not of the CUDA backend");
        (&**backend as &dyn Any).downcast_ref().ok_or_else(other)
    }

    let Some(wgpu) = (&**opened as &dyn Any).downcast_ref::<transload_backend_wgpu::WgpuBackend>() else {
        return;
    };
    for id in manager.devices().iter().map(|info| info.id) {
        let (DeviceId::Cuda(ordinal), Ok(backend)) = (id, manager.backend(id)) else { continue };
        let weak = Arc::downgrade(&backend);
        let memory = move || {
            let gone = || Error::new(ErrorKind::Unsupported, "the CUDA backend was dropped");
            Ok(Arc::clone(cuda_of(&weak.upgrade().ok_or_else(gone)?)?.memory(ordinal)?))
        };
        // Refused for other GPUs.
        let _same = cuda_of(&backend).and_then(|cuda| wgpu.connect_cuda(cuda.device(ordinal)?, memory));
    }
}

/// Nothing shares a GPU.
#[cfg(not(all(feature = "cuda", feature = "wgpu", any(target_os = "linux", windows))))]
pub(crate) fn connect(_: &CrossBackendTransferManager, _: &Arc<dyn Backend>) {}

pub(crate) use cuda::{Config as CudaConfig, limit_pinned, pinned};
