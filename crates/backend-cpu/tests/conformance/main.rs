//! Core's conformance suite passes on the CPU backend, and fails on faulty ones.

// Clippy's allowance for tests does not reach their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod faulty;
mod mutants;

use std::{sync::Arc, time::Duration};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId,
    conformance::{self, Outcome, Subject},
};

fn cpu(workers: usize, parallel_from: usize) -> Arc<dyn Backend> {
    CpuBackend::builder().workers(workers).parallel_from(parallel_from).build().unwrap()
}

fn run(backend: Arc<dyn Backend>, seed: u64, wake_timeout: Duration) -> Outcome {
    let mut subject = Subject::new(Arc::clone(&backend), DeviceId::Cpu, backend);
    (subject.seed, subject.wake_timeout) = (seed, wake_timeout);
    conformance::backend(&subject)
}

#[test]
fn the_cpu_backend_keeps_every_promise() {
    for (seed, workers, parallel_from) in [(1, 1, usize::MAX), (2, 2, 4 << 20), (3, 3, 1 << 20), (4, 8, 1)] {
        let outcome = run(cpu(workers, parallel_from), seed, Duration::from_secs(30));
        println!("{workers} workers, seed {seed}: {outcome}");
        assert!(outcome.is_ok(), "{outcome}");
        let skipped: Vec<_> = outcome.not_applicable().map(|(name, _)| name).collect();
        let mut expected = vec!["device-bytes", "prefetch", "in-place", "peers", "recordings"];
        if !cfg!(any(target_os = "linux", windows)) {
            // Not known how to ask there.
            expected.insert(0, "memory-info");
        }
        assert_eq!(skipped, expected);
        assert_eq!(outcome.passed() + skipped.len(), conformance::CHECKS.len());
    }
}

#[test]
fn smallest_budget_fails_no_good_backend() {
    for seed in 1..4 {
        let backend = cpu(2, 1 << 20);
        let mut subject = Subject::new(Arc::clone(&backend), DeviceId::Cpu, backend);
        (subject.seed, subject.budget_bytes) = (seed, 0);
        let outcome = conformance::backend(&subject);
        assert!(outcome.is_ok(), "{outcome}");
    }
}

#[test]
fn backend_with_own_pool_passes() {
    let (backend, host) = (cpu(2, 1 << 20), cpu(1, usize::MAX));
    let subject = Subject::new(backend, DeviceId::Cpu, host);
    let outcome = conformance::run_all(&subject, |check, result| println!("{}: {result:?}", check.name));
    assert!(outcome.is_ok(), "{outcome}");
}

#[test]
fn checks_have_unique_names_and_promises() {
    let mut names: Vec<_> = conformance::CHECKS.iter().map(|check| check.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), conformance::CHECKS.len());
    assert!(conformance::CHECKS.iter().all(|check| !check.promise.is_empty()));
}
