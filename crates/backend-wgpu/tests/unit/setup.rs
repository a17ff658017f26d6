//! What the unit tests open.

use std::{env, fmt, sync::Arc};

use crate::{WgpuBackend, WgpuBackendConfig};

/// Opens every Vulkan device; `None`, with a printed reason, if there is none.
pub(crate) fn backend() -> Option<Arc<WgpuBackend>> {
    let config = WgpuBackendConfig::default().with_software_adapters().with_apis(wgpu::Backends::VULKAN);
    WgpuBackend::open(&config).map_err(skip).ok()
}

/// Prints why a test is skipped. `.ci/run` sets the variable, and a test fails instead.
pub(crate) fn skip(reason: impl fmt::Display) {
    assert!(env::var_os("TRANSLOAD_TEST_NEEDS_VULKAN").is_none(), "{reason}");
    println!("skipped: {reason}");
}
