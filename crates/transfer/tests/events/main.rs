//! Each event of `transload_core::events` that a manager reports, in the situation that its documentation names. A program of
//! its own, since the subscriber is the process's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../core/tests/shared/event_log.rs"]
mod event_log;
#[path = "../../../core/tests/shared/gate.rs"]
mod gate;
#[allow(dead_code, unused_imports)]
#[path = "../it/mock.rs"]
mod mock;
#[allow(dead_code)]
#[path = "../it/mock_memory.rs"]
mod mock_memory;
#[path = "../it/mock_queue.rs"]
mod mock_queue;
mod spans;
#[path = "../it/watchdog.rs"]
mod watchdog;

use std::{
    future::IntoFuture,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Context, Waker},
    thread,
    time::Duration,
};

use event_log::{Record, find, find_one, record, record_disabled, record_panicking, record_with};
use gate::Gate;
use mock::{MOCK, Mock, MockBackend};
use parking_lot::Mutex;
use transload_core::{
    Backend, CostModel, DeviceId, ErrorKind, MemoryKind, Operation, PathCost, Place, RawBuffer,
    StreamPriority, Timing, TransferMethod, TransferPath, WorkloadType, events, submit,
};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};
use watchdog::within;

const MIB: usize = 1 << 20;
const FOREVER: u64 = u64::MAX;

fn manager(mock: Mock) -> (CrossBackendTransferManager, Arc<MockBackend>) {
    let backend = mock.build();
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    (manager, backend)
}

fn pair(manager: &CrossBackendTransferManager, bytes: usize) -> (RawBuffer, RawBuffer) {
    let src = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap();
    let dst = manager.allocate(MOCK, MemoryKind::Device, bytes).unwrap();
    mock::set_bytes(&src, 1);
    (src, dst)
}

#[track_caller]
fn assert_none(records: &[Record], name: &str) {
    assert!(records.iter().all(|record| record.name != name), "{records:#?}");
}

#[test]
fn staged_transfer_is_joined_by_its_id() {
    let mut id = None;
    let records = record(|| {
        let (manager, _) = manager(Mock::default());
        let (src, dst) = pair(&manager, 3 * MIB + 5);
        let report = manager.copy(&src, &dst).method(TransferMethod::HostStaged).wait().unwrap();
        id = report.id;
        manager.drain().unwrap();
    });
    let id = id.unwrap().to_string();
    let fields =
        ["src", "dst", "bytes", "method", "lane", "chunks", "predicted_ns", "queued", "rejected", "transfer"];
    let submitted = find_one(&records, events::TRANSFER_SUBMITTED, events::TRANSFER, &fields);
    assert_eq!(submitted.field("transfer"), Some(&*id));
    assert_eq!(submitted.field("method"), Some("HostStaged"));
    assert!(submitted.field("rejected").unwrap().contains("DirectCopy: excluded by the caller"));
    let completed =
        find_one(&records, events::TRANSFER_COMPLETED, events::TRANSFER, &["bytes", "elapsed_ns"]);
    assert_eq!(completed.field("transfer"), Some(&*id));
    for name in [events::CHUNK_STARTED, events::CHUNK_COMPLETED] {
        let chunks = find(&records, name, events::STAGING, &["offset"]);
        assert_eq!(chunks.len().to_string(), submitted.field("chunks").unwrap());
        assert!(chunks.iter().all(|chunk| chunk.field("transfer") == Some(&*id)));
        let bytes = chunks.iter().map(|chunk| chunk.field("bytes").unwrap().parse::<usize>().unwrap());
        assert_eq!(bytes.sum::<usize>(), 3 * MIB + 5);
    }
    find(&records, events::RING_GROWN, events::STAGING, &["device", "buffers", "elapsed_ns"]);
    let first = find_one(&records, events::FIRST_USE, events::TRANSFER, &["device", "elapsed_ns"]);
    assert!(first.field("what").unwrap().contains("HostStaged"));
    assert!(records.iter().all(|record| record.level > tracing::Level::INFO), "{records:#?}");
}

