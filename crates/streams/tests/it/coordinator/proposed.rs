//! Plans of dependencies: inspected before anything is enqueued, and then enqueued as a whole or not at all.

use transload_core::ErrorKind;
use transload_cuda_sys::trace;
use transload_streams::{CudaStream, DependencyPlan};

use super::{calls, cycle, raw, streams};
use crate::support::{
    gate::Gate,
    setup::{Setup, noise},
};

#[test]
fn plan_shows_its_cycle_and_is_refused_as_a_whole() {
    let setup = Setup::new();
    let [a, b, c] = streams(&setup);
    let coordinator = raw::over([&a, &b, &c]);
    let gate = Gate::closed(&setup.device);
    gate.hold([&a, &b, &c]);
    let mut plan = DependencyPlan::new();
    assert!(!plan.has_cycles() && plan.cycle().is_none());
    plan.add(&a, &b).add(&b, &c).add(&a, &c).add(&a, &b);
    assert!(!plan.has_cycles());
    let [of_a, of_b, of_c] = [&a, &b, &c].map(CudaStream::id);
    assert_eq!(plan.dependencies(), [(of_a, of_b), (of_b, of_c), (of_a, of_c)]);
    plan.add(&c, &a);
    assert!(plan.has_cycles());
    assert_eq!(plan.cycle().unwrap().streams.len(), 2, "a after c, and c after a");

    let trace = trace::start();
    let refused = coordinator.add_dependencies(&plan).unwrap_err();
    assert!(cycle(&refused).is_some_and(|cycle| cycle.len() > 1), "{refused}");
    assert_eq!(calls(&trace, "cuStreamWaitEvent"), 0);
    assert_eq!(coordinator.dependencies(), []);
    drop(trace);

    assert!(plan.remove(&c, &a) && !plan.remove(&c, &a));
    assert!(!plan.has_cycles());
    coordinator.add_dependencies(&plan).unwrap();
    let mut edges = coordinator.dependencies();
    edges.sort_unstable();
    assert_eq!(edges, [(of_a, of_b), (of_a, of_c), (of_b, of_c)]);
    let mut back = DependencyPlan::new();
    back.add(&c, &a);
    assert!(!back.has_cycles(), "only with the earlier ones");
    assert!(cycle(&coordinator.add_dependencies(&back).unwrap_err()).is_some());
    gate.open();
    a.synchronize().unwrap();
    coordinator.add_dependencies(&back).unwrap();
    drop((a, b, c, coordinator, plan, back));
    setup.finish();
}

#[test]
fn stream_that_waits_for_itself_is_a_cycle() {
    let setup = Setup::new();
    let [own, unregistered] = streams(&setup);
    let coordinator = raw::over([&own]);
    let mut plan = DependencyPlan::new();
    plan.add(&own, &own);
    assert_eq!(plan.cycle().unwrap().streams, [own.id()]);
    assert!(cycle(&coordinator.add_dependencies(&plan).unwrap_err()).is_some());
    assert!(plan.remove(&own, &own));
    plan.add(&own, &unregistered);
    assert_eq!(coordinator.add_dependencies(&plan).unwrap_err().kind(), ErrorKind::InvalidArgument);
    drop((own, unregistered, coordinator, plan));
    setup.finish();
}

#[test]
fn dependencies_of_a_plan_are_transitive() {
    let setup = Setup::new();
    let [first, middle, last] = streams(&setup);
    let coordinator = raw::over([&first, &middle, &last]);
    let content = noise(100_000, 3);
    let (host, there, back) =
        (setup.pinned(&content), setup.device(100_000), setup.pinned(&vec![0; 100_000]));
    let gate = Gate::closed(&setup.device);
    gate.hold([&first]);
    raw::copy(&first, &host, &there);
    let mut plan = DependencyPlan::new();
    plan.add(&last, &middle).add(&middle, &first);
    coordinator.add_dependencies(&plan).unwrap();
    raw::copy(&last, &there, &back);
    let end = last.fence().unwrap();
    assert!(!end.is_complete(), "the middle stream has no work of its own");
    gate.open();
    end.wait().unwrap();
    assert!(*back.read().unwrap() == content[..]);
    first.synchronize().unwrap();
    drop((first, middle, last, coordinator, plan, end, host, there, back));
    setup.finish();
}
