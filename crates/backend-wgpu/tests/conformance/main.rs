//! Core's conformance suite passes on every Vulkan adapter of the machine, such as Mesa's lavapipe.

// Clippy's allowance for tests does not reach their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]
#![cfg(any(target_os = "linux", windows))]

use std::{sync::Arc, time::Instant};

use transload_backend_cpu::CpuBackend;
use transload_backend_wgpu::{WgpuBackend, WgpuBackendConfig};
use transload_core::{
    Backend, ErrorKind,
    conformance::{self, Subject, Verdict},
};

/// Checks of what this backend does not offer.
const NOT_OFFERED: [&str; 12] = [
    "prefetch",
    "in-place",
    "casts",
    "peers",
    "sharing",
    "recordings",
    "held-fences",
    "durations",
    "stamps",
    "records",
    "sampling",
    "sinks",
];

#[test]
fn every_adapter_keeps_every_promise_of_a_backend() {
    let backend = match WgpuBackend::open(&WgpuBackendConfig::default().with_software_adapters()) {
        Ok(backend) => backend,
        Err(error) if matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice) => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    for device in backend.devices() {
        println!("{} is {} with {}", device.id, device.name, device.driver);
        let subject = Subject::new(Arc::clone(&backend) as _, device.id, CpuBackend::new().unwrap());
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
        // Whether the driver tells how much memory is free depends on it.
        let skipped: Vec<_> =
            outcome.not_applicable().map(|(name, _)| name).filter(|name| *name != "memory-info").collect();
        assert_eq!(skipped, NOT_OFFERED);
    }
}