#[test]
fn ids_differ_and_a_disabled_subscriber_gets_nothing() {
    record(|| {
        let (manager, _) = manager(Mock::default());
        let (src, dst) = pair(&manager, 64);
        let ids = [0; 3].map(|_| manager.copy(&src, &dst).wait().unwrap().id.unwrap());
        assert!(ids[0] < ids[1] && ids[1] < ids[2]);
    });
    let records = record_disabled(|| {
        let (manager, backend) = manager(Mock::default());
        let (src, dst) = pair(&manager, MIB);
        assert_eq!(manager.copy(&src, &dst).wait().unwrap().id, None);
        let staged = manager.copy(&src, &dst).method(TransferMethod::HostStaged);
        assert_eq!(pollster::block_on(staged.submit()).unwrap().id, None);
        backend.fail_next(ErrorKind::DeviceLost);
        manager.copy(&src, &dst).wait().unwrap_err();
        drop(manager.copy(&src, &dst).submit());
        manager.drain().unwrap_err();
    });
    assert!(records.is_empty(), "{records:#?}");
}

#[test]
fn failure_loss_and_refusal_are_reported() {
    let mut all = Vec::new();
    let records = record(|| {
        let (manager, backend) = manager(Mock::default());
        let (src, dst) = pair(&manager, 64);
        backend.fail_next(ErrorKind::DeviceLost);
        events::report::drop_failed(&"what a driver noticed before");
        manager.copy(&src, &dst).wait().unwrap_err();
        manager.copy(&src, &dst).wait().unwrap_err();
        all = event_log::spans();
    });
    find_one(&records, events::DROP_FAILED, events::DRIVER, &["error"]);
    assert_eq!(spans::of_transfers(&records, &all).len(), 1);
    let fields = ["src", "dst", "bytes", "method", "lane", "error"];
    let failed = find_one(&records, events::TRANSFER_FAILED, events::TRANSFER, &fields);
    assert_eq!(failed.level, tracing::Level::WARN);
    let submitted = find_one(&records, events::TRANSFER_SUBMITTED, events::TRANSFER, &[]);
    assert_eq!(failed.field("transfer"), submitted.field("transfer"));
    let lost = find_one(&records, events::DEVICE_LOST, events::TRANSFER, &["error"]);
    assert_eq!((lost.field("device"), lost.level), (Some("mock:0"), tracing::Level::ERROR));
    let refused = find_one(&records, events::TRANSFER_REFUSED, events::TRANSFER, &["transfer"]);
    assert!(refused.field("error").unwrap().contains("was lost before"));
    assert_none(&records, events::FAILURE_UNOBSERVED);
}

#[test]
fn failures_without_an_observer_are_reported_with_their_ids() {
    let records = record(|| {
        let (manager, backend) = manager(Mock::default());
        let (src, dst) = pair(&manager, 64);
        backend.fail_next(ErrorKind::Device);
        drop(manager.copy(&src, &dst).submit());
        drop(manager.transfer_buffer(&src, &dst, 0, 0, 65));
        manager.drain().unwrap_err();
    });
    let abandoned = find_one(&records, events::TRANSFER_ABANDONED, events::TRANSFER, &["bytes"]);
    let refused = find_one(&records, events::TRANSFER_REFUSED, events::TRANSFER, &["error"]);
    let unobserved = find(&records, events::FAILURE_UNOBSERVED, events::TRANSFER, &["transfer", "error"]);
    let ids: Vec<_> = unobserved.iter().map(|record| record.field("transfer")).collect();
    assert_eq!(ids, [refused.field("transfer"), abandoned.field("transfer")]);
    assert_none(&records, events::TRANSFER_COMPLETED);
}

