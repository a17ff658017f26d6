//! Discovery: what is there, and the error where nothing is.

use std::{env, process::Command};

use transload_backend_wgpu::{WgpuBackend, WgpuBackendConfig, wgpu};
use transload_core::{Backend, DeviceId, Error, ErrorKind, MemoryKind};

use crate::{
    framework::{adapter, tested},
    setup,
};

/// Set in the child.
pub(crate) const CHILD: &str = "TRANSLOAD_TEST_CHILD";

/// Runs a test alone in a process whose loader reads these variables when it is first used.
fn alone(test: &str, variables: &[(&str, &std::ffi::OsStr)]) {
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).envs(variables.iter().copied()).env(CHILD, "1");
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn assert_says_what_to_install(error: &Error) {
    for word in ["install", "mesa-vulkan-drivers", "libvulkan1"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn without_a_loader_the_error_says_what_to_install() {
    if env::var_os(CHILD).is_none() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libvulkan.so.1"), "no library").unwrap();
        return alone(
            "adapters::without_a_loader_the_error_says_what_to_install",
            &[("LD_LIBRARY_PATH", folder.path().as_os_str())],
        );
    }
    let config = WgpuBackendConfig::default().with_software_adapters().with_apis(wgpu::Backends::VULKAN);
    let error = WgpuBackend::open(&config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoDriver, "{error:?}");
    assert_says_what_to_install(&error);
}

#[test]
fn without_an_adapter_the_error_says_what_to_install() {
    if env::var_os(CHILD).is_none() {
        let none = std::ffi::OsStr::new("/nonexistent.json");
        return alone(
            "adapters::without_an_adapter_the_error_says_what_to_install",
            &[("VK_DRIVER_FILES", none), ("VK_ICD_FILENAMES", none)],
        );
    }
    let config = WgpuBackendConfig::default().with_software_adapters();
    let error = WgpuBackend::open(&config.clone().with_apis(wgpu::Backends::VULKAN)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice), "{error:?}");
    assert_says_what_to_install(&error);
    // Another API is used then.
    match WgpuBackend::open(&config) {
        Ok(backend) => assert!(!backend.devices()[0].driver.starts_with("Vulkan"), "{backend:?}"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoDevice, "{error}");
            assert!(error.to_string().contains("libvulkan1); "), "{error}");
        }
    }
}

#[test]
fn apis_of_other_platforms_are_an_error() {
    let config = WgpuBackendConfig::default().with_apis(wgpu::Backends::BROWSER_WEBGPU);
    let error = WgpuBackend::open(&config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("has Vulkan and "), "{error}");
}

#[test]
fn software_adapters_are_used_on_request_only() {
    let Some(setup) = setup() else { return };
    let all = setup.backend.devices();
    match WgpuBackend::open(&WgpuBackendConfig::default().with_apis(wgpu::Backends::VULKAN)) {
        Ok(backend) => assert!(backend.devices().len() <= all.len()),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoDevice);
            assert!(error.to_string().contains("with_software_adapters"), "{error}");
            assert!(all.iter().all(|info| error.to_string().contains(&info.name)), "{error}");
        }
    }
}

#[test]
fn devices_are_numbered_in_the_same_order_each_time() {
    let Some(setup) = setup() else { return };
    let again = WgpuBackend::open(&tested().0).unwrap();
    assert_eq!(setup.backend.devices(), again.devices());
    for (ordinal, info) in (0..).zip(again.devices()) {
        assert_eq!(info.id, DeviceId::Wgpu(ordinal));
        assert!(
            info.total_memory.is_some_and(|bytes| bytes > 0) && info.driver.starts_with("Vulkan"),
            "{info:?}"
        );
        assert!(info.kinds.contains(&MemoryKind::Device), "{info:?}");
    }
}

/// wgpu's defaults are 256 MiB a buffer, and eight of them in a shader.
#[test]
fn devices_have_the_limits_of_their_adapters() {
    let (Some(setup), Some(adapter)) = (setup(), adapter()) else { return };
    let device = setup.backend.device(setup.device).unwrap();
    if device.adapter_info().name != adapter.get_info().name {
        return println!("skipped: two adapters come last");
    }
    assert_eq!(device.limits(), adapter.limits());
    assert!(device.features().contains(adapter.features() & wgpu::Features::all_webgpu_mask()));
    let info = setup.backend.devices().pop().unwrap();
    let most = info.largest_allocation.unwrap();
    assert!(most <= adapter.limits().max_buffer_size && most > wgpu::Limits::default().max_buffer_size);
}

/// Threads that called a driver may end after the backend is dropped.
#[cfg(target_os = "linux")]
#[test]
fn drivers_stay_loaded_after_the_last_backend() {
    const THIS: &str = "adapters::drivers_stay_loaded_after_the_last_backend";
    if env::var_os(CHILD).is_none() {
        // No other test has an instance there.
        return alone(THIS, &[]);
    }
    let loaded = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libraries = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
        let drivers = libraries.filter(|path| path.contains("vulkan") || path.contains("nvidia"));
        drivers.map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    let Some(setup) = setup() else { return };
    let before = loaded();
    drop(setup);
    assert!(!before.is_empty() && before.is_subset(&loaded()), "{before:?}");
}
