//! Finds the adapters, and opens a device on each, or takes those that its user made.

use std::sync::{Arc, OnceLock, atomic::AtomicBool};

use transload_core::{DeviceId, DeviceInfo, Error, ErrorKind, MemoryKind, Result, events::report};
use wgpu::hal;

use super::{
    Properties, Vulkan,
    create::{create, not_vulkan},
    gate,
    handles::lost_flag,
    memory::{GRANULE, can_map_device},
};
use crate::{WgpuBackendConfig, config::AdoptedDevice, device::DeviceState};

/// What to install.
const ADVICE: &str = "install a Vulkan driver for the GPU (on Debian and Ubuntu, Mesa's are in mesa-vulkan-drivers, which also has \
     one that needs no GPU, and the loader is in libvulkan1)";

/// Takes the devices of the configuration, in their order. Without any, opens a device on each adapter, in an order that is the same in
/// every process: discrete GPUs first, then by UUID. Adapters that cannot be used are left out, and reported as events.
///
/// # Errors
/// [`ErrorKind::NoDriver`] if there is no Vulkan loader; [`ErrorKind::NoDevice`] without an adapter, or with the reasons why none can
/// be used; those of [`adopt`].
pub(crate) fn open_all(config: &WgpuBackendConfig) -> Result<Vec<Arc<DeviceState>>> {
    if !config.adopted.is_empty() {
        // Its framework may destroy its own instance while threads of this library live on.
        let _kept = instance();
        return (0..).zip(&config.adopted).map(|(n, given)| adopt(given, DeviceId::Wgpu(n))).collect();
    }
    // SAFETY: loading the system's Vulkan loader runs its initialisers, which are trusted like those of any driver.
    if let Err(error) = unsafe { ash::Entry::load() } {
        return Err(Error::caused_by(
            ErrorKind::NoDriver,
            format!("no Vulkan loader was found; {ADVICE}"),
            error,
        ));
    }
    let mut adapters = pollster::block_on(instance().enumerate_adapters(wgpu::Backends::VULKAN));
    if adapters.is_empty() {
        let text = format!("the Vulkan loader shows no adapter; {ADVICE}");
        return Err(Error::new(ErrorKind::NoDevice, text));
    }
    adapters.sort_by_cached_key(|adapter| (rank(adapter), uuid(adapter)));
    let (opened, reasons) = open_each(adapters, |adapter, id| {
        let info = adapter.get_info();
        let opened = if info.device_type == wgpu::DeviceType::Cpu && !config.software_adapters {
            let text =
                "it runs on the processor, and is used with `WgpuBackendConfig::with_software_adapters` only";
            Err(Error::new(ErrorKind::Unsupported, text))
        } else {
            open(adapter, id)
        };
        opened.map_err(|error| Error::caused_by(error.kind(), info.name, error))
    });
    if opened.is_empty() {
        let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
        let text = format!("no Vulkan adapter can be used: {}; {ADVICE}", reasons.join("; "));
        return Err(Error::new(ErrorKind::NoDevice, text));
    }
    for reason in reasons {
        report::call_failed("a Vulkan adapter is left out", None, &reason);
    }
    Ok(opened)
}

/// Opens devices, which are numbered in their order. Returns the errors of those that cannot be opened.
fn open_each<A, T>(
    adapters: impl IntoIterator<Item = A>,
    open: impl Fn(&A, DeviceId) -> Result<T>,
) -> (Vec<T>, Vec<Error>) {
    let (mut opened, mut reasons) = (Vec::new(), Vec::new());
    for adapter in adapters {
        let ordinal = u32::try_from(opened.len()).unwrap_or(u32::MAX);
        match open(&adapter, DeviceId::Wgpu(ordinal)) {
            Ok(device) => opened.push(device),
            Err(error) => reasons.push(error),
        }
    }
    (opened, reasons)
}

/// Returns the instance of the process, which is never destroyed: the last one that is unloads the drivers, and a thread that called one
/// crashes if it ends after that, since the driver's destructors of thread-local values are gone (gfx-rs/wgpu, issue 246).
fn instance() -> &'static wgpu::Instance {
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::VULKAN;
        // Neither layers nor labels, whatever the profile. Indirect arguments are checked, since safe code could pass any.
        descriptor.flags = wgpu::InstanceFlags::VALIDATION_INDIRECT_CALL;
        wgpu::Instance::new(descriptor)
    })
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

fn uuid(adapter: &wgpu::Adapter) -> [u8; 16] {
    // SAFETY: nothing is destroyed.
    let lower = unsafe { adapter.as_hal::<hal::api::Vulkan>() };
    let found = lower.map(|lower| Properties::of(lower.shared_instance(), lower.raw_physical_device()));
    found.and_then(Result::ok).map_or([0; 16], |found| found.uuid)
}

