//! Pieces of a file and the gaps between them.

use super::*;

#[test]
fn pieces_hold_every_byte_once_and_every_gap() {
    for most in [1, 3, 8, 100, 1000] {
        for runs in [&[(0, 5)][..], &[(0, 1), (64, 200), (264, 3), (512, 1)], &[(0, 64), (64, 64)]] {
            let given: Vec<_> = runs.iter().map(|(at, len)| ByteRun { at: *at, len: *len }).collect();
            let (mut end, mut seen) = (0, Vec::new());
            for Piece { from, to, bytes, runs } in split(given.iter().copied(), most) {
                assert_eq!(from, end);
                end = to;
                assert_eq!(bytes, runs.iter().map(|run| run.len).sum::<usize>());
                assert!(bytes <= most && !runs.is_empty(), "{runs:?}");
                seen.extend(runs.iter().flat_map(|run| from + run.at..from + run.at + run.len));
                assert_eq!(seen.last(), Some(&(to - 1)));
            }
            let all: Vec<_> = given.iter().flat_map(|run| run.at..run.at + run.len).collect();
            assert_eq!(seen, all, "{most}");
        }
    }
}

#[test]
fn thread_count_follows_file_size_up_to_sixteen() {
    assert_eq!(thread_count(None, 1000, &Executor::shared()), 1);
    assert!((1..=16).contains(&thread_count(None, 1 << 40, &Executor::shared())));
    assert_eq!(
        (
            thread_count(Some(3), 1, &Executor::shared()),
            thread_count(Some(0), 1, &Executor::shared()),
            thread_count(Some(1 << 20), 1, &Executor::shared())
        ),
        (3, 1, 64)
    );
}
