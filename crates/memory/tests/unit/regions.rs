//! Regions of managed memory, and their migration counts.

use super::*;

fn moved(address: u64, bytes: u64) -> Record {
    Record { address, event: Event::ToDevice { device: 0, bytes, by_faults: false }, times: (0, 0) }
}

#[test]
fn migration_beyond_a_range_counts_its_bytes_within() {
    let mut regions = Regions::of(0);
    regions.add(moved(1000, 500));
    regions.add(moved(1000, 500));
    regions.add(moved(2000, 10));
    let counts = regions.within(&(1400..2005));
    assert_eq!((counts.to_device, counts.bytes_to_device), (3, 205));
    assert_eq!(regions.within(&(1500..2000)), MigrationCounts::default());
    assert_eq!(regions.within(&(1200..1200)), MigrationCounts::default());
    assert_eq!(regions.total().bytes_to_device, 1010);
}

#[test]
fn faulted_and_prefetched_bytes_are_told_apart() {
    let mut regions = Regions::of(0);
    regions.add(moved(0, 500));
    assert!(regions.within(&(0..500)).is_without_faults());
    let event = Event::ToDevice { device: 0, bytes: 500, by_faults: true };
    regions.add(Record { address: 0, event, times: (0, 0) });
    let counts = regions.within(&(400..500));
    assert_eq!((counts.to_device, counts.to_device_by_faults), (2, 1));
    assert!(!counts.is_without_faults());
}

#[test]
fn other_devices_records_are_ignored_and_host_faults_count() {
    let mut regions = Regions::of(1);
    regions.add(moved(0, 500));
    regions.add(Record { address: 7, event: Event::GpuFault { device: 0, groups: 3 }, times: (0, 0) });
    assert_eq!(regions.total(), MigrationCounts::default());
    regions.add(Record { address: 7, event: Event::GpuFault { device: 1, groups: 3 }, times: (0, 0) });
    regions.add(Record { address: 7, event: Event::CpuFault, times: (0, 0) });
    let counts = regions.within(&(7..8));
    assert_eq!((counts.gpu_fault_groups, counts.cpu_faults), (3, 1));
    assert!(!counts.is_without_faults());
    assert!(!regions.within(&(PAGE - 1..PAGE)).is_without_faults(), "of the same page");
    assert!(regions.within(&(PAGE..2 * PAGE)).is_without_faults(), "the next page");
}

#[test]
fn records_beyond_the_bound_count_as_lost() {
    let mut regions = Regions::of(0);
    for address in 0..MOST as u64 + 5 {
        regions.add(moved(address * 10, 10));
    }
    assert_eq!(regions.found.len(), MOST);
    assert_eq!((regions.total().to_device, regions.total().lost), (MOST as u64 + 5, 0));
    assert_eq!(regions.within(&(0..10)).lost, 5);
    assert!(!regions.within(&(0..10)).is_without_faults());
    regions.add_lost(2);
    assert_eq!((regions.total().lost, regions.within(&(0..10)).lost), (2, 7));
    regions.clear();
    assert_eq!(regions.total(), MigrationCounts::default());
}

#[test]
fn addresses_at_the_end_of_the_space_do_not_overflow() {
    let mut regions = Regions::of(0);
    regions.add(moved(u64::MAX - 5, u64::MAX));
    regions.add(moved(u64::MAX - 5, u64::MAX));
    assert_eq!(regions.within(&(u64::MAX - 6..u64::MAX)).bytes_to_device, 10);
    assert_eq!(regions.total().bytes_to_device, u64::MAX);
}