/// Opens a device of ours, with the adapter's limits and those of its features that WebGPU has. wgpu's errors become events: its default
/// handler panics.
fn open(adapter: &wgpu::Adapter, id: DeviceId) -> Result<Arc<DeviceState>> {
    let name = id.to_string();
    let descriptor = wgpu::DeviceDescriptor {
        label: Some(&name),
        required_limits: adapter.limits(),
        required_features: adapter.features() & wgpu::Features::all_webgpu_mask(),
        ..wgpu::DeviceDescriptor::default()
    };
    let (device, queue) = create(adapter, &descriptor, &[])?;
    device.on_uncaptured_error(Arc::new(move |error| {
        let error = Error::caused_by(ErrorKind::Device, "wgpu reported an error", error);
        report::call_failed("its handles are invalid", id, &error);
    }));
    let lost = lost_flag(&device);
    make(id, device, queue, lost)
}

/// Takes a device of a framework. Its handlers stay in place.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if it is not Vulkan's, before 1.2, or if wgpu's queue was to be locked and is not;
/// [`ErrorKind::InvalidArgument`] for the queue of another device; the driver's.
fn adopt(given: &AdoptedDevice, id: DeviceId) -> Result<Arc<DeviceState>> {
    let AdoptedDevice { device, queue, is_foreign } = given;
    let adopted = (|| {
        // SAFETY: nothing is destroyed.
        let lower = unsafe { (device.as_hal::<hal::api::Vulkan>(), queue.as_hal::<hal::api::Vulkan>()) };
        let (Some(lower), Some(lower_queue)) = lower else { return Err(not_vulkan()) };
        if lower.raw_queue() != lower_queue.as_raw()
            || lower.raw_device().handle() != lower_queue.raw_device().handle()
        {
            return Err(Error::new(ErrorKind::InvalidArgument, "the queue is that of another device"));
        }
        if !is_foreign && !gate::is_guarded(lower.raw_device()) {
            let text = "the device was not made by `create_shared_device`, so its queue has no lock; \
                 see `with_foreign_device`";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        drop((lower, lower_queue));
        make(id, device.clone(), queue.clone(), Arc::<AtomicBool>::default())
    })();
    adopted.map_err(|error| {
        Error::caused_by(error.kind(), format!("the device given as {id} cannot be used"), error)
    })
}

/// Makes the state of a device of wgpu.
fn make(
    id: DeviceId,
    wgpu_device: wgpu::Device,
    wgpu_queue: wgpu::Queue,
    wgpu_lost: Arc<AtomicBool>,
) -> Result<Arc<DeviceState>> {
    let info = wgpu_device.adapter_info();
    // SAFETY: nothing is destroyed; the copied handles are used while `wgpu_device` lives, which `Vulkan` keeps.
    let lower = unsafe { wgpu_device.as_hal::<hal::api::Vulkan>() }.ok_or_else(not_vulkan)?;
    let physical = lower.raw_physical_device();
    let properties = Properties::of(lower.shared_instance(), physical)?;
    let instance = lower.shared_instance().raw_instance().clone();
    let (raw, queue, family) = (lower.raw_device().clone(), lower.raw_queue(), lower.queue_family_index());
    let exports_semaphores =
        lower.enabled_device_extensions().contains(&ash::khr::external_semaphore_fd::NAME)
            && properties.exports_semaphores;
    drop(lower);
    // SAFETY: the physical device is one of the instance, which the device keeps.
    let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
    // SAFETY: likewise.
    let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
    let has_clock = families.get(family as usize).is_some_and(|family| family.timestamp_valid_bits == 64);
    let is_host = matches!(info.device_type, wgpu::DeviceType::Cpu | wgpu::DeviceType::IntegratedGpu);
    let vulkan = Vulkan {
        id,
        is_locked: gate::is_guarded(&raw),
        raw,
        instance,
        physical,
        queue,
        family,
        memory,
        exports_semaphores,
        is_host,
        maps_device: is_host && can_map_device(&memory),
        has_budget: properties.has_budget,
        nanoseconds_per_tick: has_clock.then_some(properties.nanoseconds_per_tick),
        wgpu_lost,
        may_run: AtomicBool::new(false),
        wgpu_queue,
        wgpu_device,
    };
    let mut found = DeviceInfo::new(id, info.name);
    let largest = properties.largest_allocation.min(vulkan.wgpu_device.limits().max_buffer_size);
    found.largest_allocation = Some(largest / GRANULE * GRANULE);
    found.total_memory = vulkan.total_memory();
    found.uuid = Some(properties.uuid).filter(|uuid| *uuid != [0; 16]);
    found.driver = format!("Vulkan ({} {})", info.driver, info.driver_info);
    let kinds = [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped];
    found.kinds = kinds.into_iter().filter(|kind| vulkan.has(*kind)).collect();
    DeviceState::new(Arc::new(vulkan), found)
}

#[cfg(test)]
mod tests {
    use transload_core::{DeviceId, Error, ErrorKind};

    #[test]
    fn adapter_that_fails_to_open_is_left_out_alone() {
        let open = |name: &&str, id: DeviceId| match *name {
            "broken" => Err(Error::new(ErrorKind::Device, "its driver fails")),
            name => Ok((name.to_owned(), id)),
        };
        let (opened, reasons) = super::open_each(["one", "broken", "two"], open);
        let named = |name: &str, ordinal| (name.to_owned(), DeviceId::Wgpu(ordinal));
        assert_eq!(opened, [named("one", 0), named("two", 1)]);
        assert_eq!(reasons.len(), 1);
    }
}
