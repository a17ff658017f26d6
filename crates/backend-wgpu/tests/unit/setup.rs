//! What the unit tests open.

#[cfg(all(target_os = "linux", feature = "cuda"))]
#[path = "../it/exported.rs"]
pub(crate) mod exported;
#[path = "../it/layer.rs"]
mod layer;

use std::{env, fmt, sync::Arc};

use crate::{WgpuBackend, WgpuBackendConfig};

/// Opens every Vulkan device; `None`, with a printed reason, if there is none.
pub(crate) fn backend() -> Option<Arc<WgpuBackend>> {
    let config = WgpuBackendConfig::default().with_software_adapters().with_apis(wgpu::Backends::VULKAN);
    WgpuBackend::open(&config).map_err(skip).ok()
}

/// Returns a software adapter, or another one; `None`, with a printed reason, if there is none.
pub(crate) fn adapter() -> Option<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN;
    let instance = wgpu::Instance::new(descriptor);
    let mut adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
    adapters.sort_by_key(|adapter| adapter.get_info().device_type == wgpu::DeviceType::Cpu);
    adapters.pop().or_else(|| {
        skip("no Vulkan adapter");
        None
    })
}

/// Prints why a test is skipped. `.ci/run` sets the variable, and a test fails instead.
pub(crate) fn skip(reason: impl fmt::Display) {
    assert!(env::var_os("TRANSLOAD_TEST_NEEDS_VULKAN").is_none(), "{reason}");
    println!("skipped: {reason}");
}
