//! What a physical device has that wgpu does not tell.

use std::ffi::CStr;

use ash::{ext::calibrated_timestamps, khr, vk};
use transload_core::{Error, ErrorKind, Result};
use wgpu::hal::vulkan::InstanceShared;

use super::pieces::runs_pieces;

pub(super) struct Properties {
    pub(super) uuid: [u8; 16],
    pub(super) largest_allocation: u64,
    pub(super) has_budget: bool,
    /// Whether timeline semaphores can be exported. Some drivers export others only, or as other handles only.
    pub(super) exports_semaphores: bool,
    /// Whether the host can read the clock of its timestamps.
    pub(super) reads_clock: bool,
    pub(super) nanoseconds_per_tick: f64,
    /// Most bytes that a shader has bound as one buffer; 0 where the shader of lists cannot run.
    pub(super) largest_bound: u64,
}

impl Properties {
    /// # Errors
    /// [`ErrorKind::Unsupported`] before Vulkan 1.2; the driver's.
    pub(super) fn of(shared: &InstanceShared, physical: vk::PhysicalDevice) -> Result<Self> {
        let instance = shared.raw_instance();
        // SAFETY: the physical device is one of the instance.
        let core = unsafe { instance.get_physical_device_properties(physical) };
        let api = core.api_version.min(shared.instance_api_version());
        if api < vk::API_VERSION_1_2 {
            let (major, minor) = (vk::api_version_major(api), vk::api_version_minor(api));
            let text = format!("it has Vulkan {major}.{minor}; timeline semaphores need 1.2");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        // SAFETY: the physical device is one of the instance.
        let extensions = unsafe { instance.enumerate_device_extension_properties(physical) };
        let extensions = extensions
            .map_err(|result| super::error_of("it", "vkEnumerateDeviceExtensionProperties", result))?;
        let has = |name: &CStr| extensions.iter().any(|one| one.extension_name_as_c_str() == Ok(name));
        let mut id = vk::PhysicalDeviceIDProperties::default();
        let mut third = vk::PhysicalDeviceMaintenance3Properties::default();
        let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut id).push_next(&mut third);
        // SAFETY: the physical device is one of the instance, and both structures are of Vulkan 1.1.
        unsafe { instance.get_physical_device_properties2(physical, &mut all) };
        Ok(Self {
            uuid: id.device_uuid,
            largest_allocation: third.max_memory_allocation_size,
            has_budget: has(ash::ext::memory_budget::NAME),
            exports_semaphores: has(khr::external_semaphore_fd::NAME)
                && exports_timelines(instance, physical),
            reads_clock: has(calibrated_timestamps::NAME)
                && reads_clock(&calibrated_timestamps::Instance::new(shared.entry(), instance), physical),
            nanoseconds_per_tick: f64::from(core.limits.timestamp_period),
            largest_bound: if runs_pieces(&core.limits) {
                core.limits.max_storage_buffer_range.into()
            } else {
                0
            },
        })
    }
}

fn reads_clock(instance: &calibrated_timestamps::Instance, physical: vk::PhysicalDevice) -> bool {
    // SAFETY: the physical device is one of the instance, and has the extension.
    let clocks = unsafe { instance.get_physical_device_calibrateable_time_domains(physical) };
    clocks.is_ok_and(|clocks| clocks.contains(&vk::TimeDomainEXT::DEVICE))
}

fn exports_timelines(instance: &ash::Instance, physical: vk::PhysicalDevice) -> bool {
    let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
    let handle = vk::ExternalSemaphoreHandleTypeFlags::OPAQUE_FD;
    let info = vk::PhysicalDeviceExternalSemaphoreInfo::default().handle_type(handle).push_next(&mut kind);
    let mut found = vk::ExternalSemaphoreProperties::default();
    // SAFETY: the physical device is one of the instance, with Vulkan 1.2, which has the call and both structures.
    unsafe { instance.get_physical_device_external_semaphore_properties(physical, &info, &mut found) };
    found.external_semaphore_features.contains(vk::ExternalSemaphoreFeatureFlags::EXPORTABLE)
}
