//! The families of devices besides the host: each opens its backend, or returns the reason why it is absent.

use transload_core::Result;

/// Every family that this version looks for, in the order of registration.
pub(crate) const FAMILIES: [&str; 1] = ["cuda"];

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod cuda {
    use std::sync::Arc;

    use transload_backend_cuda::{CudaBackend, CudaBackendConfig};

    use super::Result;

    pub(crate) type Config = CudaBackendConfig;
    pub(crate) type Cuda = CudaBackend;

    pub(crate) fn open(config: &Config) -> Result<Arc<Cuda>> {
        CudaBackend::open(config)
    }

    pub(crate) fn limit_pinned(config: &mut Config, bytes: u64) {
        config.pinned_limit = Some(bytes);
    }

    /// Returns the bytes of host memory that are pinned, and their limit.
    pub(crate) fn pinned(cuda: &Cuda) -> (u64, u64) {
        (cuda.pinned().bytes(), cuda.pinned().limit())
    }
}

/// Without CUDA there is nothing to configure and never a backend.
#[cfg(not(all(feature = "cuda", any(target_os = "linux", windows))))]
mod cuda {
    use std::sync::Arc;

    use transload_core::{Error, ErrorKind};

    use super::Result;

    #[derive(Debug, Default)]
    pub(crate) struct Config;
    pub(crate) type Cuda = transload_backend_cpu::CpuBackend;

    pub(crate) fn open(_: &Config) -> Result<Arc<Cuda>> {
        let text = if cfg!(feature = "cuda") {
            "CUDA exists on Linux and Windows only; no driver was looked for"
        } else {
            "this program was built without the feature `cuda` of transload; no driver was looked for"
        };
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// Only devices need pinned memory.
    pub(crate) fn limit_pinned(_: &mut Config, _: u64) {}

    pub(crate) fn pinned(_: &Cuda) -> (u64, u64) {
        (0, u64::MAX)
    }
}

pub(crate) use cuda::{Config as CudaConfig, Cuda, limit_pinned, open as open_cuda, pinned};
