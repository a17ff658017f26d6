//! Edges of registrations within a range.

use super::*;

#[test]
fn edges_are_those_within_the_range() {
    // Addresses used by nothing else.
    const AT: usize = 1 << 60;
    let [first, second, third] = [100, 200, 400].map(|start| enter(AT + start, 100));
    let edges = |range: Range<usize>| {
        let found = registration_edges(&(AT + range.start..AT + range.end));
        found.into_iter().map(|edge| edge - AT).collect::<Vec<_>>()
    };
    assert_eq!(edges(0..1000), [100, 200, 300, 400, 500]);
    assert_eq!(edges(150..450), [200, 300, 400]);
    assert_eq!(edges(100..200), []);
    assert_eq!(edges(300..400), []);
    leave(AT + 200, second);
    assert_eq!(edges(150..450), [200, 400]);
    leave(AT + 100, first);
    leave(AT + 400, second);
    assert_eq!(edges(300..1000), [400, 500], "another one's");
    leave(AT + 400, third);
    assert_eq!(edges(0..1000), []);
}
