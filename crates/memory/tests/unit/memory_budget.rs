//! MemoryBudget on the device between two queries of the driver.

use super::*;

const INFO: MemoryInfo = MemoryInfo { free: 1000, total: 3200 };

#[test]
fn what_is_sent_counts_until_the_driver_is_asked_again() {
    let (mut room, mut asked) = (MemoryBudget::default(), 0);
    let mut take = |bytes| {
        room.try_reserve(bytes, || {
            asked += 1;
            Some(INFO)
        })
    };
    assert!(!take(901), "100 are kept back");
    assert!(take(500) && take(400) && !take(1));
    for _ in 4..QUERY_INTERVAL {
        assert!(!take(1));
    }
    assert!(take(900));
    assert_eq!(asked, 2);
}

#[test]
fn where_the_driver_does_not_answer_nothing_is_sent() {
    assert!(!MemoryBudget::default().try_reserve(1, || None));
}
