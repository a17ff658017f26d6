//! The plan's cycle search, on cycles that the coordinator would refuse.

use transload_core::next_timeline_id;

use super::plan::Plan;

#[test]
fn cycles_are_found_while_their_edges_exist() {
    let streams = [(); 4].map(|()| next_timeline_id());
    let mut plan = Plan::default();
    for stream in streams {
        assert!(plan.add_stream(stream));
    }
    let [a, b, c, d] = streams;
    for (waiter, on) in [(a, b), (b, c), (a, c), (d, a)] {
        plan.begin(waiter, on);
        assert!(!plan.has_cycles());
    }
    assert_eq!(plan.cycle_through(c, a).map(|cycle| cycle.len()), Some(2), "the shortest");
    plan.begin(c, a);
    assert!(plan.has_cycles());
    plan.end(a, c);
    assert!(plan.has_cycles(), "the longer way round");
    plan.end(c, a);
    assert!(!plan.has_cycles());
    plan.begin(c, a);
    plan.remove_stream(b);
    assert!(!plan.has_cycles());
}
