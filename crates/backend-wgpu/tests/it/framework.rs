//! What a framework makes by itself: a device and a queue of wgpu. The conformance test uses this file, too.

use std::{env, fmt};

use transload_backend_wgpu::{WgpuBackendConfig, create_shared_device, wgpu};

/// Set in children: which devices to test. Otherwise it is those that are used by default.
pub(crate) const DEVICES: &str = "TRANSLOAD_TEST_DEVICES";
/// By wgpu's own interface, those of OpenGL, and those of Vulkan.
pub(crate) const PORTABLE: [&str; 2] = ["opengl", "portable-vulkan"];

/// Returns the settings for the devices to test, and their API.
pub(crate) fn tested() -> (WgpuBackendConfig, wgpu::Backends) {
    let config = WgpuBackendConfig::default().with_software_adapters();
    match env::var(DEVICES) {
        Ok(devices) if devices == PORTABLE[0] => (config.with_apis(wgpu::Backends::GL), wgpu::Backends::GL),
        Ok(devices) if devices == PORTABLE[1] => (config.with_portable_vulkan(), wgpu::Backends::VULKAN),
        _ => (config.with_apis(wgpu::Backends::VULKAN), wgpu::Backends::VULKAN),
    }
}

/// Prints why a test is skipped. `.ci/run` sets the variable, and a test of Vulkan fails instead.
pub(crate) fn skip(reason: impl fmt::Display) {
    let may_skip = env::var_os("TRANSLOAD_TEST_NEEDS_VULKAN").is_none();
    assert!(may_skip || tested().1 != wgpu::Backends::VULKAN, "{reason}");
    println!("skipped: {reason}");
}

/// A device of a framework, and the settings that adopt it.
pub(crate) struct Framework {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) config: WgpuBackendConfig,
}

/// Returns a software adapter, or another one, if there is any.
pub(crate) fn adapter() -> Option<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    let (_, api) = tested();
    descriptor.backends = api;
    // Otherwise wgpu takes what a layer reports.
    descriptor.flags = wgpu::InstanceFlags::VALIDATION_INDIRECT_CALL;
    let instance = wgpu::Instance::new(descriptor);
    let mut adapters = pollster::block_on(instance.enumerate_adapters(api));
    adapters.sort_by_key(|adapter| adapter.get_info().device_type == wgpu::DeviceType::Cpu);
    if adapters.is_empty() {
        skip(format!("no adapter of {api:?}"));
    }
    adapters.pop()
}

/// Returns one device that `create_shared_device` made, if Vulkan is used beneath wgpu, and a foreign one.
pub(crate) fn frameworks() -> Vec<Framework> {
    let Some(adapter) = adapter() else { return Vec::new() };
    let descriptor =
        wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..wgpu::DeviceDescriptor::default() };
    if env::var_os(DEVICES).is_some() {
        let opened = pollster::block_on(adapter.request_device(&descriptor));
        let (device, queue) = match opened {
            // NVIDIA's driver has such an adapter without a display.
            Err(error) if tested().1 == wgpu::Backends::GL => {
                skip(format!("no adapter of OpenGL can be used: {error}"));
                return Vec::new();
            }
            opened => opened.unwrap(),
        };
        let config = tested().0.with_device(device.clone(), queue.clone());
        return vec![Framework { device, queue, config }];
    }
    let (device, queue) = create_shared_device(&adapter, &descriptor).unwrap();
    let config = WgpuBackendConfig::default().with_device(device.clone(), queue.clone());
    let shared = Framework { device, queue, config };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).unwrap();
    // SAFETY: no surface is configured for it, and wgpu's queue is used as such only.
    let config = unsafe { WgpuBackendConfig::default().with_foreign_device(device.clone(), queue.clone()) };
    vec![shared, Framework { device, queue, config }]
}
