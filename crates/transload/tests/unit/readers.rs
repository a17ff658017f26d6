//! How many threads read a file.

use super::*;

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