/// Returns a manager that prefers peer copies, which its backend refuses to enable, and a buffer on each device.
fn peers() -> (CrossBackendTransferManager, Arc<MockBackend>, [RawBuffer; 2]) {
    let devices = [DeviceId::Cuda(0), DeviceId::Cuda(1)];
    let kinds = devices.map(|device| (device, vec![MemoryKind::Device, MemoryKind::Pinned]));
    let (manager, backend) = manager(Mock { devices: kinds.into(), peers: true, ..Mock::default() });
    let [from, to] = devices.map(|device| Place::new(device, MemoryKind::Device));
    manager.set_costs(vec![PathCost {
        path: TransferPath::new(from, to),
        method: TransferMethod::PeerToPeer,
        model: CostModel::linear(Duration::from_nanos(1), 1e15),
    }]);
    let buffers = devices.map(|device| manager.allocate(device, MemoryKind::Device, 64).unwrap());
    (manager, backend, buffers)
}

#[test]
fn peer_rejection_names_method_path_and_cause() {
    let records = record(|| {
        let (manager, _, [src, dst]) = peers();
        manager.copy(&src, &dst).wait().unwrap();
        manager.copy(&src, &dst).wait().unwrap();
    });
    let peer = find_one(&records, events::PEER_REJECTED, events::TRANSFER, &["reason", "error"]);
    assert_eq!((peer.field("device"), peer.field("peer")), (Some("cuda:0"), Some("cuda:1")));
    let rejected = find_one(&records, events::METHOD_REJECTED, events::TRANSFER, &["src", "dst", "reason"]);
    assert_eq!(rejected.field("method"), Some("PeerToPeer"));
    let declined = find_one(&records, events::METHOD_DECLINED, events::TRANSFER, &["src", "dst", "method"]);
    let submitted = find(&records, events::TRANSFER_SUBMITTED, events::TRANSFER, &[]);
    assert_eq!(declined.field("transfer"), submitted[0].field("transfer"));
    assert!(submitted.iter().all(|submitted| submitted.field("method") == Some("DirectCopy")));
}

#[test]
fn drift_is_told_with_its_factor() {
    let upload = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    let cost = PathCost {
        path: TransferPath::new(upload, Place::new(MOCK, MemoryKind::Device)),
        method: TransferMethod::DirectCopy,
        model: CostModel::linear(Duration::from_secs(10), 1e15),
    };
    let records = record(|| {
        let (manager, backend) = manager(Mock { costs: vec![cost], ..Mock::default() });
        backend.shared.planted_micros.store(20_000_000, std::sync::atomic::Ordering::SeqCst);
        let (src, dst) = pair(&manager, 3 * MIB);
        for _ in 0..9 {
            let copy = manager.copy(&src, &dst).method(TransferMethod::DirectCopy);
            copy.timing(Timing::Measured).wait().unwrap();
        }
    });
    let refined = find_one(&records, events::COST_REFINED, events::TRANSFER, &["src", "dst", "method"]);
    assert_eq!((refined.field("bytes"), refined.field("method")), (Some("2097152"), Some("DirectCopy")));
    let factor: f64 = refined.field("factor").unwrap().parse().unwrap();
    assert!((1.99..2.01).contains(&factor), "{factor}");
}

#[test]
fn peer_access_is_retried_after_a_shortage() {
    let records = record(|| {
        let (manager, backend, [src, dst]) = peers();
        backend.refuse_next(ErrorKind::OutOfMemory);
        manager.copy(&src, &dst).wait().unwrap();
    });
    let retry = find_one(&records, events::PEER_RETRY, events::TRANSFER, &["error"]);
    let fields = ["device", "peer", "skipped"].map(|field| retry.field(field).unwrap());
    assert_eq!(fields, ["cuda:0", "cuda:1", "0"]);
    find_one(&records, events::METHOD_DECLINED, events::TRANSFER, &["transfer"]);
    assert_none(&records, events::METHOD_REJECTED);
}

