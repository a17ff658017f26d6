//! Events of lists that are copied pair by pair: those of one transfer for each path.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use parking_lot::Mutex;
use transload_core::{
    DeviceId, ErrorKind, Fence, MemoryKind, Observer, RawBuffer, TransferEvent, TransferReport, Wanted,
};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    MOCK, Mock, is_at_rest,
    mock::{MockBackend, bytes, set_bytes},
};

/// Keeps what it is told: the event, the id, bytes and pieces.
#[derive(Default)]
struct Told {
    events: Mutex<Vec<(&'static str, u64, u64, u32)>>,
    ends: Mutex<Vec<Fence>>,
    asked: AtomicU32,
}

impl Observer for Told {
    fn transfer(&self, event: TransferEvent<'_>) {
        let keep = |name, report: &TransferReport| {
            self.events.lock().push((name, report.id.unwrap().get(), report.bytes, report.chunks));
        };
        match event {
            TransferEvent::Submitted { report, end, .. } => {
                keep("submitted", report);
                assert!(report.submitting.is_some() && report.predicted.is_zero());
                self.ends.lock().extend(end.cloned());
            }
            TransferEvent::Completed(report) => {
                keep("completed", report);
                assert!(report.elapsed.is_some());
            }
            TransferEvent::Failed(report, _) => keep("failed", report),
            TransferEvent::Abandoned(report) => keep("abandoned", report),
            _ => {}
        }
    }

