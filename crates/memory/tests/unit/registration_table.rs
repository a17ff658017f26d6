//! Plans of the table, for adjacent, nested and overlapping ranges.

use std::{ops::Range, sync::Arc};

use super::table::{Plan, Request, Table};

fn request(range: Range<usize>, writable: bool) -> Request {
    Request { range, writable }
}

/// Registers a range without conflicts.
fn register(table: &mut Table<u32>, range: Range<usize>, writable: bool) -> Arc<u32> {
    assert!(matches!(table.plan(&request(range.clone(), writable), &[]), Plan::Register));
    let payload = Arc::new(7);
    table.ready(range.start, &payload);
    payload
}

#[test]
fn range_within_a_registration_is_covered_and_adjacent_is_not() {
    let mut table = Table::new(u64::MAX);
    drop(register(&mut table, 100..200, true));
    assert!(matches!(table.plan(&request(100..200, true), &[]), Plan::Covered(_)));
    assert!(matches!(table.plan(&request(150..160, false), &[]), Plan::Covered(_)));
    drop(register(&mut table, 200..300, true));
    drop(register(&mut table, 50..100, true));
    assert_eq!((table.len(), table.bytes()), (3, 250));
}

#[test]
fn read_only_registration_does_not_cover_a_writable_request() {
    let mut table = Table::new(u64::MAX);
    drop(register(&mut table, 0..10, false));
    assert!(matches!(table.plan(&request(0..10, false), &[]), Plan::Covered(_)));
    assert!(matches!(table.plan(&request(0..10, true), &[]), Plan::Evict { .. }));
}

#[test]
fn overlapping_registration_is_evicted_unless_in_use() {
    let mut table = Table::new(u64::MAX);
    drop(register(&mut table, 0..10, true));
    let used = register(&mut table, 20..30, true);
    assert!(matches!(table.plan(&request(5..25, true), &[]), Plan::InUse(range) if range == (20..30)));
    drop(used);
    assert!(matches!(table.plan(&request(5..25, true), &[0]), Plan::InUse(range) if range == (0..10)));
    let Plan::Evict { joined, others } = table.plan(&request(5..25, true), &[]) else { panic!("evicts") };
    assert_eq!((joined.len(), others.len()), (2, 0));
    assert!(matches!(table.plan(&request(0..1, true), &[]), Plan::Wait), "they are in hand");
    for evicted in joined {
        table.remove(evicted.range.start);
    }
    drop(register(&mut table, 5..25, true));
    assert_eq!(table.bytes(), 20);
}

#[test]
fn least_recently_used_is_evicted_at_the_limit() {
    let mut table = Table::new(100);
    for start in [0, 40] {
        drop(register(&mut table, start..start + 40, true));
    }
    assert!(matches!(table.plan(&request(0..40, true), &[]), Plan::Covered(_)), "used again");
    let Plan::Evict { joined, others } = table.plan(&request(200..240, true), &[]) else { panic!("evicts") };
    assert!(joined.is_empty());
    assert!(others.len() == 1 && others[0].range == (40..80));
    table.remove(40);
    let third = register(&mut table, 200..240, true);
    assert!(matches!(table.plan(&request(300..400, true), &[]), Plan::LimitExceeded(40)));
    drop(third);
    assert!(matches!(table.plan(&request(300..401, true), &[]), Plan::LimitExceeded(0)));
    assert!(matches!(Table::<u32>::new(0).plan(&request(0..1, true), &[]), Plan::LimitExceeded(0)));
}

#[test]
fn request_over_the_limit_waits_for_registrations_being_ended() {
    let mut table = Table::new(100);
    drop(register(&mut table, 0..60, true));
    assert_eq!(table.take_idle().len(), 1);
    assert!(matches!(table.plan(&request(200..260, true), &[]), Plan::Wait));
    assert!(matches!(table.plan(&request(200..301, true), &[]), Plan::LimitExceeded(60)), "never fits");
    table.remove(0);
    assert!(matches!(table.plan(&request(200..260, true), &[]), Plan::Register));
}

#[test]
fn only_idle_ones_are_taken() {
    let mut table = Table::new(u64::MAX);
    let used = register(&mut table, 0..10, true);
    drop(register(&mut table, 10..20, true));
    assert_eq!(table.take_touching(&(5..15)).err(), Some(0..10));
    assert_eq!(table.take_touching(&(10..15)).ok().map(|taken| taken.len()), Some(1));
    table.remove(10);
    assert!(table.take_idle().is_empty());
    drop(used);
    assert_eq!(table.take_idle().len(), 1);
    table.remove(0);
    assert_eq!((table.len(), table.bytes()), (0, 0));
}
