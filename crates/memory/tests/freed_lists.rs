//! Lists that kernels read are freed by one thread of the device. A process of its own: it counts threads and defers frees.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use transload_cuda_sim::SimDevice;
use transload_memory::{CudaDevice, FreeDeferral};

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// Waits for what another thread does soon.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        thread::yield_now();
    }
}

#[test]
fn any_number_of_dropped_lists_is_freed_by_one_thread() {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().build();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let context = device.context().unwrap().clone();
    let list = |index: u64| device.lists().fixed(&context, &[[index; 3]]).unwrap();
    let without = threads();
    for round in 0..2 {
        let lists: Vec<_> = (0..20).map(list).collect();
        assert_eq!(sim.live_objects().pinned, 20);
        let deferral = FreeDeferral::begin();
        let before = threads();
        drop(lists);
        assert_eq!(threads(), before, "a drop starts a thread, or fails to");
        assert_eq!(
            (sim.live_objects().pinned, before),
            (20, without + 1),
            "frees are put off, round {round}"
        );
        drop(deferral);
        until("lists stay allocated", || sim.live_objects().pinned == 0);
        until("the thread stays", || threads() == without);
    }
}
