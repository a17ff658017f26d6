//! What the unit tests open.

#[cfg(all(target_os = "linux", feature = "cuda"))]
#[path = "../it/exported.rs"]
pub(crate) mod exported;
#[path = "../it/layer.rs"]
mod layer;

use std::{env, fmt, sync::Arc};

#[cfg(all(target_os = "linux", feature = "cuda"))]
use transload_memory::{CudaDevice, CudaMemoryManager};

use crate::{WgpuBackend, WgpuBackendConfig};

/// A device of the software driver that is the GPU of a Vulkan device, and imports its memory.
#[cfg(all(target_os = "linux", feature = "cuda"))]
// Clippy's allowance for tests does not reach their helpers.
#[allow(clippy::unwrap_used)]
pub(crate) fn cuda_of(
    info: &transload_core::DeviceInfo,
) -> (transload_cuda_sim::harness::TestDevice, CudaDevice, Arc<CudaMemoryManager>) {
    // SAFETY: mappings stay.
    let test = transload_cuda_sim::harness::device_like(|builder| unsafe {
        builder.uuid(info.uuid).total_memory(128 << 20).external_memory(exported::open)
    });
    let cuda = CudaDevice::new(test.ordinal()).unwrap();
    let memory = Arc::new(CudaMemoryManager::new(&cuda).unwrap());
    (test, cuda, memory)
}

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