#[test]
fn ring_without_memory_is_reported_with_the_error() {
    let records = record(|| {
        let (manager, backend) = manager(Mock::default());
        let (src, dst) = pair(&manager, MIB);
        backend.fail_pinned(0, FOREVER, 1);
        manager.copy(&src, &dst).method(TransferMethod::HostStaged).wait().unwrap_err();
        manager.drain().unwrap();
    });
    let limited = find(&records, events::RING_LIMITED, events::STAGING, &["most", "error"]);
    assert!(limited.iter().all(|limited| limited.field("device") == Some("mock:0")));
    find_one(&records, events::TRANSFER_FAILED, events::TRANSFER, &["transfer"]);
    assert_none(&records, events::RING_GROWN);
}

#[test]
fn subscriber_stages_while_a_staging_buffer_is_allocated() {
    // The event comes from within the allocation, or after it succeeded or failed; the limit leaves room or not.
    for (deferred, fail, limit) in
        [(true, 0, u64::MAX), (true, 0, 0), (false, 0, 0), (false, FOREVER, u64::MAX)]
    {
        within("a copy by the subscriber", move || {
            let backend = Mock::default().build();
            let manager = CrossBackendTransferManager::builder().staging_limit(limit).build();
            manager.register_backend(Arc::clone(&backend) as _).unwrap();
            let (src, dst) = pair(&manager, MIB);
            let (theirs, own) = (manager.clone(), pair(&manager, MIB));
            let outcomes = Arc::new(Mutex::new(Vec::new()));
            let (noted, me) = (Arc::clone(&outcomes), thread::current().id());
            let copy = move || {
                if thread::current().id() != me {
                    return;
                }
                let copy = theirs.copy(&own.0, &own.1).method(TransferMethod::HostStaged);
                noted.lock().push(copy.wait().map(|_| mock::bytes(&own.1)));
            };
            backend.fail_pinned(0, fail, 1);
            record_with(copy, || {
                if deferred {
                    events::report::drop_failed(&"what a driver noticed before");
                }
                let outcome = manager.copy(&src, &dst).method(TransferMethod::HostStaged).wait();
                assert_eq!(outcome.is_ok(), fail == 0);
            });
            let outcomes = outcomes.lock();
            let shortages = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
            assert!(shortages.clone().all(|error| error.kind() == ErrorKind::OutOfMemory), "{outcomes:?}");
            // Without room the copy from within the allocation gets no buffer.
            assert_eq!(shortages.count() > 0, fail > 0 || deferred && limit == 0);
            assert!(outcomes.iter().flatten().all(|bytes| *bytes == [1; MIB]));
            assert!(fail > 0 || outcomes.iter().any(Result::is_ok));
        });
    }
}

#[test]
fn failed_chunk_is_reported_with_the_id() {
    let records = record(|| {
        let (manager, backend) = manager(Mock::default());
        let (src, dst) = pair(&manager, 1000);
        backend.refuse_next(ErrorKind::Device);
        manager.copy(&src, &dst).method(TransferMethod::HostStaged).wait().unwrap_err();
        manager.drain().unwrap();
    });
    let fields = ["transfer", "offset", "bytes", "error"];
    let chunk = find_one(&records, events::CHUNK_FAILED, events::STAGING, &fields);
    let failed = find_one(&records, events::TRANSFER_FAILED, events::TRANSFER, &["transfer"]);
    assert_eq!(failed.field("transfer"), chunk.field("transfer"));
    assert_none(&records, events::CHUNK_COMPLETED);
}

#[test]
fn panic_at_an_event_of_a_chunk_changes_nothing() {
    for name in [events::CHUNK_STARTED, events::CHUNK_COMPLETED, events::CHUNK_FAILED] {
        let fails = name == events::CHUNK_FAILED;
        let records = record_panicking(name, || {
            within("copies whose subscriber panics", move || {
                let backend = Mock::default().build();
                let manager = CrossBackendTransferManager::builder().staging_limit(4 * MIB as u64).build();
                manager.register_backend(Arc::clone(&backend) as _).unwrap();
                let pairs = [(); 3].map(|()| pair(&manager, MIB));
                if fails {
                    backend.refuse_next(ErrorKind::Device);
                }
                // They share one staging buffer.
                let copies = pairs
                    .each_ref()
                    .map(|(src, dst)| manager.copy(src, dst).method(TransferMethod::HostStaged).submit());
                let outcomes = copies.map(|copy| copy.wait().map_err(|error| error.kind()));
                assert_eq!(outcomes.iter().flatten().count(), 3 - usize::from(fails), "{name}");
                assert!(
                    outcomes
                        .iter()
                        .all(|one| one.as_ref().err().is_none_or(|kind| *kind == ErrorKind::Device))
                );
                manager.drain().unwrap();
                assert_eq!(manager.staging_bytes(), 0, "{name}");
            });
        });
        find(&records, name, events::STAGING, &["transfer"]);
    }
}

