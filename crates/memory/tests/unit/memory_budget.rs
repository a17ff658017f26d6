//! The memory budget between two queries of the driver.

use super::*;

const INFO: MemoryInfo = MemoryInfo { free: 1000, total: 3200 };

#[test]
fn reservations_count_until_the_next_query() {
    let (mut budget, mut queries) = (MemoryBudget::default(), 0);
    let mut take = |bytes| {
        budget.try_reserve(bytes, || {
            queries += 1;
            Some(INFO)
        })
    };
    assert!(!take(901), "100 are kept back");
    assert!(take(500) && take(400) && !take(1));
    for _ in 4..QUERY_INTERVAL {
        assert!(!take(1));
    }
    assert!(take(900));
    assert_eq!(queries, 2);
}

#[test]
fn failed_query_means_no_budget() {
    assert!(!MemoryBudget::default().try_reserve(1, || None));
}
