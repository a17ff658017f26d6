//! Finds the adapters, and opens a device on each, or takes those that its user made.

use std::sync::{Arc, OnceLock};

use transload_core::{DeviceId, Error, ErrorKind, Result, events::report};
use wgpu::Backends;

#[cfg(any(target_os = "linux", windows))]
use crate::vulkan;
use crate::{WgpuBackendConfig, api::ApiDevice, config::AdoptedDevice, portable};

/// The APIs that wgpu has here, best first, with their names and what to install.
const APIS: &[(Backends, &str, &str)] = &[
    #[cfg(any(target_os = "linux", windows))]
    (
        Backends::VULKAN,
        "Vulkan",
        "install a Vulkan driver for the GPU (on Debian and Ubuntu, Mesa's are in mesa-vulkan-drivers, which also has one that needs \
         no GPU, and the loader is in libvulkan1)",
    ),
    #[cfg(target_os = "macos")]
    (Backends::METAL, "Metal", "each Mac since 2012 has Metal"),
    #[cfg(windows)]
    (Backends::DX12, "DX12", "install a driver for the GPU"),
    #[cfg(target_os = "linux")]
    (
        Backends::GL,
        "OpenGL",
        "install a driver with OpenGL ES 3.1 and EGL (on Debian and Ubuntu, libegl1 and libgl1-mesa-dri)",
    ),
];

/// Takes the devices of the configuration, in their order. Without any, opens a device on each adapter of the first API that has one,
/// in an order that is the same in every process. Adapters that cannot be used are left out, and reported as events.
///
/// # Errors
/// [`ErrorKind::NoDriver`] if there is no Vulkan loader, and nothing else is tried; [`ErrorKind::NoDevice`] without an adapter, or with
/// the reasons why none can be used; those of the devices of the configuration.
pub(crate) fn open_all(config: &WgpuBackendConfig) -> Result<Vec<Arc<dyn ApiDevice>>> {
    if !config.adopted.is_empty() {
        return (0..).zip(&config.adopted).map(|(n, given)| adopt(config, given, device_id(n))).collect();
    }
    let wanted = config.apis.unwrap_or(Backends::all());
    let mut errors = Vec::new();
    for (api, name, advice) in APIS.iter().filter(|(api, ..)| wanted.contains(*api)) {
        match open_adapters(config, *api, name, advice) {
            Ok(devices) => {
                for error in errors {
                    report::call_failed("an API of wgpu is left out", None, &error);
                }
                return Ok(devices);
            }
            Err(error) => errors.push(error),
        }
    }
    match &*errors {
        [only] => Err(only.clone()),
        [] => {
            let valid: Vec<_> = APIS.iter().map(|(_, name, _)| *name).collect();
            let text = format!("{wanted:?} is no API of this platform, which has {}", valid.join(" and "));
            Err(Error::new(ErrorKind::InvalidArgument, text))
        }
        all => {
            let all: Vec<_> = all.iter().map(ToString::to_string).collect();
            Err(Error::new(ErrorKind::NoDevice, all.join("; ")))
        }
    }
}

/// Opens a device on each adapter of an API.
fn open_adapters(
    config: &WgpuBackendConfig,
    api: Backends,
    name: &str,
    advice: &str,
) -> Result<Vec<Arc<dyn ApiDevice>>> {
    let advise = |error: Error| Error::new(error.kind(), format!("{error}; {advice}"));
    #[cfg(any(target_os = "linux", windows))]
    if api == Backends::VULKAN {
        vulkan::find_loader().map_err(advise)?;
    }
    let mut adapters = pollster::block_on(instance(api).enumerate_adapters(api));
    if adapters.is_empty() {
        let text = format!("wgpu finds no adapter of {name}");
        return Err(advise(Error::new(ErrorKind::NoDevice, text)));
    }
    adapters.sort_by_cached_key(order);
    let (opened, reasons) = open_each(adapters, |adapter, id| {
        let info = adapter.get_info();
        let opened = if info.device_type == wgpu::DeviceType::Cpu && !config.software_adapters {
            let text =
                "it runs on the processor, and is used with `WgpuBackendConfig::with_software_adapters` only";
            Err(Error::new(ErrorKind::Unsupported, text))
        } else {
            open(config, adapter, id)
        };
        opened.map_err(|error| Error::caused_by(error.kind(), info.name, error))
    });
    if opened.is_empty() {
        let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
        let text = format!("no adapter of {name} can be used: {}", reasons.join("; "));
        return Err(advise(Error::new(ErrorKind::NoDevice, text)));
    }
    for reason in reasons {
        report::call_failed("an adapter of wgpu is left out", None, &reason);
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
        match open(&adapter, device_id(ordinal)) {
            Ok(device) => opened.push(device),
            Err(error) => reasons.push(error),
        }
    }
    (opened, reasons)
}

fn device_id(ordinal: u32) -> DeviceId {
    if cfg!(target_os = "macos") { DeviceId::Metal(ordinal) } else { DeviceId::Wgpu(ordinal) }
}

fn open(config: &WgpuBackendConfig, adapter: &wgpu::Adapter, id: DeviceId) -> Result<Arc<dyn ApiDevice>> {
    #[cfg(any(target_os = "linux", windows))]
    if adapter.get_info().backend == wgpu::Backend::Vulkan && !config.is_portable {
        return Ok(vulkan::open(adapter, id)?);
    }
    let _ = config;
    Ok(portable::open(adapter, id)?)
}