#[test]
fn unavailable_kernel_is_reported_with_the_error() {
    let records = record(|| {
        let (manager, backend) = manager(Mock { in_place: Some(MOCK), ..Mock::default() });
        let (src, dst) = pair(&manager, 1000);
        backend.refuse_next(ErrorKind::Unsupported);
        let urgent = TransferOptions::new().only(TransferMethod::HostStaged).priority(StreamPriority::High);
        manager.prepare(src.place(), dst.place(), &urgent).unwrap();
    });
    let unavailable = find_one(&records, events::KERNEL_UNAVAILABLE, events::TRANSFER, &["error"]);
    assert_eq!(unavailable.field("device"), Some("mock:0"));
}

#[test]
fn deferred_events_are_emitted_by_an_observed_end_and_by_a_drain() {
    let records = record(|| {
        let (manager, _backend) = manager(Mock::default());
        let (src, dst) = pair(&manager, 1000);
        events::report::drop_failed(&"noticed before the end");
        let transfer = manager.copy(&src, &dst).submit();
        assert_none(&event_log::so_far(), events::DROP_FAILED);
        transfer.wait().unwrap();
        find_one(&event_log::so_far(), events::DROP_FAILED, events::DRIVER, &["error"]);
        events::report::drop_failed(&"noticed before the drain");
        manager.drain().unwrap();
    });
    assert_eq!(find(&records, events::DROP_FAILED, events::DRIVER, &["error"]).len(), 2);
}

#[test]
fn caught_panic_is_reported_with_its_text() {
    let records = record(|| {
        let (manager, backend) = manager(Mock::default());
        let (src, dst) = pair(&manager, 1000);
        backend.panic_at_enqueues(0, 1);
        manager.copy(&src, &dst).method(TransferMethod::HostStaged).wait().unwrap_err();
        manager.drain().ok();
    });
    let panic = find(&records, events::PANIC_CAUGHT, events::THREADS, &["text"]);
    assert!(panic[0].field("text").unwrap().contains("planted panic"));
    let failed = find_one(&records, events::TRANSFER_FAILED, events::TRANSFER, &["transfer"]);
    let submitted = find_one(&records, events::TRANSFER_SUBMITTED, events::TRANSFER, &[]);
    assert_eq!(failed.field("transfer"), submitted.field("transfer"));
}

#[test]
fn failed_dependency_is_reported_and_the_transfer_completes() {
    let records = record(|| {
        let (manager, backend) = manager(Mock::default());
        let (src, dst) = pair(&manager, 1000);
        let queue = backend.lease_queue(MOCK, StreamPriority::Normal, WorkloadType::Memory).unwrap();
        backend.fail_next(ErrorKind::Device);
        let other = pair(&manager, 64);
        let operation = Operation::Copy { src: &other.0, dst: &other.1 };
        let failing = submit(&*queue, &operation, Timing::Off).unwrap();
        manager.copy(&src, &dst).after(&failing).method(TransferMethod::HostStaged).wait().unwrap();
        manager.drain().unwrap();
    });
    let failed = find_one(&records, events::DEPENDENCY_FAILED, events::STAGING, &["error"]);
    let completed = find_one(&records, events::TRANSFER_COMPLETED, events::TRANSFER, &[]);
    assert_eq!(failed.field("transfer"), completed.field("transfer"));
}

