//! Dependencies between two streams: order on the device, edges, cycles, and which streams may take part.

use std::sync::Barrier;

use transload_core::{ErrorKind, Pattern, StreamPriority};
use transload_cuda_sys::{AsStream, trace};
use transload_streams::{CudaStream, Dependency, MultiStreamCoordinator};

use super::{calls, cycle, raw, streams};
use crate::support::gate::Gate;
use crate::support::setup::{Setup, noise};

#[test]
fn waiter_sees_earlier_work_of_the_other_stream() {
    let setup = Setup::new();
    let [writer, reader] = streams(&setup);
    let coordinator = raw::over([&writer, &reader]);
    let bytes = 300_000;
    for round in 0..20 {
        let content = noise(bytes, round);
        let (host, there, back) =
            (setup.pinned(&content), setup.device(bytes), setup.pinned(&vec![0; bytes]));
        raw::copy(&writer, &host, &there);
        coordinator.add_dependency(&reader, &writer).unwrap();
        raw::copy(&reader, &there, &back);
        reader.synchronize().unwrap();
        assert!(*back.read().unwrap() == content[..], "round {round}");
    }
    writer.synchronize().unwrap();
    drop((writer, reader, coordinator));
    setup.finish();
}

#[test]
fn dependency_edge_expires_with_its_work() {
    let setup = Setup::new();
    let [one, two] = streams(&setup);
    let coordinator = raw::over([&one, &two]);
    let gate = Gate::closed(&setup.device);
    gate.hold([&one]);
    let trace = trace::start();
    assert_eq!(coordinator.add_dependency(&two, &one).unwrap(), Dependency::Enqueued);
    let behind = two.fence().unwrap();
    let made = trace.calls_of_this_thread();
    assert!(!made.iter().any(|call| call.name.contains("Synchronize")), "{made:?}");
    assert!(!behind.is_complete(), "it waits for the gate");
    assert_eq!(coordinator.dependencies(), [(two.id(), one.id())]);
    assert!(cycle(&coordinator.add_dependency(&one, &two).unwrap_err()).is_some());
    gate.open();
    behind.wait().unwrap();
    assert_eq!(coordinator.dependencies(), []);
    let gate = Gate::closed(&setup.device);
    gate.hold([&two]);
    assert_eq!(coordinator.add_dependency(&one, &two).unwrap(), Dependency::Enqueued, "the other way round");
    gate.open();
    one.synchronize().unwrap();
    drop((one, two, coordinator, behind));
    setup.finish();
}

#[test]
fn an_edge_holds_until_the_latest_of_its_points_is_reached() {
    let setup = Setup::new();
    let [one, two] = streams(&setup);
    let coordinator = raw::over([&one, &two]);
    let there = setup.device(64);
    let gate = Gate::closed(&setup.device);
    drop(one.memset_async(&there, Pattern::U8(1)));
    let first = one.fence().unwrap();
    assert_eq!(coordinator.add_dependency_on(&two, &first).unwrap(), Dependency::Enqueued);
    gate.hold([&one]);
    assert_eq!(coordinator.add_dependency(&two, &one).unwrap(), Dependency::Enqueued);
    first.wait().unwrap();
    assert_eq!(coordinator.dependencies(), [(two.id(), one.id())]);
    assert!(coordinator.add_dependency(&one, &two).is_err(), "the second wait is not over");
    gate.open();
    drop(two.memset_async(&there, Pattern::U8(2)));
    // Neither stream is synchronised, so completion of the edge must be queried.
    let mut refused = 0;
    while coordinator.add_dependency(&one, &two).is_err() {
        refused += 1;
        assert!(refused < 10_000_000, "it never expires");
        std::thread::yield_now();
    }
    one.synchronize().unwrap();
    drop((there, one, two, coordinator, first));
    setup.finish();
}

