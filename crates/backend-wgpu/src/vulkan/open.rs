//! Finds the adapters, and opens a device on each.

use std::{ffi::CStr, sync::Arc};

use ash::vk;
use transload_core::{DeviceId, DeviceInfo, Error, ErrorKind, MemoryKind, Result};
use wgpu::hal;

use super::{Vulkan, error_of, gate, handles::lost_flag};
use crate::WgpuBackendConfig;

/// What to install.
const ADVICE: &str = "install a Vulkan driver for the GPU (on Debian and Ubuntu, Mesa's are in mesa-vulkan-drivers, which also has \
     one that needs no GPU, and the loader is in libvulkan1)";

/// The family of queues that wgpu uses.
const FAMILY: u32 = 0;

/// Opens a device on each adapter, in an order that is the same in every process: discrete GPUs first, then by UUID. Adapters that cannot
/// be used are left out.
///
/// # Errors
/// [`ErrorKind::NoDriver`] if there is no Vulkan loader; [`ErrorKind::NoDevice`] without an adapter, or with the reasons why none can
/// be used.
pub(crate) fn open_all(config: &WgpuBackendConfig) -> Result<Vec<(Arc<Vulkan>, DeviceInfo)>> {
    // SAFETY: loading the system's Vulkan loader runs its initialisers, which are trusted like those of any driver.
    if let Err(error) = unsafe { ash::Entry::load() } {
        return Err(Error::caused_by(
            ErrorKind::NoDriver,
            format!("no Vulkan loader was found; {ADVICE}"),
            error,
        ));
    }
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN;
    // Neither layers nor labels, whatever the profile. Indirect arguments are checked, since safe code could pass any.
    descriptor.flags = wgpu::InstanceFlags::VALIDATION_INDIRECT_CALL;
    let instance = wgpu::Instance::new(descriptor);
    let mut adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
    if adapters.is_empty() {
        let text = format!("the Vulkan loader shows no adapter; {ADVICE}");
        return Err(Error::new(ErrorKind::NoDevice, text));
    }
    adapters.sort_by_cached_key(|adapter| (rank(adapter), uuid(adapter)));
    let mut opened = Vec::new();
    let mut reasons = Vec::new();
    for adapter in adapters {
        let info = adapter.get_info();
        if info.device_type == wgpu::DeviceType::Cpu && !config.software_adapters {
            let text =
                "it runs on the processor, and is used with `WgpuBackendConfig::with_software_adapters` only";
            reasons.push(format!("{}: {text}", info.name));
            continue;
        }
        let ordinal = u32::try_from(opened.len()).unwrap_or(u32::MAX);
        match open(&adapter, DeviceId::Wgpu(ordinal)) {
            Ok(device) => opened.push(device),
            Err(error) => reasons.push(format!("{}: {error}", info.name)),
        }
    }
    if opened.is_empty() {
        let text = format!("no Vulkan adapter can be used: {}; {ADVICE}", reasons.join("; "));
        return Err(Error::new(ErrorKind::NoDevice, text));
    }
    Ok(opened)
}

fn rank(adapter: &wgpu::Adapter) -> u8 {
    match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}

/// Properties of a physical device that wgpu does not tell.
struct Properties {
    api: u32,
    uuid: [u8; 16],
    largest_allocation: u64,
    has_budget: bool,
    nanoseconds_per_tick: f64,
}

fn properties(adapter: &hal::vulkan::Adapter) -> Properties {
    let (instance, physical) = (adapter.shared_instance(), adapter.raw_physical_device());
    let core = adapter.physical_device_capabilities().properties();
    let api = core.api_version.min(instance.instance_api_version());
    if api < vk::API_VERSION_1_2 {
        return Properties {
            api,
            uuid: [0; 16],
            largest_allocation: 0,
            has_budget: false,
            nanoseconds_per_tick: 0.0,
        };
    }
    let mut id = vk::PhysicalDeviceIDProperties::default();
    let mut third = vk::PhysicalDeviceMaintenance3Properties::default();
    let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut id).push_next(&mut third);
    // SAFETY: the physical device is one of the instance, and both structures are of Vulkan 1.1.
    unsafe { instance.raw_instance().get_physical_device_properties2(physical, &mut all) };
    Properties {
        api,
        uuid: id.device_uuid,
        largest_allocation: third.max_memory_allocation_size,
        has_budget: adapter.physical_device_capabilities().supports_extension(ash::ext::memory_budget::NAME),
        nanoseconds_per_tick: f64::from(core.limits.timestamp_period),
    }
}

fn uuid(adapter: &wgpu::Adapter) -> [u8; 16] {
    // SAFETY: nothing is destroyed.
    unsafe { adapter.as_hal::<hal::api::Vulkan>() }.map_or([0; 16], |adapter| properties(&adapter).uuid)
}

