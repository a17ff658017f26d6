//! What is printed of transfers and of held resources.

use std::time::Duration;

use transload_core::{
    DeviceId, MemoryKind, Place, RejectReason, Rejected, ResourceCounts, TransferMethod, TransferPath,
    TransferReport,
};

fn report(bytes: u64) -> TransferReport {
    let (device, host) = (DeviceId::Cuda(0), DeviceId::Cpu);
    let path =
        TransferPath::new(Place::new(host, MemoryKind::Pinned), Place::new(device, MemoryKind::Device));
    TransferReport::planned(path, TransferMethod::DirectCopy, device, bytes)
}

#[test]
fn report_prints_the_times_it_has_and_rejections_if_asked() {
    let mut report = report(1 << 20);
    let head = "1048576 bytes cpu/pinned → cuda:0/device by DirectCopy on cuda:0";
    assert_eq!(report.to_string(), head);
    report.predicted = Duration::from_micros(25);
    assert_eq!(report.to_string(), format!("{head}, predicted 25.0µs"));
    report.moving = Some(Duration::from_micros(20));
    report.rejected.push(Rejected { method: TransferMethod::PeerToPeer, reason: RejectReason::HostSide });
    let line = format!("{head} in 20.0µs, 52.43 GB/s, predicted 25.0µs");
    assert_eq!(report.to_string(), line);
    assert_eq!(format!("{report:#}"), format!("{line}\n  rejected: PeerToPeer: one side is the host"));
}

#[test]
fn small_report_prints_time_and_no_rate_of_zero() {
    let mut report = report(8);
    report.moving = Some(Duration::from_micros(2));
    let text = report.to_string();
    assert!(text.ends_with(" in 2.0µs") && !text.contains("GB/s"), "{text}");
}

#[test]
fn resource_counts_print_what_is_only_kept() {
    let mut counts = ResourceCounts::default();
    assert_eq!(counts.to_string(), "0 allocations of 0 bytes, 0 leased queues");
    (counts.allocations, counts.bytes, counts.leases) = (1, 4096, 1);
    assert_eq!(counts.to_string(), "1 allocation of 4096 bytes, 1 leased queue");
    (counts.cached_bytes, counts.pending_free) = (1024, 1);
    let text = "1 allocation of 4096 bytes, 1024 of them cached for reuse, 1 allocation pending free, 1 leased queue";
    assert_eq!(counts.to_string(), text);
}