#[test]
fn dependency_closing_a_cycle_is_refused_with_the_cycle() {
    let setup = Setup::new();
    let [a, b, c, d] = streams(&setup);
    let coordinator = raw::over([&a, &b, &c, &d]);
    let gate = Gate::closed(&setup.device);
    gate.hold([&a, &b, &c, &d]);
    for (waiter, on) in [(&b, &a), (&c, &b), (&d, &c), (&d, &a)] {
        assert_eq!(coordinator.add_dependency(waiter, on).unwrap(), Dependency::Enqueued);
    }
    let trace = trace::start();
    let fence = c.fence().unwrap();
    for (refused, expected) in [
        (coordinator.add_dependency(&a, &c), vec![a.id(), c.id(), b.id()]),
        (coordinator.add_dependency_on(&a, &fence), vec![a.id(), c.id(), b.id()]),
        (coordinator.add_dependency(&a, &d), vec![a.id(), d.id()]),
        (coordinator.add_dependency(&b, &b.clone()), vec![b.id()]),
        (coordinator.add_dependency_on(&c, &fence), vec![c.id()]),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(cycle(&error), Some(&expected[..]), "{error}");
        assert!(error.to_string().contains(&format!("{:?} after", expected[0])), "{error}");
    }
    assert_eq!((calls(&trace, "cuStreamWaitEvent"), calls(&trace, "cuEventRecord")), (0, 1), "our own fence");
    assert!(!coordinator.has_cycles());
    assert_eq!(coordinator.dependencies().len(), 4);
    gate.open();
    coordinator.create_barrier().unwrap().wait().unwrap();
    assert_eq!(coordinator.dependencies(), []);
}

#[test]
fn concurrent_edges_of_a_cycle_refuse_one() {
    let setup = Setup::new();
    let [one, two, gates] = streams(&setup);
    for round in 0..20 {
        let coordinator = raw::over([&one, &two]);
        let gate = Gate::on(&gates, &setup.device);
        gate.hold([&one, &two]);
        let start = Barrier::new(2);
        let outcomes = std::thread::scope(|scope| {
            let declare = |waiter, on| {
                let (start, coordinator) = (&start, &coordinator);
                scope.spawn(move || {
                    start.wait();
                    coordinator.add_dependency(waiter, on)
                })
            };
            [declare(&one, &two), declare(&two, &one)].map(|thread| thread.join().unwrap())
        });
        let refused = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        assert_eq!(refused, 1, "round {round}: {outcomes:?}");
        assert!(!coordinator.has_cycles());
        gate.open();
        coordinator.create_barrier().unwrap().wait().unwrap();
        one.synchronize().and(two.synchronize()).unwrap();
    }
}

#[test]
fn plan_stays_acyclic_under_eight_threads() {
    let setup = Setup::new();
    let own: [CudaStream; 4] = streams(&setup);
    let coordinator = raw::over(&own);
    let there = setup.device(64);
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let (own, coordinator, there) = (&own, &coordinator, &there);
            scope.spawn(move || {
                for (round, random) in noise(200, thread as u64).into_iter().enumerate() {
                    let pick = |shift: u32| &own[usize::from(random >> shift) % 4];
                    drop(pick(0).memset_async(there, Pattern::U8(random)));
                    if let Err(error) = coordinator.add_dependency(pick(2), pick(4)) {
                        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                    }
                    assert!(!coordinator.has_cycles());
                    match (thread + round) % 8 {
                        0 => drop(coordinator.create_barrier()),
                        1 => _ = coordinator.unregister(&own[3]),
                        2 | 3 => _ = coordinator.register(&own[3]),
                        4 => drop(coordinator.execute_parallel([|_: &CudaStream| Ok(()); 2])),
                        5 => drop(coordinator.execute_all_callbacks()),
                        6 => drop(coordinator.add_completion_callback(pick(0), drop)),
                        _ => assert!(coordinator.dependencies().len() <= 12),
                    }
                }
            });
        }
    });
    own.iter().for_each(|stream| stream.synchronize().unwrap());
    coordinator.execute_all_callbacks();
    assert_eq!(coordinator.dependencies(), []);
    assert_eq!(coordinator.execute_all_callbacks().ran, 0);
    drop((own, coordinator, there));
    setup.finish();
}