/// Takes a device of a framework. Its handlers stay in place.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for a device of Vulkan before 1.2, or if wgpu's queue was to be locked and is not;
/// [`ErrorKind::InvalidArgument`] for the queue of another device; the driver's.
fn adopt(config: &WgpuBackendConfig, given: &AdoptedDevice, id: DeviceId) -> Result<Arc<dyn ApiDevice>> {
    let adopted = || -> Result<Arc<dyn ApiDevice>> {
        #[cfg(any(target_os = "linux", windows))]
        if given.device.adapter_info().backend == wgpu::Backend::Vulkan && !config.is_portable {
            // Its framework may destroy its own instance while threads of this library live on.
            let _kept = instance(Backends::VULKAN);
            return Ok(vulkan::adopt(given, id)?);
        }
        let _ = config;
        Ok(portable::adopt(given, id)?)
    };
    adopted().map_err(|error| {
        Error::caused_by(error.kind(), format!("the device given as {id} cannot be used"), error)
    })
}

/// Returns the instance for an API. One of the process is never destroyed: the last one that is unloads the drivers, and a thread that
/// called one crashes if it ends after that, since the driver's destructors of thread-local values are gone (gfx-rs/wgpu, issue 246).
fn instance(api: Backends) -> wgpu::Instance {
    static VULKAN: OnceLock<wgpu::Instance> = OnceLock::new();
    static OTHER: OnceLock<wgpu::Instance> = OnceLock::new();
    let new = || {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = api;
        // Neither layers nor labels, whatever the profile. Indirect arguments are checked, since safe code could pass any.
        descriptor.flags = wgpu::InstanceFlags::VALIDATION_INDIRECT_CALL;
        wgpu::Instance::new(descriptor)
    };
    let kept = if api == Backends::VULKAN { &VULKAN } else { &OTHER }.get_or_init(new);
    // An instance of OpenGL has one context, and wgpu panics where two threads use it by two adapters.
    if api == Backends::GL { new() } else { kept.clone() }
}

/// Returns what adapters are sorted by.
fn order(adapter: &wgpu::Adapter) -> impl Ord + use<> {
    #[cfg(any(target_os = "linux", windows))]
    let uuid = vulkan::uuid(adapter);
    #[cfg(target_os = "macos")]
    let uuid = [0_u8; 16];
    rank(adapter.get_info(), uuid)
}

/// Returns what adapters of this description and UUID, if any, are sorted by.
fn rank(info: wgpu::AdapterInfo, uuid: [u8; 16]) -> (u8, [u8; 16], String, String) {
    let rank = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    };
    (rank, uuid, info.device_pci_bus_id, info.name)
}

/// Describes a device of ours, with the adapter's limits and those of its features that WebGPU has.
pub(crate) fn descriptor(adapter: &wgpu::Adapter) -> wgpu::DeviceDescriptor<'static> {
    wgpu::DeviceDescriptor {
        required_limits: adapter.limits(),
        required_features: adapter.features() & wgpu::Features::all_webgpu_mask(),
        ..wgpu::DeviceDescriptor::default()
    }
}

/// Has wgpu's errors become events: its default handler panics.
pub(crate) fn report_errors(device: &wgpu::Device, id: DeviceId) {
    device.on_uncaptured_error(Arc::new(move |error| {
        let error = Error::caused_by(ErrorKind::Device, "wgpu reported an error", error);
        report::call_failed("its handles are invalid", id, &error);
    }));
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
        let named = |name: &str, ordinal| (name.to_owned(), super::device_id(ordinal));
        assert_eq!(opened, [named("one", 0), named("two", 1)]);
        assert_eq!(reasons.len(), 1);
    }

    #[test]
    fn adapters_are_in_one_order_however_they_are_found() {
        use wgpu::DeviceType::{Cpu, DiscreteGpu, IntegratedGpu};

        let adapter = |device_type, uuid: u8, bus: &str, name: &str| {
            let mut info = wgpu::AdapterInfo::new(device_type, wgpu::Backend::Vulkan);
            (info.device_pci_bus_id, info.name) = (bus.to_owned(), name.to_owned());
            (info, [uuid; 16])
        };
        // By kind, then by UUID, and without one by bus and name.
        let sorted = [
            adapter(DiscreteGpu, 0, "0000:01:00.0", "one of two"),
            adapter(DiscreteGpu, 0, "0000:02:00.0", "one of two"),
            adapter(DiscreteGpu, 3, "0000:09:00.0", "named"),
            adapter(DiscreteGpu, 7, "0000:03:00.0", "named"),
            adapter(IntegratedGpu, 1, "", "a"),
            adapter(Cpu, 0, "", "llvmpipe"),
            adapter(Cpu, 0, "", "swiftshader"),
        ];
        let names = |all: &[(wgpu::AdapterInfo, [u8; 16])]| {
            let name = |(info, uuid): &(wgpu::AdapterInfo, [u8; 16])| {
                (info.device_pci_bus_id.clone(), info.name.clone(), uuid[0])
            };
            all.iter().map(name).collect::<Vec<_>>()
        };
        for turn in 0..sorted.len() {
            for is_reversed in [false, true] {
                let mut found = sorted.clone();
                found.rotate_left(turn);
                if is_reversed {
                    found.reverse();
                }
                found.sort_by_cached_key(|(info, uuid)| super::rank(info.clone(), *uuid));
                assert_eq!(names(&found), names(&sorted));
            }
        }
    }
}