fn open(adapter: &wgpu::Adapter, id: DeviceId) -> Result<(Arc<Vulkan>, DeviceInfo)> {
    let info = adapter.get_info();
    let not_vulkan = || Error::new(ErrorKind::Unsupported, "wgpu shows it as an adapter of another API");
    // SAFETY: nothing is destroyed.
    let lower = unsafe { adapter.as_hal::<hal::api::Vulkan>() }.ok_or_else(not_vulkan)?;
    let Properties { api, uuid, largest_allocation, has_budget, nanoseconds_per_tick } = properties(&lower);
    if api < vk::API_VERSION_1_2 {
        let (major, minor) = (vk::api_version_major(api), vk::api_version_minor(api));
        let text = format!("it has Vulkan {major}.{minor}; timeline semaphores need 1.2");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let physical = lower.raw_physical_device();
    let instance = lower.shared_instance().raw_instance().clone();
    let semaphores = ash::khr::external_semaphore_fd::NAME;
    let exports_semaphores = lower.physical_device_capabilities().supports_extension(semaphores)
        && exports_timelines(&instance, physical);
    drop(lower);
    let (wgpu_device, wgpu_queue) = request(adapter, id, exports_semaphores.then_some(semaphores))?;
    // SAFETY: nothing is destroyed; the copied handles are used while `wgpu_device` lives, which `Vulkan` keeps.
    let lower = unsafe { wgpu_device.as_hal::<hal::api::Vulkan>() }.ok_or_else(not_vulkan)?;
    let (raw, queue, family) = (lower.raw_device().clone(), lower.raw_queue(), lower.queue_family_index());
    drop(lower);
    // SAFETY: the physical device is one of the instance, which the device keeps.
    let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
    // SAFETY: likewise.
    let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
    let has_clock = families.get(family as usize).is_some_and(|family| family.timestamp_valid_bits == 64);
    let vulkan = Vulkan {
        id,
        raw,
        instance,
        physical,
        queue,
        family,
        memory,
        largest_allocation: largest_allocation.min(adapter.limits().max_buffer_size),
        exports_semaphores,
        is_host: matches!(info.device_type, wgpu::DeviceType::Cpu | wgpu::DeviceType::IntegratedGpu),
        has_budget,
        nanoseconds_per_tick: has_clock.then_some(nanoseconds_per_tick),
        wgpu_lost: lost_flag(&wgpu_device),
        wgpu_queue,
        wgpu_device,
    };
    let mut found = DeviceInfo::new(id, info.name);
    found.total_memory = vulkan.total_memory();
    found.uuid = Some(uuid).filter(|uuid| *uuid != [0; 16]);
    found.driver = format!("Vulkan ({} {})", info.driver, info.driver_info);
    found.kinds =
        [MemoryKind::Device, MemoryKind::Pinned].into_iter().filter(|kind| vulkan.has(*kind)).collect();
    Ok((Arc::new(vulkan), found))
}

/// Returns whether the device exports timeline semaphores. Some export others only, or as other handles only.
fn exports_timelines(instance: &ash::Instance, physical: vk::PhysicalDevice) -> bool {
    let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
    let handle = vk::ExternalSemaphoreHandleTypeFlags::OPAQUE_FD;
    let info = vk::PhysicalDeviceExternalSemaphoreInfo::default().handle_type(handle).push_next(&mut kind);
    let mut found = vk::ExternalSemaphoreProperties::default();
    // SAFETY: the physical device is one of the instance, with Vulkan 1.2, which has the call and both structures.
    unsafe { instance.get_physical_device_external_semaphore_properties(physical, &info, &mut found) };
    found.external_semaphore_features.contains(vk::ExternalSemaphoreFeatureFlags::EXPORTABLE)
}

/// Opens a device with the adapter's limits, those of its features that WebGPU has, and what exports memory and semaphores. wgpu's errors
/// become events: its default handler panics.
fn request(
    adapter: &wgpu::Adapter,
    id: DeviceId,
    extension: Option<&'static CStr>,
) -> Result<(wgpu::Device, wgpu::Queue)> {
    let name = id.to_string();
    let features = wgpu::Features::all_webgpu_mask() | wgpu::Features::VULKAN_EXTERNAL_MEMORY_FD;
    let descriptor = wgpu::DeviceDescriptor {
        label: Some(&name),
        required_limits: adapter.limits(),
        required_features: adapter.features() & features,
        ..wgpu::DeviceDescriptor::default()
    };
    let cannot = "its device cannot be opened";
    let opened = {
        // SAFETY: nothing is destroyed.
        let lower = unsafe { adapter.as_hal::<hal::api::Vulkan>() };
        let lower = lower.ok_or_else(|| Error::new(ErrorKind::Unsupported, cannot))?;
        let wgpu::DeviceDescriptor { required_features, required_limits, memory_hints, .. } = &descriptor;
        // As wgpu opens it.
        let mut extensions = lower.required_device_extensions(*required_features);
        extensions.extend(extension);
        let mut enabled = lower.physical_device_features(&extensions, *required_features);
        let queues =
            [vk::DeviceQueueCreateInfo::default().queue_family_index(FAMILY).queue_priorities(&[1.0])];
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let info =
            vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
        let info = enabled.add_to_device_create(info);
        let (instance, physical) = (lower.shared_instance().raw_instance(), lower.raw_physical_device());
        // SAFETY: the adapter supports the extensions and features.
        let raw = unsafe { instance.create_device(physical, &info, None) };
        let raw = raw.map_err(|result| error_of(id, "vkCreateDevice", result))?;
        // SAFETY: the device is new, and has the queue.
        let raw = unsafe { gate::guard(&raw, FAMILY) };
        // SAFETY: it was made with these extensions and features, and one queue. wgpu destroys it.
        unsafe {
            lower.device_from_raw(
                raw,
                None,
                &extensions,
                *required_features,
                required_limits,
                memory_hints,
                FAMILY,
                0,
            )
        }
    };
    let opened = opened.map_err(|error| Error::caused_by(ErrorKind::Device, cannot, error))?;
    // SAFETY: it was opened by this adapter, with the descriptor's features.
    let opened = unsafe { adapter.create_device_from_hal(opened, &descriptor) };
    let (device, queue) = opened.map_err(|error| Error::caused_by(ErrorKind::Device, cannot, error))?;
    device.on_uncaptured_error(Arc::new(move |error| {
        let error = Error::caused_by(ErrorKind::Device, "wgpu reported an error", error);
        transload_core::events::report::call_failed("its handles are invalid", id, &error);
    }));
    Ok((device, queue))
}
