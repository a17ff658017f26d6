//! Core's conformance suite on one device, simulated or real, and on two.

use std::{sync::Arc, time::Instant};

use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    DeviceId,
    conformance::{self, Subject, Verdict},
};
use transload_cuda_sim::harness::{self, TestDevice};

/// Runs the suite on the first of the devices; each check is printed, so that what was executed can be counted.
fn keeps_every_promise(tests: &[TestDevice]) {
    let config = CudaBackendConfig::default().with_devices(tests.iter().map(TestDevice::ordinal));
    let backend = CudaBackend::open(&config).unwrap();
    let subject = Subject::new(
        Arc::clone(&backend) as _,
        DeviceId::Cuda(tests[0].ordinal()),
        CpuBackend::new().unwrap(),
    );
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
    let simulated = if tests[0].is_simulated() { " (simulated)" } else { "" };
    println!("{} devices{simulated}: {outcome}", tests.len());
    assert!(outcome.is_ok(), "{outcome}");
    drop((subject, backend));
    for test in tests {
        test.assert_no_live_objects();
        test.assert_no_races();
    }
}

#[test]
fn a_device_keeps_every_promise_of_a_backend() {
    keeps_every_promise(&[harness::device()]);
}

#[test]
fn a_device_beside_another_keeps_every_promise_of_a_backend() {
    if let Some(tests) = harness::devices(2) {
        keeps_every_promise(&tests);
    }
}
