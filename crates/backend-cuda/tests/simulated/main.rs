//! Core's conformance suite on devices that only the software driver has, and under many orders of execution.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod lost;
#[path = "../it/serving.rs"]
#[allow(dead_code, reason = "shared with the tests of any driver")]
mod serving;
mod short_of_memory;

use std::sync::Arc;

use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    DeviceId, MemoryKind,
    conformance::{self, Outcome, Subject},
};
use transload_cuda_sim::{LiveObjects, SimDevice, SimDeviceBuilder, harness::Checked};

/// Runs the suite on the first of the devices.
fn suite(sims: &[Checked], seed: u64, budget: usize) -> Outcome {
    let config = CudaBackendConfig::default().with_devices(sims.iter().map(|sim| sim.ordinal()));
    let backend = CudaBackend::open(&config).unwrap();
    let device = DeviceId::Cuda(sims[0].ordinal());
    let mut subject = Subject::new(Arc::clone(&backend) as _, device, CpuBackend::new().unwrap());
    (subject.seed, subject.budget_bytes) = (seed, budget);
    let outcome = conformance::backend(&subject);
    drop(subject);
    println!("seed {seed}, simulated: {outcome}");
    assert!(outcome.is_ok(), "{outcome}");
    drop(backend);
    // At once: the devices' own check would find what was left to other reclaimers.
    for sim in sims {
        let live = sim.live_objects();
        // A thread of its own frees the words by which streams wait for the host's work, and lets go of their context.
        let (contexts, pinned) = (live.contexts.min(1), live.pinned.min(1));
        let of_words = LiveObjects { contexts, pinned, ..LiveObjects::default() };
        assert!(live == of_words, "seed {seed}: {live}");
    }
    outcome
}

fn builder() -> SimDeviceBuilder {
    transload_cuda_sim::install().unwrap();
    SimDevice::builder().record_accesses(true)
}

fn build(properties: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder) -> Checked {
    properties(builder()).checked()
}

fn skipped(outcome: &Outcome) -> Vec<&str> {
    outcome.not_applicable().map(|(name, _)| name).collect()
}

#[test]
fn a_device_without_managed_memory_keeps_every_promise() {
    let sim = build(|builder| builder.managed_memory(false));
    let outcome = suite(&[sim], 11, 64 << 20);
    assert!(skipped(&outcome).contains(&"prefetch"));
}

#[test]
fn a_device_from_before_pascal_keeps_every_promise() {
    let sim = build(SimDeviceBuilder::pre_pascal);
    let outcome = suite(&[sim], 12, 64 << 20);
    // Its managed memory is not for two at a time, so it cannot be prefetched.
    assert!(skipped(&outcome).contains(&"prefetch"));
}

#[test]
fn a_device_without_memory_pools_keeps_every_promise() {
    let outcome = suite(&[build(|builder| builder.memory_pools(false))], 13, 64 << 20);
    assert_eq!(skipped(&outcome), ["peers", "held-fences"]);
}

#[test]
fn devices_that_are_no_peers_keep_every_promise() {
    let sims = [build(SimDeviceBuilder::no_peers), build(SimDeviceBuilder::no_peers)];
    let outcome = suite(&sims, 14, 64 << 20);
    assert!(skipped(&outcome).contains(&"peers"));
}

#[test]
fn small_device_with_one_engine_keeps_every_promise() {
    let sim = build(|builder| builder.total_memory(96 << 20).copy_engines(1).stream_priorities(0, 0));
    let outcome = suite(&[sim], 15, 32 << 20);
    assert_eq!(skipped(&outcome), ["peers", "held-fences"]);
}

#[test]
fn peers_that_corrupt_are_found_by_the_suite() {
    let sims = [build(SimDeviceBuilder::corrupt_peer_copies), build(SimDeviceBuilder::corrupt_peer_copies)];
    let config = CudaBackendConfig::default().with_devices(sims.iter().map(|sim| sim.ordinal()));
    let backend = CudaBackend::open(&config).unwrap();
    let subject = Subject::new(backend, DeviceId::Cuda(sims[0].ordinal()), CpuBackend::new().unwrap());
    let failed: Vec<_> = conformance::backend(&subject).failures().map(|failure| failure.check).collect();
    assert_eq!(failed, ["peers"]);
}

fn under_seeds(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let sim = build(|builder| builder.seed(seed));
        // Little memory: what differs between seeds is order.
        let outcome = suite(&[sim], seed, 2 << 20);
        assert_eq!(skipped(&outcome), ["peers", "held-fences"]);
    }
}

#[test]
fn ten_orders_of_execution_change_nothing() {
    under_seeds(0..10);
}

#[test]
fn ten_more_orders_of_execution_change_nothing() {
    under_seeds(10..20);
}

#[test]
fn each_kind_of_memory_is_part_of_it() {
    let sim = build(|builder| builder);
    let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
    let info = transload_core::Backend::devices(&*CudaBackend::open(&config).unwrap());
    for kind in [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Unified] {
        assert!(info[0].kinds.contains(&kind));
    }
}
