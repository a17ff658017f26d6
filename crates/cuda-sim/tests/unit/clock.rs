//! Vector clocks.

use super::*;

fn clock(steps: &[(ActorId, u64)]) -> Clock {
    Clock(steps.to_vec())
}

#[test]
fn join_takes_maximum_of_each_actor() {
    let cases: [(&[_], &[_], &[_]); 4] = [
        (&[], &[(1, 2), (5, 1)], &[(1, 2), (5, 1)]),
        (&[(1, 3), (4, 1)], &[(1, 2), (2, 7), (9, 1)], &[(1, 3), (2, 7), (4, 1), (9, 1)]),
        (&[(2, 2)], &[(2, 5)], &[(2, 5)]),
        (&[(2, 2), (3, 3)], &[], &[(2, 2), (3, 3)]),
    ];
    for (mine, theirs, both) in cases {
        let mut joined = clock(mine);
        joined.join(&clock(theirs));
        assert_eq!(joined, clock(both));
    }
}

#[test]
fn steps_are_counted_for_each_actor_until_it_is_forgotten() {
    let mut clock = Clock::new();
    for actor in [7, 3, 7, HOST] {
        clock.tick(actor);
    }
    assert_eq!([0, 3, 5, 7].map(|actor| clock.of(actor)), [1, 1, 0, 2]);
    clock.forget(7);
    clock.forget(8);
    assert_eq!((clock.of(7), clock.of(3)), (0, 1));
}
