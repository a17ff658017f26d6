//! Core's conformance suite passes on every adapter of the machine, such as Mesa's lavapipe.

// Clippy's allowance for tests does not reach their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]
#![cfg(any(target_os = "linux", target_os = "macos", windows))]

#[cfg(any(target_os = "linux", windows))]
mod vulkan;

use std::{sync::Arc, time::Instant};

use transload_backend_cpu::CpuBackend;
use transload_backend_wgpu::{WgpuBackend, WgpuBackendConfig};
use transload_core::{
    Backend, ErrorKind,
    conformance::{self, Subject, Verdict},
};

/// Checks of what this backend does not offer.
const NOT_OFFERED: [&str; 5] = ["prefetch", "casts", "peers", "recordings", "held-fences"];
/// Checks of what some drivers do not offer: how much memory is free, timestamps of 64 bits, memory that is the host's. By wgpu alone, device memory
/// is not counted apart.
const BY_DRIVER: [&str; 9] = [
    "memory-info",
    "device-bytes",
    "durations",
    "stamps",
    "records",
    "record-kinds",
    "sampling",
    "sinks",
    "in-place",
];

/// Checks the devices of an API, or prints why there is none.
fn check_devices(config: WgpuBackendConfig) {
    let config = config.with_software_adapters();
    match WgpuBackend::open(&config) {
        Ok(backend) => check_all(&backend),
        Err(error) if matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice) => {
            let is_needed =
                config.apis.is_none() && std::env::var_os("TRANSLOAD_TEST_NEEDS_VULKAN").is_some();
            assert!(!is_needed, "{error}");
            println!("skipped: {error}");
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_adapter_keeps_every_promise_of_a_backend() {
    check_devices(WgpuBackendConfig::default());
}

#[cfg(any(target_os = "linux", windows))]
#[test]
fn every_adapter_by_wgpu_alone_keeps_every_promise_of_a_backend() {
    if std::env::var_os(vulkan::layer::LAYERS).is_some() {
        // All calls of Vulkan are wgpu's.
        return;
    }
    check_devices(WgpuBackendConfig::default().with_portable_vulkan());
}

#[cfg(any(target_os = "linux", windows))]
#[test]
fn every_adapter_of_opengl_or_dx12_keeps_every_promise_of_a_backend() {
    use transload_backend_wgpu::wgpu::Backends;

    if std::env::var_os(vulkan::layer::LAYERS).is_none() {
        let other = if cfg!(windows) { Backends::DX12 } else { Backends::GL };
        check_devices(WgpuBackendConfig::default().with_apis(other));
    }
}

fn check_all(backend: &Arc<WgpuBackend>) {
    for device in backend.devices() {
        println!("{} is {} with {}", device.id, device.name, device.driver);
        let subject = Subject::new(Arc::clone(backend) as _, device.id, CpuBackend::new().unwrap());
        let mut begun = Instant::now();
        let outcome = conformance::run_all(&subject, |check, result| {
            let verdict = match result {
                Ok(Verdict::Passed) => "passed".to_owned(),
                Ok(Verdict::NotApplicable(reason)) => format!("not applicable: {reason}"),
                Err(failure) => format!("FAILED: {failure}"),
            };
            println!("  {:<20} {verdict} ({:.0?})", check.name, begun.elapsed());
            begun = Instant::now();
        });
        println!("{outcome}");
        assert!(outcome.is_ok(), "{outcome}");
        let names = outcome.not_applicable().map(|(name, _)| name);
        let skipped: Vec<_> = names.filter(|name| !BY_DRIVER.contains(name)).collect();
        assert_eq!(skipped, NOT_OFFERED);
    }
}
