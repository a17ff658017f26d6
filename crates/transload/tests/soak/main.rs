//! Random work of many threads over every kind of memory, compared with a model: on the software driver, and with
//! `TRANSLOAD_TEST_DRIVER=real` on a machine's first one or two devices.
//!
//! `TRANSLOAD_TEST_ROUNDS` multiplies the number of operations (250 make a million), `TRANSLOAD_SIM_SEED` chooses others. Both
//! seed and counts are printed.
#![cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod cells;
mod owned;
mod random;
mod watchdog;
mod worker;

use std::{sync::Arc, thread, time::Instant};

use transload::{
    CrossBackendTransferManager, DeviceId, MemoryKind,
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig},
};
use transload_cuda_sim::harness::{self, EndCheck, TestDevice};
use transload_cuda_sys::{Context, Device};

use crate::{cells::Cells, watchdog::Watchdog, worker::Worker};

/// Operations of all threads per round.
const OPERATIONS: u64 = 4000;

/// The machine that all threads share.
pub(crate) struct Machine {
    pub(crate) manager: CrossBackendTransferManager,
    /// Available memory: kind, and the device that allocates it.
    pub(crate) kinds: Vec<(DeviceId, MemoryKind)>,
}

impl Machine {
    fn over(tests: &[TestDevice]) -> Self {
        let manager = CrossBackendTransferManager::new();
        manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        let ordinals = tests.iter().map(TestDevice::ordinal);
        let config = CudaBackendConfig::default().with_devices(ordinals);
        manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
        let mut kinds = vec![(DeviceId::Cpu, MemoryKind::Pageable)];
        for info in manager.devices().iter().filter(|info| !info.id.is_cpu()) {
            let known = [MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Device, MemoryKind::Unified];
            kinds.extend(
                known.into_iter().filter(|kind| info.kinds.contains(kind)).map(|kind| (info.id, kind)),
            );
        }
        Self { manager, kinds }
    }
}

/// Two devices if present.
fn devices(records_accesses: bool) -> Vec<TestDevice> {
    if harness::is_real() {
        let present = transload_cuda_sys::Driver::get().and_then(|driver| driver.device_count()).unwrap();
        return harness::devices(present.min(2)).unwrap();
    }
    // The access list grows with every operation: keep it only for few operations.
    let device = || harness::device_with(|builder| builder.record_accesses(records_accesses)).unwrap();
    vec![device(), device()]
}

/// Bytes that a driver may keep after use: modules, pools of its own.
const DRIVERS_OWN: usize = 256 << 20;

/// Free memory of each device, in contexts that stay alive.
fn free(contexts: &[Context]) -> Vec<usize> {
    contexts.iter().map(|context| context.memory_info().unwrap().0).collect()
}

#[test]
fn random_work_over_all_kinds_of_memory_agrees_with_a_model() {
    let rounds = harness::rounds();
    let seed = transload_cuda_sim::seed();
    let tests = devices(rounds == 1);
    // Live objects and races of software drivers; on real ones, the handles that this process created and did not
    // destroy.
    let checks: Vec<EndCheck> = tests.iter().map(TestDevice::end_check).collect();
    let contexts: Vec<Context> =
        tests.iter().map(|test| Device::new(test.ordinal()).and_then(Context::primary).unwrap()).collect();
    let before = free(&contexts);
    let threads = if harness::is_real() { 8 } else { 4 };
    let each = OPERATIONS * u64::from(rounds) / threads;
    let machine = Arc::new(Machine::over(&tests));
    println!(
        "soak: seed {seed}, {threads} threads of {each} operations, {} kinds of memory",
        machine.kinds.len()
    );
    let cells = Arc::new(Cells::new(&machine));
    let watchdog = Watchdog::new(threads);
    let begun = Instant::now();
    let running: Vec<_> = (0..threads)
        .map(|thread| {
            let (machine, cells, watch) = (Arc::clone(&machine), Arc::clone(&cells), watchdog.watch(thread));
            let work = move || Worker::new(&machine, &cells, seed, thread, watch).run(each);
            thread::Builder::new().name(format!("soak-{thread}")).spawn(work).unwrap()
        })
        .collect();
    watchdog.wait();
    let counts: Vec<_> = running.into_iter().map(|thread| thread.join().unwrap()).collect();
    let total: u64 = counts.iter().map(|count| count.operations).sum();
    let busy: u64 = counts.iter().map(|count| count.busy).sum();
    println!(
        "soak: {total} operations in {:.1} s, {busy} of them refused as busy",
        begun.elapsed().as_secs_f64()
    );
    assert_eq!(total, each * threads);
    drop(cells);
    let machine = Arc::into_inner(machine).unwrap();
    watchdog::within_a_minute("draining", move || {
        machine.manager.drain().unwrap();
        for (name, ledger) in machine.manager.resource_counts() {
            assert!(ledger.is_empty(), "{name}: {ledger} (seed {seed})");
        }
        drop(machine);
        // Leaks that are not handles show in the free memory.
        let after = free(&contexts);
        println!("soak: free memory before {before:?}, after {after:?}");
        let own = if harness::is_real() { DRIVERS_OWN } else { 0 };
        for (before, after) in before.iter().zip(&after) {
            assert!(after + own >= *before, "{before} bytes were free before, {after} are after");
        }
        drop((contexts, checks));
    });
}
