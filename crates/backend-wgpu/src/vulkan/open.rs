//! Opens a device on an adapter, or takes one that its user made.

use std::sync::{Arc, OnceLock, atomic::AtomicBool};

use parking_lot::Mutex;
use transload_core::{DeviceId, DeviceInfo, Error, ErrorKind, MemoryKind, Result, mutant};
use wgpu::hal;

use super::{
    DeviceState, Properties, Vulkan, VulkanQueue,
    blocks::Blocks,
    create::{copy_queues, copy_queues_of, create, not_vulkan},
    gate,
    handles::lost_flag,
    memory::GRANULE,
    types::{can_map_device, visible_types},
};
use crate::{
    config::AdoptedDevice,
    open::{descriptor, report_errors},
};

/// Loads Vulkan, which says more than wgpu if it cannot.
///
/// # Errors
/// [`ErrorKind::NoDriver`] if there is no Vulkan loader.
pub(crate) fn find_loader() -> Result<()> {
    // SAFETY: loading the system's Vulkan loader runs its initialisers, which are trusted like those of any driver.
    let entry = unsafe { ash::Entry::load() };
    entry
        .map(drop)
        .map_err(|error| Error::caused_by(ErrorKind::NoDriver, "no Vulkan loader was found", error))
}

/// Returns an adapter's UUID, or zeros.
pub(crate) fn uuid(adapter: &wgpu::Adapter) -> [u8; 16] {
    // SAFETY: nothing is destroyed.
    let lower = unsafe { adapter.as_hal::<hal::api::Vulkan>() };
    let found = lower.map(|lower| Properties::of(lower.shared_instance(), lower.raw_physical_device()));
    found.and_then(Result::ok).map_or([0; 16], |found| found.uuid)
}

/// Opens a device of ours, with the adapter's limits and those of its features that WebGPU has. wgpu's errors become events: its default
/// handler panics.
pub(crate) fn open(adapter: &wgpu::Adapter, id: DeviceId) -> Result<Arc<DeviceState>> {
    let copies = copy_queues(adapter)?;
    let (device, queue) = create(adapter, &descriptor(adapter), &[], &copies)?;
    report_errors(&device, id);
    let lost = lost_flag(&device);
    make(id, device, queue, lost, true)
}

/// Takes a device of a framework. Its handlers stay in place.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if it is not Vulkan's, before 1.2, or if wgpu's queue was to be locked and is not;
/// [`ErrorKind::InvalidArgument`] for the queue of another device; the driver's.
pub(crate) fn adopt(given: &AdoptedDevice, id: DeviceId) -> Result<Arc<DeviceState>> {
    let AdoptedDevice { device, queue, is_foreign } = given;
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
    let state = make(id, device.clone(), queue.clone(), Arc::<AtomicBool>::default(), false)?;
    gate::show(state.queue.queue.raw, state.copiers.iter().map(|line| &line.queue));
    Ok(state)
}

/// How many queues a transfer is spread over: while one begins the next copy, which takes it some 10 µs on an H200, the other copies.
const COPY_QUEUES: usize = 2;

/// Makes the state of a device of wgpu, of which nobody else knows the queue if it `is_own`.
fn make(
    id: DeviceId,
    wgpu_device: wgpu::Device,
    wgpu_queue: wgpu::Queue,
    wgpu_lost: Arc<AtomicBool>,
    is_own: bool,
) -> Result<Arc<DeviceState>> {
    let info = wgpu_device.adapter_info();
    // SAFETY: nothing is destroyed; the copied handles are used while `wgpu_device` lives, which `Vulkan` keeps.
    let lower = unsafe { wgpu_device.as_hal::<hal::api::Vulkan>() }.ok_or_else(not_vulkan)?;
    let physical = lower.raw_physical_device();
    let properties = Properties::of(lower.shared_instance(), physical)?;
    let instance = lower.shared_instance().raw_instance().clone();
    let raw = lower.raw_device().clone();
    let queue = VulkanQueue { raw: lower.raw_queue(), family: lower.queue_family_index() };
    let exports_semaphores =
        lower.enabled_device_extensions().contains(&ash::khr::external_semaphore_fd::NAME)
            && properties.exports_semaphores;
    let reads_clock = lower.enabled_device_extensions().contains(&ash::ext::calibrated_timestamps::NAME)
        && properties.reads_clock;
    drop(lower);
    // SAFETY: the physical device is one of the instance, which the device keeps.
    let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
    // SAFETY: likewise.
    let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
    let has_clock =
        families.get(queue.family as usize).is_some_and(|family| family.timestamp_valid_bits == 64);
    let is_locked = gate::is_guarded(&raw);
    let of_copies = |(family, index)| {
        // SAFETY: such a device was made with these queues.
        VulkanQueue { raw: unsafe { raw.get_device_queue(family, index) }, family }
    };
    // Without a lock it was not made by this folder.
    let copy_queues = if !is_locked || mutant!("wgpu/shared-device-copies") && !is_own {
        Vec::new()
    } else {
        match &*copy_queues_of(&instance, physical) {
            [] => vec![queue; COPY_QUEUES],
            found => found.iter().copied().map(of_copies).collect(),
        }
    };
    let is_host = matches!(info.device_type, wgpu::DeviceType::Cpu | wgpu::DeviceType::IntegratedGpu);
    let vulkan = Vulkan {
        id,
        blocks: Blocks::new(&instance, &raw, physical),
        calibrated: reads_clock.then(|| ash::ext::calibrated_timestamps::Device::new(&instance, &raw)),
        is_locked,
        is_shared: !is_own,
        raw,
        instance,
        physical,
        queue,
        copy_queues,
        memory,
        exports_semaphores,
        is_host,
        maps_device: is_host && can_map_device(&memory),
        // What others submit to their device is not known.
        stored_types: if is_own { visible_types(&memory) } else { 0 },
        has_budget: properties.has_budget,
        largest_bound: properties.largest_bound,
        nanoseconds_per_tick: has_clock.then_some(properties.nanoseconds_per_tick),
        wgpu_lost,
        wgpu_thread: Mutex::default(),
        lost: OnceLock::new(),
        foreign_signals: Mutex::default(),
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
