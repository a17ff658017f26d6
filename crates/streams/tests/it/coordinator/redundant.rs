//! Redundant waits are not enqueued, as shown by the driver calls.

use transload_cuda_sys::trace;
use transload_streams::Dependency::{Enqueued, Implied, Met};

use super::{calls, raw, streams};
use crate::support::gate::Gate;
use crate::support::setup::Setup;

#[test]
fn idle_stream_is_not_waited_for() {
    let setup = Setup::new();
    let [one, two] = streams(&setup);
    let coordinator = raw::over([&one, &two]);
    let trace = trace::start();
    assert_eq!(coordinator.add_dependency(&two, &one).unwrap(), Met);
    assert_eq!((calls(&trace, "cuStreamWaitEvent"), calls(&trace, "cuEventRecord")), (0, 0));
    assert_eq!(coordinator.dependencies(), []);
    assert_eq!(coordinator.add_dependency(&one, &two).unwrap(), Met, "so it is in no plan either");
}

#[test]
fn implied_and_completed_waits_are_not_enqueued() {
    let setup = Setup::new();
    let [a, b, c, d] = streams(&setup);
    let coordinator = raw::over([&a, &b, &c, &d]);
    let gate = Gate::closed(&setup.device);
    gate.hold([&a, &b]);
    let [early, late] = [a.fence().unwrap(), a.fence().unwrap()];
    let before = b.fence().unwrap();
    let trace = trace::start();
    let on = |waiter, fence| coordinator.add_dependency_on(waiter, fence).unwrap();
    assert_eq!(on(&b, &late), Enqueued);
    assert_eq!(on(&b, &late), Implied, "the same again");
    assert_eq!(on(&b, &early), Implied, "a later point is waited for");
    assert_eq!(calls(&trace, "cuStreamWaitEvent"), 1);
    let after = b.fence().unwrap();
    assert_eq!(on(&c, &after), Enqueued);
    assert_eq!(on(&c, &late), Implied, "by b's wait before that point");
    assert_eq!(calls(&trace, "cuStreamWaitEvent"), 2);
    assert_eq!(on(&d, &before), Enqueued);
    assert_eq!(on(&d, &early), Enqueued, "b waited for it only later");
    let newest = a.fence().unwrap();
    assert_eq!(on(&c, &newest), Enqueued, "b did not wait for that");
    assert_eq!(calls(&trace, "cuStreamWaitEvent"), 5);
    gate.open();
    newest.wait().unwrap();
    assert_eq!(on(&d, &newest), Met);
    assert_eq!(calls(&trace, "cuStreamWaitEvent"), 5);
    coordinator.create_barrier().unwrap().wait().unwrap();
}

#[test]
fn repeated_dependencies_keep_one_edge_per_pair() {
    let setup = Setup::new();
    let [a, b, c] = streams(&setup);
    let coordinator = raw::over([&a, &b, &c]);
    let gate = Gate::closed(&setup.device);
    gate.hold([&a]);
    // Few enough for a real stream's queue, which holds about a thousand entries.
    for _ in 0..100 {
        coordinator.add_dependency(&b, &a).unwrap();
        coordinator.add_dependency(&c, &b).unwrap();
        coordinator.add_dependency(&c, &a).unwrap();
    }
    assert_eq!(coordinator.dependencies().len(), 3);
    gate.open();
    coordinator.create_barrier().unwrap().wait().unwrap();
    assert_eq!(coordinator.dependencies(), []);
    drop((a, b, c, coordinator));
    setup.finish();
}
