//! What a framework makes by itself: a device and a queue of wgpu. The conformance test uses this file, too.

use transload_backend_wgpu::{WgpuBackendConfig, create_shared_device, wgpu};

/// A device of a framework, and the settings that adopt it.
pub(crate) struct Framework {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) config: WgpuBackendConfig,
}

/// Returns a software adapter, or another one, if there is any.
pub(crate) fn adapter() -> Option<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN;
    // Otherwise wgpu takes what a layer reports.
    descriptor.flags = wgpu::InstanceFlags::VALIDATION_INDIRECT_CALL;
    let instance = wgpu::Instance::new(descriptor);
    let mut adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
    adapters.sort_by_key(|adapter| adapter.get_info().device_type == wgpu::DeviceType::Cpu);
    if adapters.is_empty() {
        println!("skipped: no Vulkan adapter");
    }
    adapters.pop()
}

/// Returns one device that `create_shared_device` made, and a foreign one.
pub(crate) fn frameworks() -> Vec<Framework> {
    let Some(adapter) = adapter() else { return Vec::new() };
    let descriptor =
        wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..wgpu::DeviceDescriptor::default() };
    let (device, queue) = create_shared_device(&adapter, &descriptor).unwrap();
    let config = WgpuBackendConfig::default().with_device(device.clone(), queue.clone());
    let shared = Framework { device, queue, config };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).unwrap();
    // SAFETY: no surface is configured for it, and wgpu's queue is used as such only.
    let config = unsafe { WgpuBackendConfig::default().with_foreign_device(device.clone(), queue.clone()) };
    vec![shared, Framework { device, queue, config }]
}
