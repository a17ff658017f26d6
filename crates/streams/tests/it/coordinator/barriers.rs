//! Barriers: all earlier work of every stream before all later work of each.

use std::thread;

use transload_core::ErrorKind;
use transload_core::RawBuffer;
use transload_cuda_sys::trace;
use transload_streams::{CudaStream, MultiStreamCoordinator};

use super::{calls, raw, streams};
use crate::support::gate::Gate;
use crate::support::setup::{Setup, noise};

#[test]
fn work_after_a_barrier_sees_all_earlier_work() {
    let setup = Setup::new();
    let own: [CudaStream; 4] = streams(&setup);
    let coordinator = raw::over(&own);
    let (bytes, all) = (20_000, 80_000);
    let there = setup.device(all);
    let part = |buffer: &RawBuffer, n: usize| buffer.slice(n * bytes..(n + 1) * bytes).unwrap();
    for round in 0..10 {
        let content = noise(all, round);
        let host = setup.pinned(&content);
        let backs: Vec<_> = own.iter().map(|_| setup.pinned(&vec![0; all])).collect();
        for (n, stream) in own.iter().enumerate() {
            raw::copy(stream, &part(&host, n), &part(&there, n));
        }
        let _passed = coordinator.create_barrier().unwrap();
        for (stream, back) in own.iter().zip(&backs) {
            raw::copy(stream, &there, back);
        }
        // The next round overwrites what this one reads, so it follows a barrier too.
        coordinator.create_barrier().unwrap().wait().unwrap();
        assert!(backs.iter().all(|back| *back.read().unwrap() == content[..]), "round {round}");
    }
    drop((there, own, coordinator));
    setup.finish();
}

#[test]
fn a_barrier_over_n_streams_takes_two_waits_per_further_stream() {
    let setup = Setup::new();
    let own: [CudaStream; 7] = streams(&setup);
    let coordinator = raw::over(&own);
    let gate = Gate::closed(&setup.device);
    gate.hold(&own);
    let trace = trace::start();
    let barrier = coordinator.create_barrier().unwrap();
    assert_eq!((calls(&trace, "cuStreamWaitEvent"), calls(&trace, "cuEventRecord")), (12, 7));
    let made = trace.calls_of_this_thread();
    assert!(!made.iter().any(|call| call.name.contains("Synchronize")), "{made:?}");
    gate.open();
    barrier.wait().unwrap();
    own.iter().for_each(|stream| stream.synchronize().unwrap());
    let quiet = coordinator.create_barrier().unwrap();
    assert_eq!(calls(&trace, "cuStreamWaitEvent"), 12, "idle streams have nothing to wait for");
    quiet.wait().unwrap();
}

#[test]
fn barrier_completes_only_with_all_earlier_work() {
    let setup = Setup::new();
    let own: [CudaStream; 3] = streams(&setup);
    let coordinator = raw::over(&own);
    let gate = Gate::closed(&setup.device);
    // Only the last one is held; the others complete at once.
    gate.hold([&own[2]]);
    let barrier = coordinator.create_barrier().unwrap();
    assert!(!barrier.is_complete() && !barrier.fence().is_complete());
    let awaited = barrier.clone();
    let waiting = thread::spawn(move || pollster::block_on(awaited));
    let behind = own[0].fence().unwrap();
    assert!(!behind.is_complete(), "what comes later waits for the held stream");
    gate.open();
    waiting.join().unwrap().unwrap();
    barrier.wait().unwrap();
    assert!(barrier.is_complete());
    pollster::block_on(barrier).unwrap();
    behind.wait().unwrap();
}

#[test]
fn barriers_of_different_streams_do_not_wait_for_each_other() {
    let setup = Setup::new();
    let [a, b, c, d] = streams(&setup);
    let others = raw::over([&c, &d]);
    let gate = Gate::closed(&setup.device);
    gate.hold([&a, &b]);
    let held = raw::over([&a, &b]).create_barrier().unwrap();
    others.create_barrier().unwrap().wait().unwrap();
    raw::over([&c]).create_barrier().unwrap().wait().unwrap();
    assert!(!held.is_complete());
    gate.open();
    held.wait().unwrap();
    let empty = MultiStreamCoordinator::new();
    assert_eq!(empty.create_barrier().unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_barrier_covers_the_work_of_a_stream_that_its_owner_dropped() {
    let setup = Setup::new();
    let content = noise(1 << 20, 9);
    let (host, there, back) =
        (setup.pinned(&content), setup.device(1 << 20), setup.pinned(&vec![0; 1 << 20]));
    let [dropped, reader] = streams(&setup);
    let coordinator = raw::over([&dropped, &reader]);
    let gate = Gate::closed(&setup.device);
    gate.hold([&dropped]);
    raw::copy(&dropped, &host, &there);
    drop(dropped);
    let _passed = coordinator.create_barrier().unwrap();
    raw::copy(&reader, &there, &back);
    gate.open();
    reader.synchronize().unwrap();
    assert!(*back.read().unwrap() == content[..]);
    drop((host, there, back, _passed, coordinator, reader));
    setup.finish();
}
