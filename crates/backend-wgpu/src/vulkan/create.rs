//! Makes devices of wgpu whose queue is used under a lock of ours.

use std::{error::Error as StdError, ffi::CStr, iter};

use ash::{google, khr, vk};
use transload_core::{Error, ErrorKind, Result};
use wgpu::hal;

use super::{Properties, error_of, gate};

/// The family of queues that wgpu uses.
const FAMILY: u32 = 0;

/// What surfaces need, and what needs that.
const SURFACES: [&CStr; 3] =
    [khr::swapchain::NAME, khr::swapchain_mutable_format::NAME, google::display_timing::NAME];

/// Opens a device for a framework, which this library may use at the same time: see
/// [`WgpuBackendConfig::with_device`](crate::WgpuBackendConfig::with_device). It is as wgpu opens it by this descriptor, except that:
///
/// - the queue is locked during each submission, the library's copies beneath wgpu included. So both submit from any thread, in the
///   order of the calls;
/// - where the driver has them, memory and semaphores can be exported, for `CudaInterop`;
/// - where the adapter has a family of queues that only copies, it has up to two of those, by which the library stages transfers;
/// - surfaces cannot be used with it, as wgpu's `present` would use the queue without the lock: `configure` ends the program.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for an adapter of another API than Vulkan, or of one before 1.2; [`ErrorKind::InvalidArgument`] for
/// features and limits that the adapter does not have; the driver's.
pub fn create_shared_device(
    adapter: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Result<(wgpu::Device, wgpu::Queue)> {
    let name = adapter.get_info().name;
    let invalid = |what: String| Err(Error::new(ErrorKind::InvalidArgument, format!("{name} {what}")));
    let wanted = descriptor.required_features;
    if !adapter.features().contains(wanted) {
        return invalid(format!("has not the features {}", wanted - adapter.features()));
    }
    let experimental = wanted & wgpu::Features::all_experimental_mask();
    if !experimental.is_empty() && !descriptor.experimental_features.is_enabled() {
        return invalid(format!("has these as experimental features only: {experimental}"));
    }
    let mut exceeded = None;
    let mut fail = |limit, wanted, most| exceeded = Some((limit, wanted, most));
    descriptor.required_limits.check_limits_with_fail_fn(&adapter.limits(), true, &mut fail);
    if let Some((limit, wanted, most)) = exceeded {
        return invalid(format!("has {most} as the limit `{limit}`, not {wanted}"));
    }
    let opened = copy_queues(adapter).and_then(|copies| create(adapter, descriptor, &SURFACES, &copies));
    opened.map_err(|error| {
        Error::caused_by(error.kind(), format!("{name}: its device cannot be opened"), error)
    })
}

/// Returns an adapter's [queues that only copy](copy_queues_of).
///
/// # Errors
/// [`ErrorKind::Unsupported`] for an adapter of another API than Vulkan, or before 1.2.
pub(super) fn copy_queues(adapter: &wgpu::Adapter) -> Result<Vec<(u32, u32)>> {
    // SAFETY: nothing is destroyed.
    let lower = unsafe { adapter.as_hal::<hal::api::Vulkan>() }.ok_or_else(not_vulkan)?;
    let (instance, physical) = (lower.shared_instance(), lower.raw_physical_device());
    Properties::of(instance, physical)?;
    Ok(copy_queues_of(instance.raw_instance(), physical))
}

/// Returns the queues of a family that does nothing but copy, at most two, each with the family and its index there. None if the host
/// cannot reset their timestamps, which such a family cannot. The same each time, so that all devices that this file makes have them.
pub(super) fn copy_queues_of(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Vec<(u32, u32)> {
    let mut resets = vk::PhysicalDeviceHostQueryResetFeatures::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut resets);
    // SAFETY: the physical device is one of the instance, and the structure is of Vulkan 1.2, which the device has.
    unsafe { instance.get_physical_device_features2(physical, &mut features) };
    if resets.host_query_reset == vk::FALSE {
        return Vec::new();
    }
    // SAFETY: the physical device is one of the instance.
    let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
    let also = vk::QueueFlags::SPARSE_BINDING | vk::QueueFlags::PROTECTED;
    let mut families = (0_u32..).zip(families).filter(|(_, family)| {
        family.queue_flags & !also == vk::QueueFlags::TRANSFER && family.timestamp_valid_bits == 64
    });
    let found = families.next().into_iter();
    found.flat_map(|(index, family)| (0..family.queue_count.min(2)).map(move |n| (index, n))).collect()
}

/// Opens a device, also with what exports memory and semaphores, and without the extensions in `left_out`. The adapter has the features
/// and the limits, and these queues of one family besides wgpu's.
///
/// # Errors
/// Those of [`create_shared_device`] but for features and limits.
pub(super) fn create(
    adapter: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
    left_out: &[&CStr],
    copies: &[(u32, u32)],
) -> Result<(wgpu::Device, wgpu::Queue)> {
    let exports = adapter.features() & wgpu::Features::VULKAN_EXTERNAL_MEMORY_FD;
    let descriptor = wgpu::DeviceDescriptor {
        required_features: descriptor.required_features | exports,
        ..descriptor.clone()
    };
    let failed = |error| Error::caused_by(ErrorKind::Device, "wgpu cannot open its device", error);
    let opened = {
        // SAFETY: nothing is destroyed.
        let lower = unsafe { adapter.as_hal::<hal::api::Vulkan>() }.ok_or_else(not_vulkan)?;
        let (instance, physical) = (lower.shared_instance(), lower.raw_physical_device());
        let properties = Properties::of(instance, physical)?;
        let wgpu::DeviceDescriptor { required_features, required_limits, memory_hints, .. } = &descriptor;
        // As wgpu opens it.
        let mut extensions = lower.required_device_extensions(*required_features);
        extensions.extend(properties.exports_semaphores.then_some(khr::external_semaphore_fd::NAME));
        extensions.extend(properties.reads_clock.then_some(ash::ext::calibrated_timestamps::NAME));
        // wgpu's barriers name the family 0 twice. Without this, that is not valid for buffers that queues of several families use.
        let synchronizes = !copies.is_empty()
            && lower.physical_device_capabilities().supports_extension(khr::synchronization2::NAME);
        extensions.extend(synchronizes.then_some(khr::synchronization2::NAME));
        let mut enabled = lower.physical_device_features(&extensions, *required_features);
        let of_family = |(family, _): (u32, u32)| {
            let priorities: &[f32] = if family == FAMILY { &[1.0] } else { &[1.0; 2][..copies.len().min(2)] };
            vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(priorities)
        };
        let wgpus = (FAMILY, 0);
        let queues: Vec<_> = iter::once(wgpus).chain(copies.first().copied()).map(of_family).collect();
        let names = extensions.iter().filter(|name| !left_out.contains(name));
        let names: Vec<_> = names.map(|name| name.as_ptr()).collect();
        let info =
            vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
        let info = enabled.add_to_device_create(info);
        let mut resets = vk::PhysicalDeviceHostQueryResetFeatures::default().host_query_reset(true);
        let info = if copies.is_empty() { info } else { info.push_next(&mut resets) };
        let mut second = vk::PhysicalDeviceSynchronization2Features::default().synchronization2(true);
        let info = if synchronizes { info.push_next(&mut second) } else { info };
        // SAFETY: the adapter supports the extensions and features, which it has to with these extensions.
        let raw = unsafe { instance.raw_instance().create_device(physical, &info, None) };
        let raw = raw.map_err(|result| error_of(adapter.get_info().name, "vkCreateDevice", result))?;
        // SAFETY: the device is new, and has the queues.
        let raw = unsafe { gate::guard(&raw, iter::once(wgpus).chain(copies.iter().copied())) };
        // SAFETY: it was made with these features, wgpu's queue, and these extensions except for those left out, whose functions are not
        // loaded then. wgpu destroys it.
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
    let opened = opened.map_err(|error| failed(Box::<dyn StdError + Send + Sync>::from(error)))?;
    // SAFETY: it was opened by this adapter, with the descriptor's features.
    let opened = unsafe { adapter.create_device_from_hal(opened, &descriptor) };
    opened.map_err(|error| failed(error.into()))
}

pub(super) fn not_vulkan() -> Error {
    Error::new(ErrorKind::Unsupported, "it is not one of Vulkan, but of another API")
}
