//! Display and predicates of migration counts.

use transload_memory::MigrationCounts;

#[test]
fn any_fault_or_lost_record_is_not_without_faults() {
    let mut moved = MigrationCounts::default();
    assert!(moved.is_without_faults());
    (moved.to_device, moved.bytes_to_device, moved.to_host, moved.bytes_to_host) = (4, 4096, 2, 100);
    assert!(moved.is_without_faults(), "what is prefetched is no fault");
    let with = |change: fn(&mut MigrationCounts)| {
        let mut counts = moved;
        change(&mut counts);
        assert!(!counts.is_without_faults(), "{counts}");
        counts.to_string()
    };
    assert!(with(|counts| counts.to_device_by_faults = 1).contains("1 of them by faults"));
    assert!(with(|counts| counts.gpu_fault_groups = 1).contains("1 groups of GPU page faults"));
    assert!(with(|counts| counts.cpu_faults = 1).contains("1 CPU page faults"));
    assert!(with(|counts| counts.lost = 1).contains("1 records were lost"));
}
