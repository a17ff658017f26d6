//! The families of devices besides the host: each gives its backend, or the reason why it is absent.

use std::sync::Arc;

use transload_core::{Backend, Result};

/// Looks for a family's devices.
type Discover = fn() -> Result<Arc<dyn Backend>>;

/// Every family that this version knows how to look for, in the order of registration.
pub(crate) const FAMILIES: [(&str, Discover); 1] = [("cuda", cuda)];

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
fn cuda() -> Result<Arc<dyn Backend>> {
    use transload_backend_cuda::{CudaBackend, CudaBackendConfig};

    let backend = CudaBackend::open(&CudaBackendConfig::default())?;
    Ok(backend)
}

#[cfg(all(feature = "cuda", not(any(target_os = "linux", windows))))]
fn cuda() -> Result<Arc<dyn Backend>> {
    Err(unsupported("CUDA exists on Linux and Windows only; no driver was looked for"))
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<Arc<dyn Backend>> {
    Err(unsupported(
        "this program was built without the feature `cuda` of transload; no driver was looked for",
    ))
}

#[cfg(not(all(feature = "cuda", any(target_os = "linux", windows))))]
fn unsupported(text: &'static str) -> transload_core::Error {
    transload_core::Error::new(transload_core::ErrorKind::Unsupported, text)
}
