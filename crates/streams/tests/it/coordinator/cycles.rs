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
    let numbers = [(a, b), (b, c), (a, c), (d, a)].map(|(waiter, on)| {
        let number = plan.begin(waiter, on);
        assert!(!plan.has_cycles());
        number
    });
    assert_eq!(plan.cycle_through(c, a).map(|cycle| cycle.len()), Some(2), "the shortest");
    let back = plan.begin(c, a);
    assert!(plan.has_cycles());
    plan.end((a, numbers[2]), c);
    assert!(plan.has_cycles(), "the longer way round");
    plan.end((c, back), a);
    assert!(!plan.has_cycles());
    plan.begin(c, a);
    plan.remove_stream(b);
    assert!(!plan.has_cycles());
}

#[test]
fn call_whose_stream_was_registered_again_meanwhile_ends_no_other_edge() {
    let (mut plan, [a, b]) = (Plan::default(), [(); 2].map(|()| next_timeline_id()));
    let register = |plan: &mut Plan| {
        plan.add_stream(a);
        plan.add_stream(b);
    };
    register(&mut plan);
    let first = plan.begin(a, b);
    plan.remove_stream(b);
    register(&mut plan);
    let second = plan.begin(a, b);
    plan.end((a, first), b);
    assert_eq!(plan.edges(), [(a, b)], "that of the second call");
    plan.end((a, second), b);
    assert_eq!(plan.edges(), []);
}