#[test]
fn subscriber_that_panics_at_a_failed_dependency_ends_no_transfer() {
    record_panicking(events::DEPENDENCY_FAILED, || {
        let (manager, backend) = manager(Mock::default());
        let (src, dst) = pair(&manager, 1000);
        let queue = backend.lease_queue(MOCK, StreamPriority::Normal, WorkloadType::Memory).unwrap();
        backend.fail_next(ErrorKind::Device);
        let other = pair(&manager, 64);
        let operation = Operation::Copy { src: &other.0, dst: &other.1 };
        let failing = submit(&*queue, &operation, Timing::Off).unwrap();
        // By a task: a thread that waits would copy by itself.
        let copy = manager.copy(&src, &dst).after(&failing).method(TransferMethod::HostStaged);
        pollster::block_on(copy.into_future()).unwrap();
        manager.drain().unwrap();
    });
}

/// A drain that is called again after the panic waits for nothing that is gone.
#[test]
fn subscriber_that_panics_at_an_unobserved_failure_hinders_no_drain() {
    for (name, kind) in
        [(events::FAILURE_UNOBSERVED, ErrorKind::Device), (events::DEVICE_LOST, ErrorKind::DeviceLost)]
    {
        record_panicking(name, || {
            within("drains whose subscriber panics", move || {
                let (manager, backend) = manager(Mock::default());
                let pairs = [(); 3].map(|()| pair(&manager, 1000));
                backend.fail_next(kind);
                pairs.iter().for_each(|(src, dst)| drop(manager.copy(src, dst).submit()));
                let drained = catch_unwind(AssertUnwindSafe(|| manager.drain()));
                assert_eq!(drained.map(|drained| drained.unwrap_err().kind()).ok(), Some(kind), "{name}");
                manager.drain().unwrap();
                let counts = manager.get_transfer_stats();
                let counted = counts.iter().map(|counts| counts.transfers + counts.failures).sum::<u64>();
                assert_eq!(counted, 3, "{name}");
            });
        });
    }
}

#[test]
fn plan_agrees_with_a_transfer_that_has_an_id() {
    record(|| {
        let (manager, _backend) = manager(Mock::default());
        let (src, dst) = pair(&manager, 1000);
        let plan = manager.copy(&src, &dst).plan().unwrap();
        let report = manager.copy(&src, &dst).wait().unwrap();
        assert!(report.id.is_some() && plan.agrees_with(&report), "{plan}\n{report:?}");
    });
}

#[test]
fn deferred_and_blocked_submissions_keep_their_id() {
    let records = record(|| {
        let (manager, _) = manager(Mock::default());
        let (src, dst) = pair(&manager, 64);
        // The first transfer of a path.
        pollster::block_on(manager.copy(&src, &dst).into_future()).unwrap();
    });
    let submitted = find_one(&records, events::TRANSFER_SUBMITTED, events::TRANSFER, &["transfer"]);
    let deferred = find_one(&records, events::TRANSFER_DEFERRED, events::TRANSFER, &[]);
    assert_eq!(deferred.field("transfer"), submitted.field("transfer"));
    assert_none(&records, events::TRANSFER_BLOCKED);

    let records = record(|| {
        let (manager, _) = manager(Mock::default());
        // The host takes no part in this copy.
        let [src, dst] = [0; 2].map(|_| manager.allocate(MOCK, MemoryKind::Device, 64).unwrap());
        manager.copy(&src, &dst).wait().unwrap();
        let gate = Gate::before(&dst);
        let mut copying = manager.copy(&src, &dst).into_future();
        let mut context = Context::from_waker(Waker::noop());
        assert!(copying.as_mut().poll(&mut context).is_pending());
        gate.open();
        pollster::block_on(copying).unwrap();
    });
    let submitted = find(&records, events::TRANSFER_SUBMITTED, events::TRANSFER, &["transfer"]);
    let blocked = find(&records, events::TRANSFER_BLOCKED, events::TRANSFER, &[]);
    assert!(blocked.iter().all(|blocked| blocked.field("transfer") == submitted[1].field("transfer")));
}
