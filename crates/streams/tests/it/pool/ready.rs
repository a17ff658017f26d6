//! Waiting for a ready stream: none is ready while all are busy, and a waiter sleeps until one is.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use transload_core::{Pattern, Queue, StreamPriority, WorkloadType};
use transload_cuda_sys::{Capture, CaptureMode};
use transload_streams::{AdvancedStreamPool, AllocationStrategy};

use crate::support::{
    gate::{Gate, limited},
    setup::Setup,
};

/// Long enough that only a hang reaches it.
const LONG: Duration = Duration::from_secs(60);

fn pool(setup: &Setup, streams: usize) -> AdvancedStreamPool {
    AdvancedStreamPool::new_with_strategy(&setup.device, streams, AllocationStrategy::LoadBalanced).unwrap()
}

#[test]
fn only_an_idle_stream_is_ready() {
    limited(|| {
        let setup = Setup::new();
        let pool = pool(&setup, 1);
        assert!(pool.has_ready_streams().unwrap(), "the first one can be made");
        assert_eq!(pool.streams(StreamPriority::Normal), 0, "asking makes none");
        let there = setup.device(64);
        let lease = pool.get_stream_for_workload(WorkloadType::Memory).unwrap();
        assert!(pool.has_ready_streams().unwrap(), "a lease alone is no work");
        let gate = Gate::before(&setup.device, &[&lease]);
        let fill = lease.memset_async(&there, Pattern::U8(1));
        drop(lease);
        assert!(!pool.has_ready_streams().unwrap());
        assert!(pool.wait_for_any_ready(Duration::ZERO).unwrap().is_none());
        gate.open();
        fill.wait().unwrap();
        assert!(pool.has_ready_streams().unwrap());
        assert!(pool.wait_for_any_ready(Duration::ZERO).unwrap().is_some());
        assert_eq!(pool.leases(), 0);
        drop((pool, there));
        setup.finish();
    });
}

#[test]
fn raw_work_makes_a_stream_busy_and_its_end_wakes() {
    limited(|| {
        let setup = Setup::new();
        let pool = pool(&setup, 1);
        let lease = pool.get_stream_for_workload(WorkloadType::Compute).unwrap();
        let gate = Gate::before(&setup.device, &[&lease]);
        assert_eq!(lease.outstanding(), 0, "the pool does not count raw work");
        assert!(!pool.has_ready_streams().unwrap());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.wait_for_any_ready(LONG).unwrap().is_some());
            let without_limit = scope.spawn(|| pool.wait_for_any_ready(None).unwrap().is_some());
            gate.open();
            assert!(waiting.join().unwrap() && without_limit.join().unwrap());
        });
        drop((lease, pool));
        setup.finish();
    });
}

#[test]
fn pool_below_its_bound_is_ready() {
    let setup = Setup::new();
    let pool = pool(&setup, 2);
    let lease = pool.get_stream_for_workload(WorkloadType::Memory).unwrap();
    let gate = Gate::before(&setup.device, &[&lease]);
    assert!(pool.has_ready_streams().unwrap());
    let other = pool.wait_for_any_ready(Duration::ZERO).unwrap().unwrap();
    assert_ne!(other.raw_handle(), lease.raw_handle());
    gate.open();
    let gate = Gate::before(&setup.device, &[&lease, &other]);
    assert!(!pool.has_ready_streams().unwrap(), "other priorities were never used");
    gate.open();
    drop((pool, lease, other));
    setup.finish();
}

#[test]
fn repeated_waits_with_timeout_end_and_leak_nothing() {
    limited(|| {
        let setup = Setup::new();
        let pool = pool(&setup, 1);
        let there = setup.device(64);
        let lease = pool.get_stream_for_workload(WorkloadType::Memory).unwrap();
        let gate = Gate::before(&setup.device, &[&lease]);
        let fill = lease.memset_async(&there, Pattern::U8(1));
        let begun = Instant::now();
        for _ in 0..20 {
            let timeout = Duration::from_millis(2);
            assert!(pool.wait_for_any_ready(timeout).unwrap().is_none());
        }
        assert!(begun.elapsed() >= Duration::from_millis(40), "each waited for its time");
        gate.open();
        fill.wait().unwrap();
        drop((lease, pool, there));
        setup.finish();
    });
}

#[test]
fn first_idle_stream_wakes_the_waiter() {
    limited(|| {
        let setup = Setup::new();
        let pool = pool(&setup, 3);
        let there = setup.device(64);
        let leases: Vec<_> =
            (0..3).map(|_| pool.get_stream_for_workload(WorkloadType::Memory).unwrap()).collect();
        let handles: Vec<_> = leases.iter().map(|lease| lease.raw_handle()).collect();
        let gate = Gate::before(&setup.device, &[&leases[0], &leases[2]]);
        let part = |n: usize| there.slice(n * 16..(n + 1) * 16).unwrap();
        let work: Vec<_> = (0..3).map(|n| leases[n].memset_async(&part(n), Pattern::U8(1))).collect();
        drop(leases);
        let ready = pool.wait_for_any_ready(LONG).unwrap().unwrap();
        assert_eq!(ready.raw_handle(), handles[1], "the others are held up");
        gate.open();
        drop(ready);
        work.into_iter().for_each(|work| drop(work.wait().unwrap()));
        drop((pool, there));
        setup.finish();
    });
}

#[test]
fn end_of_a_capture_wakes_the_waiter_although_others_are_busy() {
    limited(|| {
        let setup = Setup::new();
        let pool = pool(&setup, 2);
        let [captured, busy] = [(); 2].map(|()| pool.get_stream_for_workload(WorkloadType::Memory).unwrap());
        assert_ne!(captured.raw_handle(), busy.raw_handle());
        let gate = Gate::before(&setup.device, &[&busy]);
        // SAFETY: nothing is captured.
        let capture = unsafe { Capture::begin(&*captured, CaptureMode::Relaxed) }.unwrap();
        thread::scope(|scope| {
            let (found, finding) = mpsc::channel();
            let pool = &pool;
            scope.spawn(move || {
                let ready = pool.wait_for_any_ready(LONG).unwrap();
                found.send(ready.map(|ready| ready.raw_handle())).unwrap();
            });
            assert!(finding.recv_timeout(Duration::from_millis(50)).is_err(), "none is ready");
            drop(capture.end().unwrap());
            assert_eq!(finding.recv().unwrap(), Some(captured.raw_handle()));
        });
        gate.open();
        drop((captured, busy, pool));
        setup.finish();
    });
}