    fn wants(&self, _: u64) -> Wanted {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Wanted::Events
    }
}

/// The mock's queues take no lists.
fn observed() -> (Arc<Told>, Arc<MockBackend>, CrossBackendTransferManager) {
    let (told, backend) = (Arc::new(Told::default()), Mock::default().build());
    let manager = CrossBackendTransferManager::builder().observer(Arc::clone(&told) as _).build();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    (told, backend, manager)
}

fn pairs(
    manager: &CrossBackendTransferManager,
    count: usize,
    kind: MemoryKind,
) -> Vec<(RawBuffer, RawBuffer)> {
    let src = match kind {
        MemoryKind::Pageable => manager.allocate(DeviceId::Cpu, kind, 8 * count),
        _ => manager.allocate_for(MOCK, kind, 8 * count),
    };
    let (src, dst) = (src.unwrap(), manager.allocate(MOCK, MemoryKind::Device, 8 * count).unwrap());
    set_bytes(&src, 1);
    let part = |of: &RawBuffer, at: usize| of.slice(at * 8..at * 8 + 8).unwrap();
    // Not in one piece.
    (0..count).map(|at| (part(&src, at), part(&dst, count - 1 - at))).collect()
}

fn are_copied(pairs: &[(RawBuffer, RawBuffer)]) -> bool {
    pairs.iter().all(|(_, dst)| bytes(dst) == [1; 8])
}

#[test]
fn list_by_pairs_has_the_events_of_one_transfer() {
    let (told, _backend, manager) = observed();
    for awaited in [false, true] {
        let pairs = pairs(&manager, 5, MemoryKind::Pinned);
        let report = match awaited {
            false => manager.copy_many(&pairs).wait().unwrap(),
            true => pollster::block_on(async { manager.copy_many(&pairs).await }).unwrap(),
        };
        assert!(are_copied(&pairs));
        let id = report.groups[0].id.unwrap().get();
        let events = std::mem::take(&mut *told.events.lock());
        assert_eq!(events, [("submitted", id, 40, 5), ("completed", id, 40, 5)]);
        assert_eq!(told.asked.swap(0, Ordering::Relaxed), 1, "it is one transfer");
    }
    assert!(is_at_rest(&manager));
}

#[test]
fn list_of_two_paths_has_the_events_of_two_transfers() {
    let (told, _backend, manager) = observed();
    let mut list = pairs(&manager, 3, MemoryKind::Pinned);
    list.extend(pairs(&manager, 2, MemoryKind::Pageable));
    let report = manager.copy_many(&list).wait().unwrap();
    let ids: Vec<_> = report.groups.iter().map(|group| group.id.unwrap().get()).collect();
    let mut events = told.events.lock().clone();
    events.sort_by_key(|event| (event.1, event.0));
    let of = |name, group: usize, pieces: u32| (name, ids[group], 8 * u64::from(pieces), pieces);
    let expected =
        [of("completed", 0, 3), of("submitted", 0, 3), of("completed", 1, 2), of("submitted", 1, 2)];
    assert_eq!(events, expected);
}

#[test]
fn list_by_pairs_whose_handle_is_dropped_is_told_with_its_end() {
    let (told, _backend, manager) = observed();
    let pairs = pairs(&manager, 4, MemoryKind::Pinned);
    drop(manager.copy_many(&pairs).submit());
    let events: Vec<_> = told.events.lock().iter().map(|event| (event.0, event.2, event.3)).collect();
    assert_eq!(events, [("submitted", 32, 4), ("abandoned", 32, 4)]);
    let end = told.ends.lock().pop().unwrap();
    end.wait().unwrap();
    assert!(end.is_known_complete() && are_copied(&pairs));
    drop((end, pairs));
    assert!(is_at_rest(&manager));
}

#[test]
fn list_by_pairs_fails_once() {
    let (told, backend, manager) = observed();
    let pairs = pairs(&manager, 5, MemoryKind::Pinned);
    backend.pass_next();
    backend.fail_next(ErrorKind::Device);
    backend.fail_next(ErrorKind::Device);
    let error = manager.copy_many(&pairs).wait().unwrap_err();
    assert_eq!(error.pairs, [1, 2]);
    let events: Vec<_> = told.events.lock().iter().map(|event| (event.0, event.2, event.3)).collect();
    assert_eq!(events, [("submitted", 40, 5), ("failed", 40, 5)]);
}

#[test]
fn pairs_that_are_refused_fail_their_list_once() {
    for (refused, expected) in
        [(1, &["submitted", "failed"][..]), (2, &["submitted", "failed"]), (3, &["failed"])]
    {
        let (told, backend, manager) = observed();
        let pairs = pairs(&manager, 3, MemoryKind::Pinned);
        // The list, which then goes by pairs, and the first of these.
        backend.refuse_next(ErrorKind::Unsupported);
        (0..refused).for_each(|_| backend.refuse_next(ErrorKind::Device));
        let error = manager.copy_many(&pairs).wait().unwrap_err();
        assert_eq!(error.pairs, (0..refused).collect::<Vec<_>>());
        let events: Vec<_> = told.events.lock().iter().map(|event| (event.0, event.2, event.3)).collect();
        assert_eq!(events, expected.iter().map(|name| (*name, 24, 3)).collect::<Vec<_>>());
        drop((error, pairs));
        assert!(is_at_rest(&manager));
    }
}

#[test]
fn list_by_pairs_that_failed_before_its_handle_is_dropped_has_failed() {
    let (told, backend, manager) = observed();
    let pairs = pairs(&manager, 3, MemoryKind::Pinned);
    backend.refuse_next(ErrorKind::Unsupported);
    backend.refuse_next(ErrorKind::Device);
    let mut list = manager.copy_many(&pairs).submit();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let _first = std::pin::Pin::new(&mut list).poll(&mut context);
    drop(list);
    let names: Vec<_> = told.events.lock().iter().map(|event| event.0).collect();
    assert_eq!(names, ["submitted", "failed"]);
}

#[test]
fn blocks_that_go_as_pairs_are_asked_for_once() {
    let (told, _backend, manager) = observed();
    let src = manager.allocate_for(MOCK, MemoryKind::Pinned, 64).unwrap();
    let dst = manager.allocate(MOCK, MemoryKind::Device, 64).unwrap();
    set_bytes(&src, 1);
    let blocks = manager.copy_blocks((&[src], &[0, 2, 4, 6]), (std::slice::from_ref(&dst), &[7, 5, 3, 1]), 8);
    blocks.unwrap().wait().unwrap();
    assert_eq!(bytes(&dst)[8..16], [1; 8]);
    let events: Vec<_> = told.events.lock().iter().map(|event| (event.0, event.2, event.3)).collect();
    assert_eq!(events, [("submitted", 32, 4), ("completed", 32, 4)]);
    assert_eq!(told.asked.load(Ordering::Relaxed), 1);
}

#[test]
fn replay_by_pairs_has_the_events_of_one_transfer() {
    let (told, backend, manager) = observed();
    // More than a graph records.
    let pairs = pairs(&manager, 5, MemoryKind::Pinned);
    let recorded = manager.record(&pairs, &TransferOptions::new()).unwrap();
    let events = || std::mem::take(&mut *told.events.lock());
    let report = recorded.replay().wait().unwrap();
    let id = report.groups[0].id.map(|id| id.get());
    let told_once = events();
    assert_eq!(
        told_once.iter().map(|it| (it.0, it.2, it.3)).collect::<Vec<_>>(),
        [("submitted", 40, 5), ("completed", 40, 5)]
    );
    assert!(told_once.iter().all(|event| Some(event.1) == id));
    assert_eq!(told.asked.load(Ordering::Relaxed), 1);
    assert!(are_copied(&pairs));
    // The list, which then goes by pairs, and the first of these.
    backend.refuse_next(ErrorKind::Unsupported);
    backend.refuse_next(ErrorKind::Device);
    assert_eq!(recorded.replay().wait().unwrap_err().pairs, [0]);
    let events: Vec<_> = events().iter().map(|event| (event.0, event.2, event.3)).collect();
    assert_eq!(events, [("submitted", 40, 5), ("failed", 40, 5)]);
    drop((recorded, pairs));
    assert!(is_at_rest(&manager));
}
