//! Completion callbacks: run by the thread that polls, once their work is complete.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use transload_core::ErrorKind;

use super::{raw, streams};
use crate::support::gate::Gate;
use crate::support::setup::Setup;

#[test]
fn callbacks_run_in_order_on_the_calling_thread() {
    let setup = Setup::new();
    let [held, free] = streams(&setup);
    let coordinator = raw::over([&held, &free]);
    let gate = Gate::closed(&setup.device);
    gate.hold([&held]);
    let ran = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let ran = Arc::clone(&ran);
        move |outcome: transload_core::Result<()>| {
            outcome.unwrap();
            ran.lock().unwrap().push((name, std::thread::current().id()));
        }
    };
    coordinator.add_completion_callback(&held, note("held")).unwrap();
    coordinator.add_completion_callback(&free, note("free")).unwrap();
    drop(coordinator.create_barrier().unwrap());
    coordinator.add_completion_callback(&free, note("last")).unwrap();
    // The first fence of `free` is before the barrier.
    let mut ran_early = 0;
    while ran_early == 0 {
        std::thread::yield_now();
        ran_early = coordinator.execute_all_callbacks().ran;
    }
    assert_eq!(ran_early, 1, "the others' work waits for the gate");
    gate.open();
    coordinator.create_barrier().unwrap().wait().unwrap();
    let executed = coordinator.execute_all_callbacks();
    assert_eq!((executed.ran, executed.panics.len()), (2, 0));
    let here = std::thread::current().id();
    let expected = ["free", "held", "last"].map(|name| (name, here));
    assert_eq!(*ran.lock().unwrap(), expected);
    assert_eq!(coordinator.execute_all_callbacks().ran, 0, "each runs once");
}

#[test]
fn callbacks_of_a_stream_run_in_order_though_its_work_ends_meanwhile() {
    let setup = Setup::new();
    let [held, free] = streams(&setup);
    let coordinator = raw::over([&held, &free]);
    let gate = Gate::closed(&setup.device);
    gate.hold([&held]);
    let ran = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let ran = Arc::clone(&ran);
        move |_: transload_core::Result<()>| ran.lock().unwrap().push(name)
    };
    coordinator.add_completion_callback(&held, note("first")).unwrap();
    let theirs = held.clone();
    let open = move |_: transload_core::Result<()>| {
        gate.open();
        theirs.synchronize().unwrap();
    };
    coordinator.add_completion_callback(&free, open).unwrap();
    coordinator.add_completion_callback(&held, note("second")).unwrap();
    free.synchronize().unwrap();
    assert_eq!(coordinator.execute_all_callbacks().ran, 1, "the first waits, so the second does");
    assert_eq!(coordinator.execute_all_callbacks().ran, 2);
    assert_eq!(*ran.lock().unwrap(), ["first", "second"]);
}

#[test]
fn callbacks_of_one_stream_run_without_the_others() {
    let setup = Setup::new();
    let [one, two] = streams(&setup);
    let coordinator = raw::over([&one, &two]);
    let ran = Arc::new(Mutex::new(Vec::new()));
    for (stream, name) in [(&one, "one"), (&two, "two"), (&one, "one again")] {
        let ran = Arc::clone(&ran);
        coordinator.add_completion_callback(stream, move |_| ran.lock().unwrap().push(name)).unwrap();
    }
    coordinator.create_barrier().unwrap().wait().unwrap();
    assert_eq!(coordinator.execute_callbacks(&one).ran, 2);
    assert_eq!(*ran.lock().unwrap(), ["one", "one again"]);
    assert_eq!(coordinator.execute_callbacks(&one).ran, 0);
    assert_eq!(coordinator.execute_all_callbacks().ran, 1);
    assert_eq!(*ran.lock().unwrap(), ["one", "one again", "two"]);
    drop((one, two, coordinator));
    setup.finish();
}

#[test]
fn a_panic_in_a_callback_is_reported_and_the_others_run() {
    let setup = Setup::new();
    let [stream] = streams(&setup);
    let coordinator = raw::over([&stream]);
    let ran = Arc::new(AtomicUsize::new(0));
    for n in 0..5 {
        let ran = Arc::clone(&ran);
        let callback = move |_| {
            assert!(n != 1 && n != 3, "planted {n}");
            ran.fetch_add(1, Ordering::Relaxed);
        };
        coordinator.add_completion_callback(&stream, callback).unwrap();
    }
    stream.synchronize().unwrap();
    let executed = coordinator.execute_all_callbacks();
    assert_eq!((executed.ran, ran.load(Ordering::Relaxed)), (5, 3));
    let texts: Vec<_> = executed.panics.iter().map(ToString::to_string).collect();
    assert!(
        texts.len() == 2 && texts[0].contains("planted 1") && texts[1].contains("planted 3"),
        "{texts:?}"
    );
    assert!(executed.panics.iter().all(|error| error.kind() == ErrorKind::Interrupted));
}

#[test]
fn a_callback_may_use_the_coordinator_and_its_streams() {
    let setup = Setup::new();
    let [one, two] = streams(&setup);
    let coordinator = Arc::new(raw::over([&one, &two]));
    let (inner, stream) = (Arc::clone(&coordinator), one.clone());
    let callback = move |_| {
        assert_eq!(inner.execute_all_callbacks().ran, 0, "what runs is taken out");
        inner.add_completion_callback(&stream, |_| {}).unwrap();
        inner.create_barrier().unwrap().wait().unwrap();
        assert!(!inner.register(&stream));
    };
    coordinator.add_completion_callback(&one, callback).unwrap();
    one.synchronize().unwrap();
    let executed = coordinator.execute_all_callbacks();
    assert_eq!((executed.ran, executed.panics.len()), (1, 0));
    assert_eq!(coordinator.execute_all_callbacks().ran, 1);
}

#[test]
fn callbacks_run_once_with_many_polling_threads() {
    let setup = Setup::new();
    let [stream] = streams(&setup);
    let coordinator = raw::over([&stream]);
    let ran: Arc<Vec<AtomicUsize>> = Arc::new((0..200).map(|_| AtomicUsize::new(0)).collect());
    let total = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (coordinator, stream, ran, total) = (&coordinator, &stream, &ran, &total);
            scope.spawn(move || {
                for n in 0..50 {
                    let (ran, index) = (Arc::clone(ran), thread * 50 + n);
                    let callback = move |_| {
                        ran[index].fetch_add(1, Ordering::Relaxed);
                    };
                    coordinator.add_completion_callback(stream, callback).unwrap();
                    total.fetch_add(coordinator.execute_all_callbacks().ran, Ordering::Relaxed);
                }
            });
        }
    });
    stream.synchronize().unwrap();
    let rest = coordinator.execute_all_callbacks().ran;
    assert_eq!(total.load(Ordering::Relaxed) + rest, 200);
    assert!(ran.iter().all(|count| count.load(Ordering::Relaxed) == 1));
}

#[test]
fn pending_callbacks_are_dropped_with_the_coordinator() {
    let setup = Setup::new();
    let [stream] = streams(&setup);
    let coordinator = raw::over([&stream]);
    let kept = Arc::new(());
    let inside = Arc::clone(&kept);
    coordinator.add_completion_callback(&stream, move |_| drop(inside)).unwrap();
    stream.synchronize().unwrap();
    drop((stream, coordinator));
    assert_eq!(Arc::strong_count(&kept), 1);
    setup.finish();
}