#[test]
fn unregistered_stream_is_refused_and_a_clone_is_accepted() {
    let setup = Setup::new();
    let [known, stranger] = streams(&setup);
    let coordinator = MultiStreamCoordinator::new();
    assert!(coordinator.register(&known));
    assert!(!coordinator.register(&known), "twice is once");
    assert!(!coordinator.register(&known.clone()), "a clone is the same stream");
    assert_eq!(coordinator.streams().len(), 1);
    let fence = stranger.fence().unwrap();
    let unknown = stranger.id();
    for refused in [
        coordinator.add_dependency(&known, &stranger).unwrap_err(),
        coordinator.add_dependency(&stranger, &known).unwrap_err(),
        coordinator.add_dependency_on(&known, &fence).unwrap_err(),
        coordinator.add_completion_callback(&stranger, |_| {}).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        let text = format!("{unknown:?} of {} is not registered", stranger.device());
        assert!(refused.to_string().contains(&text), "{refused}");
    }
    assert!(coordinator.unregister(&known.clone()));
    assert!(!coordinator.unregister(&known));
    assert_eq!(coordinator.create_barrier().unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn unregistering_takes_a_streams_edges_out_of_the_plan() {
    let setup = Setup::new();
    let [one, two] = streams(&setup);
    let coordinator = raw::over([&one, &two]);
    let gate = Gate::closed(&setup.device);
    gate.hold([&one, &two]);
    coordinator.add_dependency(&two, &one).unwrap();
    assert!(coordinator.unregister(&one));
    assert_eq!(coordinator.dependencies(), []);
    assert!(coordinator.register(&one));
    assert_eq!(coordinator.add_dependency(&one, &two).unwrap(), Dependency::Enqueued);
    gate.open();
    one.synchronize().unwrap();
}

#[test]
fn foreign_stream_can_be_registered() {
    let setup = Setup::new();
    let [owner, reader] = streams(&setup);
    // SAFETY: the stream belongs to this context and outlives the second handle's work.
    let foreign =
        unsafe { CudaStream::from_raw(&setup.device, owner.as_raw(), StreamPriority::Normal) }.unwrap();
    let coordinator = raw::over([&foreign, &reader]);
    let content = noise(100_000, 7);
    let (host, there, back) =
        (setup.pinned(&content), setup.device(100_000), setup.pinned(&vec![0; 100_000]));
    // Enqueued through the owner's handle, unknown to the coordinator's stream.
    raw::copy(&owner, &host, &there);
    coordinator.add_dependency(&reader, &foreign).unwrap();
    raw::copy(&reader, &there, &back);
    reader.synchronize().unwrap();
    assert!(*back.read().unwrap() == content[..]);
    drop((host, there, back, coordinator, foreign, owner, reader));
    setup.finish();
}

#[test]
fn other_threads_default_stream_is_refused_as_waiter() {
    let setup = Setup::new();
    let [one, other] = streams(&setup);
    let coordinator = raw::over([&one, &other]);
    std::thread::scope(|scope| {
        let device = &setup.device;
        let theirs = scope.spawn(|| CudaStream::per_thread_default(device).unwrap()).join().unwrap();
        coordinator.unregister(&other);
        // Listed first, so that the barrier joins the others to it.
        let barred = raw::over([&theirs, &one]);
        coordinator.register(&theirs);
        let gate = Gate::before(&setup.device, &[&one]);
        let fence = one.fence().unwrap();
        let trace = trace::start();
        let refused = [
            coordinator.add_dependency(&theirs, &one).map(drop).unwrap_err(),
            coordinator.add_dependency_on(&theirs, &fence).map(drop).unwrap_err(),
            barred.create_barrier().map(drop).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        assert_eq!(calls(&trace, "cuStreamWaitEvent"), 0, "the handle means this thread's stream here");
        gate.open();
        fence.wait().unwrap();
    });
    drop((one, other, coordinator));
    setup.finish();
}
