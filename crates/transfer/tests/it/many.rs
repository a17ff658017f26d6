//! Many copies at once: one report, errors by index, and nothing copied of a list that is wrong.

use std::{
    future::IntoFuture,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    thread::{self, ThreadId},
};

use parking_lot::Mutex;
use transload_backend_cpu::CpuBackend;
use transload_core::{
    Access, DeviceId, ErrorKind, ListWay, MemoryKind, Observer, RawBuffer, Retry, TransferEvent,
    TransferMethod, TryLockResult,
};
use transload_transfer::{CopyManyError, CrossBackendTransferManager, TransferOptions};

use crate::{
    MOCK, Mock, beside_cpu,
    gate::Gate,
    is_at_rest,
    mock::{bytes, read_only, set_bytes},
    staging::{OTHER, two_devices},
    watchdog::within,
    with,
};

type Pair = (RawBuffer, RawBuffer);

/// Sources of ones and destinations of zeros, 8 bytes each, of three paths in turn.
fn mixed(manager: &CrossBackendTransferManager, count: usize) -> Vec<Pair> {
    let kinds = [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped];
    let sources = kinds.map(|kind| manager.allocate_for(MOCK, kind, 8 * count));
    let sources =
        sources.map(|source| source.or_else(|_| manager.allocate(DeviceId::Cpu, kinds[0], 8 * count)));
    let target = manager.allocate(MOCK, MemoryKind::Device, 8 * count).unwrap();
    let sources = sources.map(|source| {
        let source = source.unwrap();
        set_bytes(&source, 1);
        source
    });
    let part = |of: &RawBuffer, at: usize| of.slice(at * 8..at * 8 + 8).unwrap();
    (0..count).map(|at| (part(&sources[at % 3], at), part(&target, count - 1 - at))).collect()
}

fn are_copied(pairs: &[Pair]) -> bool {
    pairs.iter().all(|(_, dst)| bytes(dst) == [1; 8])
}

fn are_untouched(pairs: &[Pair]) -> bool {
    pairs.iter().all(|(_, dst)| bytes(dst).iter().all(|byte| *byte == 0))
}

fn host_pool(manager: &CrossBackendTransferManager, len: usize, byte: u8) -> RawBuffer {
    let pool = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, len).unwrap();
    pool.write().unwrap().fill(byte);
    pool
}

fn on_host() -> CrossBackendTransferManager {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager
}

#[test]
fn pairs_of_several_paths_are_one_report() {
    let (manager, _backend) = with(Mock::default());
    for awaited in [false, true] {
        let mut pairs = mixed(&manager, 10);
        let none = pairs[4].0.slice(..0).unwrap();
        pairs.insert(5, (none.clone(), none));
        let copy = manager.copy_many(&pairs);
        let report = if awaited { pollster::block_on(copy.into_future()) } else { copy.wait() }.unwrap();
        assert_eq!((report.pairs, report.bytes, report.groups.len()), (11, 80, 3));
        assert_eq!(report.groups.iter().map(|group| group.chunks).collect::<Vec<_>>(), [4, 3, 3]);
        assert_eq!(report.groups.iter().map(|group| group.bytes).sum::<u64>(), 80);
        assert!(report.to_string().starts_with("11 pairs, 80 bytes in "), "{report}");
        pairs.remove(5);
        assert!(are_copied(&pairs));
    }
    let transfers: u64 = manager.get_transfer_stats().iter().map(|stats| stats.transfers).sum();
    assert_eq!(
        transfers, 14,
        "one for pageable memory, and of those by queues, which take no lists here, one a pair"
    );
    assert!(is_at_rest(&manager));
}

#[test]
fn empty_lists_copy_nothing() {
    let (manager, backend) = with(Mock::default());
    let none = manager.allocate(MOCK, MemoryKind::Device, 8).unwrap().slice(..0).unwrap();
    for pairs in [Vec::new(), vec![(none.clone(), none.clone()); 3]] {
        let transfer = manager.copy_many(&pairs).submit();
        assert!(transfer.is_complete() && transfer.fences().next().is_none());
        let report = transfer.wait().unwrap();
        assert_eq!((report.pairs, report.bytes, report.groups.len()), (pairs.len(), 0, 0));
        pollster::block_on(manager.copy_many(pairs).into_future()).unwrap();
    }
    assert_eq!(backend.enqueued(), 0);
}

/// Checks that the list is refused with these indices by every form, and that nothing is copied.
fn is_refused(manager: &CrossBackendTransferManager, pairs: &[Pair], kind: ErrorKind, indices: &[usize]) {
    let check = |failed: CopyManyError| {
        assert_eq!((failed.kind(), failed.pairs.as_slice()), (kind, indices), "{failed}");
        assert!(
            failed.to_string().contains(&format!("pair {}", indices[0])) || indices.len() > 1,
            "{failed}"
        );
        assert_eq!(transload_core::Error::from(failed).kind(), kind);
    };
    check(manager.copy_many(pairs).wait().unwrap_err());
    check(pollster::block_on(manager.copy_many(pairs).into_future()).unwrap_err());
    // Nobody takes this one's error.
    drop(manager.copy_many(pairs).submit());
    assert_eq!(manager.drain().unwrap_err().kind(), kind);
}

#[test]
fn wrong_list_is_refused_by_index_and_copies_nothing() {
    let (manager, backend) = with(Mock::default());
    let good = mixed(&manager, 9);
    let alone = |pairs: &[Pair]| pairs.iter().step_by(3).cloned().collect::<Vec<_>>();
    // Of three paths, and of one.
    for good in [good.clone(), alone(&good)] {
        let at = good.len() - 2;
        let wrong = |pair: Pair| {
            let mut pairs = good.clone();
            pairs[at] = pair;
            pairs
        };
        let (src, dst) = good[at].clone();
        let short = wrong((src.slice(..7).unwrap(), dst.clone()));
        is_refused(&manager, &short, ErrorKind::InvalidArgument, &[at]);
        let mut two = short;
        two[0].0 = read_only(7);
        is_refused(&manager, &two, ErrorKind::InvalidArgument, &[0, at]);
        let text = manager.copy_many(&two).wait().unwrap_err().to_string();
        assert!(text.starts_with("2 of ") && text.contains("the first is pair 0"), "{text}");
        is_refused(&manager, &wrong((src.clone(), read_only(8))), ErrorKind::InvalidArgument, &[at]);
        is_refused(&manager, &wrong((src.clone(), src.clone())), ErrorKind::Overlap, &[at]);
        is_refused(&manager, &wrong((src.clone(), good[0].1.clone())), ErrorKind::Overlap, &[0, at]);
        // A destination that is another pair's source.
        is_refused(&manager, &wrong((dst, good[at + 1].0.clone())), ErrorKind::Overlap, &[at, at + 1]);
        assert!(are_untouched(&good));
    }
    assert_eq!(backend.enqueued(), 0);
    // One source for several destinations is fine.
    let shared: Vec<Pair> = good.iter().map(|(_, dst)| (good[0].0.clone(), dst.clone())).collect();
    manager.copy_many(&shared).wait().unwrap();
    assert!(are_copied(&good));
    drop((good, shared));
    assert!(is_at_rest(&manager));
}

#[test]
fn overlap_of_lists_that_queues_take_is_refused_by_index() {
    let manager = on_host();
    let (from, to) = (host_pool(&manager, 64, 1), host_pool(&manager, 64, 0));
    let pair = |src: usize, dst: usize| (from.slice(src..src + 8).unwrap(), to.slice(dst..dst + 8).unwrap());
    is_refused(&manager, &[pair(0, 0), pair(8, 24), pair(16, 31)], ErrorKind::Overlap, &[1, 2]);
    assert_eq!(*to.read().unwrap(), [0; 64]);
    manager.copy_many(vec![pair(0, 0), pair(4, 24), pair(0, 32)]).wait().unwrap();
    assert_eq!(to.read().unwrap().iter().map(|byte| usize::from(*byte)).sum::<usize>(), 24);
}

#[test]
fn path_without_a_method_refuses_the_whole_list() {
    let devices = vec![
        (DeviceId::Cpu, vec![MemoryKind::Pageable]),
        (MOCK, vec![MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped]),
    ];
    let copies = |src: transload_core::Place, _| src.kind != MemoryKind::Mapped;
    let (manager, backend) = with(Mock { devices, copies, ..Mock::default() });
    let pairs = mixed(&manager, 6);
    let failed = manager.copy_many(&pairs).wait().unwrap_err();
    assert_eq!((failed.error.kind(), failed.pairs.as_slice()), (ErrorKind::Unsupported, &[2, 5][..]));
    assert!(are_untouched(&pairs));
    assert_eq!(backend.enqueued(), 0);
}

#[test]
fn way_that_a_path_lacks_refuses_the_whole_list() {
    let (manager, backend) = beside_cpu();
    let far = manager.allocate(MOCK, MemoryKind::Device, 8).unwrap();
    let up = (host_pool(&manager, 8, 1), far);
    let within = (host_pool(&manager, 8, 1), host_pool(&manager, 8, 0));
    for way in ListWay::ALL.into_iter().filter(|way| *way != ListWay::OneByOne) {
        let failed = manager.copy_many(vec![within.clone()]).way(way).wait().unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::Unsupported, "host threads copy: {failed}");
        let failed = manager.copy_many(vec![up.clone(), within.clone()]).way(way).wait().unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::Unsupported, "{failed}");
    }
    assert_eq!(backend.enqueued(), 0);
    manager.copy_many(vec![up.clone()]).way(ListWay::CopyEngine).wait().unwrap();
    assert_eq!((bytes(&up.1), &*within.1.read().unwrap()), (vec![1; 8], &[0; 8][..]));
}

#[test]
fn wanted_kernel_that_cannot_be_loaded_refuses_the_whole_list() {
    let (manager, backend) = with(Mock { in_place: Some(MOCK), ..Mock::default() });
    let pairs = mixed(&manager, 6);
    let pageable: Vec<Pair> = pairs.iter().step_by(3).cloned().collect();
    for list in [&pageable, &pairs] {
        for (planted, told) in
            [(ErrorKind::Device, ErrorKind::Unsupported), (ErrorKind::DeviceLost, ErrorKind::DeviceLost)]
        {
            backend.refuse_next(planted);
            let failed = manager.copy_many(list).way(ListWay::CopyKernel).wait().unwrap_err();
            assert_eq!(failed.error.kind(), told, "{failed}");
            assert!(failed.to_string().contains("planted refusal"), "{failed}");
        }
    }
    assert!(are_untouched(&pairs));
    assert_eq!(backend.enqueued(), 0);
}

#[test]
fn failed_pairs_of_one_path_are_those_with_bytes() {
    let (manager, backend) = beside_cpu();
    let mixed = mixed(&manager, 6);
    let none = mixed[0].0.slice(..0).unwrap();
    let mut pairs: Vec<Pair> = mixed.iter().step_by(3).cloned().collect();
    pairs.insert(1, (none.clone(), mixed[0].1.slice(..0).unwrap()));
    backend.fail_next(ErrorKind::Device);
    let failed = manager.copy_many(&pairs).wait().unwrap_err();
    assert_eq!((failed.kind(), failed.pairs.as_slice()), (ErrorKind::Device, &[0, 2][..]), "{failed}");
}

#[test]
fn blocks_of_more_pairs_than_memory_are_refused() {
    const BLOCKS: usize = 1 << 22;
    let manager = on_host();
    // One pool for all layers.
    let pools = vec![host_pool(&manager, BLOCKS, 0); 1 << 21];
    let indices: Vec<usize> = (0..BLOCKS).collect();
    let refused = manager.copy_blocks((&pools, &indices), (&pools, &indices), 1).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
}

#[test]
fn failed_pair_is_named_and_others_are_in_place() {
    let (manager, backend) = with(Mock::default());
    let method = TransferOptions::new().only(TransferMethod::DirectCopy);
    for awaited in [false, true] {
        backend.perform_at_once();
        let pairs = mixed(&manager, 9);
        // The fourth that runs: the second group's first, with index 1.
        (0..3).for_each(|_| backend.pass_next());
        backend.fail_next(ErrorKind::Device);
        let copy = manager.copy_many(&pairs).options(method);
        let outcome = if awaited { pollster::block_on(copy.into_future()) } else { copy.wait() };
        let failed = outcome.unwrap_err();
        assert_eq!((failed.error.kind(), failed.pairs.as_slice()), (ErrorKind::Device, &[1][..]), "{failed}");
        let others: Vec<Pair> =
            pairs.iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, pair)| pair.clone()).collect();
        assert!(are_copied(&others) && are_untouched(&pairs[1..2]));
    }
    assert!(is_at_rest(&manager));
}

#[test]
fn panic_leaves_what_was_submitted_and_names_the_rest() {
    let (manager, backend) = with(Mock::default());
    backend.perform_at_once();
    let pairs = mixed(&manager, 90);
    let method = TransferOptions::new().only(TransferMethod::DirectCopy);
    // More than the polling thread submits itself. It is one of the second group.
    backend.panic_at_enqueues(40, 1);
    let failed = pollster::block_on(manager.copy_many(&pairs).options(method).into_future()).unwrap_err();
    let group = |of: usize| (0..30).map(move |pair| 3 * pair + of);
    let submitted = pairs.len() - failed.pairs.len();
    assert!((31..=40).contains(&submitted), "{submitted} were submitted");
    let mut rest: Vec<_> = (0..3).flat_map(group).skip(submitted).collect();
    rest.sort_unstable();
    assert_eq!((failed.error.kind(), &failed.pairs), (ErrorKind::Interrupted, &rest), "{failed}");
    let others = |(at, _): &(usize, &Pair)| !rest.contains(at);
    let others: Vec<Pair> = pairs.iter().enumerate().filter(others).map(|(_, pair)| pair.clone()).collect();
    assert!(are_copied(&others));
    drop((pairs, others));
    assert!(is_at_rest(&manager));
}

#[test]
fn refused_pair_is_named_and_others_go_on() {
    let (manager, backend) = with(Mock::default());
    let method = TransferOptions::new().only(TransferMethod::DirectCopy);
    let pairs = mixed(&manager, 3);
    let guard = pairs[1].1.try_lock_range(Access::Write).unwrap();
    assert!(matches!(guard, TryLockResult::Locked(_)));
    let before = backend.enqueued();
    let failed = manager.copy_many(&pairs).options(method).wait().unwrap_err();
    assert_eq!((failed.error.kind(), failed.pairs.as_slice()), (ErrorKind::Busy, &[1][..]), "{failed}");
    assert_eq!((failed.kind(), failed.retry()), (ErrorKind::Busy, Retry::Later), "{failed}");
    assert_eq!(backend.enqueued() - before, 2);
    drop(guard);
    manager.copy_many(&pairs).options(method).wait().unwrap();
    assert!(are_copied(&pairs));
}

#[test]
fn list_takes_its_place_between_copies() {
    let (manager, _backend) = beside_cpu();
    let (first, last) = (host_pool(&manager, 800, 7), host_pool(&manager, 800, 0));
    let near = manager.allocate_for(MOCK, MemoryKind::Pinned, 800).unwrap();
    let far = manager.allocate(MOCK, MemoryKind::Device, 800).unwrap();
    let pairs: Vec<Pair> = (0..100)
        .map(|at| (near.slice(at * 8..at * 8 + 8).unwrap(), far.slice(792 - at * 8..800 - at * 8).unwrap()))
        .collect();
    let before = manager.copy(&first, &near).submit();
    let many = manager.copy_many(&pairs).submit();
    let after = manager.copy(&far, &last).submit();
    after.wait().unwrap();
    assert_eq!(*last.read().unwrap(), [7; 800]);
    many.wait().unwrap();
    before.wait().unwrap();
}

#[test]
fn list_waits_for_its_fence_and_dropped_handles_are_drained() {
    within("a list after a fence", || {
        let (manager, backend) = with(Mock::default());
        let (pairs, gate) = (mixed(&manager, 9), Gate::new());
        let mut copying = manager.copy_many(&pairs).after(&gate.fence()).into_future();
        assert!(copying.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(backend.enqueued(), 0);
        gate.open();
        pollster::block_on(copying).unwrap();
        assert!(are_copied(&pairs));

        let again = mixed(&manager, 9);
        let by_queues = TransferOptions::new().only(TransferMethod::DirectCopy);
        let transfer = manager.copy_many(&again).options(by_queues).submit();
        assert_eq!(transfer.fences().count(), 9);
        backend.fail_next(ErrorKind::Device);
        drop((transfer, again.clone()));
        assert_eq!(manager.drain().unwrap_err().kind(), ErrorKind::Device);
        assert_eq!(again.iter().filter(|(_, dst)| bytes(dst) == [1; 8]).count(), 8);
        drop((pairs, again));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn error_seen_by_a_dropped_future_is_kept_for_drain() {
    let (manager, backend) = with(Mock::default());
    let gate = Gate::new();
    let [up, down] = [(DeviceId::Cpu, MOCK), (MOCK, DeviceId::Cpu)].map(|(from, to)| {
        let allocate = |device: DeviceId| {
            let kind = if device.is_cpu() { MemoryKind::Pageable } else { MemoryKind::Device };
            manager.allocate(device, kind, 8).unwrap()
        };
        (allocate(from), allocate(to))
    });
    backend.close_downloads(gate.fence());
    backend.fail_next(ErrorKind::Device);
    let method = TransferOptions::new().only(TransferMethod::DirectCopy);
    // Kept, so that no drain finds the error in memory pending free.
    let pairs = [up, down];
    let mut many = manager.copy_many(&pairs).options(method).submit();
    // The first ends with an error, the second is held.
    while backend.performed() == 0 {
        assert!(pin!(&mut many).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert!(pin!(&mut many).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(many);
    gate.open();
    assert_eq!(manager.drain().unwrap_err().kind(), ErrorKind::Device);
    drop(pairs);
    assert!(is_at_rest(&manager));
}

#[test]
fn list_of_pageable_memory_is_one_staged_transfer() {
    const COUNT: usize = 3_000;
    let (manager, backend) = with(Mock::default());
    let only = TransferOptions::new().only(TransferMethod::HostStaged);
    let allocate = |device: DeviceId, kind| manager.allocate(device, kind, 1 << 20).unwrap();
    let (from, back) =
        (allocate(DeviceId::Cpu, MemoryKind::Pageable), allocate(DeviceId::Cpu, MemoryKind::Pageable));
    let far = allocate(MOCK, MemoryKind::Device);
    from.write().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
    // Of 0 to 346 bytes, across the borders of chunks.
    let lens: Vec<usize> = (0..COUNT).map(|at| at * 7 % 347).collect();
    let scatter = |near: &RawBuffer, up: bool| -> Vec<Pair> {
        let (mut at, mut there) = (0, 1 << 20);
        lens.iter()
            .map(|len| {
                there -= len;
                let pair = (near.slice(at..at + len).unwrap(), far.slice(there..there + len).unwrap());
                at += len;
                if up { pair } else { (pair.1, pair.0) }
            })
            .collect()
    };
    let up = manager.copy_many(scatter(&from, true)).options(only).submit();
    let down = manager.copy_many(scatter(&back, false)).options(only).submit();
    assert_eq!((up.fences().count(), down.fences().count()), (1, 1));
    let report = down.wait().unwrap();
    assert_eq!((report.groups[0].method, report.groups[0].bytes), (TransferMethod::HostStaged, report.bytes));
    assert_eq!(report.groups[0].chunks as usize, lens.iter().filter(|len| **len > 0).count());
    up.wait().unwrap();
    let moved = report.bytes as usize;
    assert!(from.read().unwrap()[..moved] == back.read().unwrap()[..moved]);

    // A chunk that fails fails all, and the destination is not known to be right.
    backend.pass_next();
    backend.fail_next(ErrorKind::Device);
    let failed = manager.copy_many(scatter(&back, false)).options(only).wait().unwrap_err();
    let not_empty = lens.iter().filter(|len| **len > 0).count();
    assert_eq!((failed.error.kind(), failed.pairs.len()), (ErrorKind::Device, not_empty));
    assert_eq!(back.slice(..moved).unwrap().read().unwrap_err().kind(), ErrorKind::SourceFailed);
    manager.copy_many(scatter(&back, false)).options(only).wait().unwrap();
    assert!(from.read().unwrap()[..moved] == back.read().unwrap()[..moved]);
    drop((from, back, far));
    assert!(is_at_rest(&manager));
}

/// The thread of each submission.
#[derive(Default)]
struct Submitters(Mutex<Vec<ThreadId>>);

impl Observer for Submitters {
    fn transfer(&self, event: TransferEvent<'_>) {
        if let TransferEvent::Submitted { .. } = event {
            self.0.lock().push(thread::current().id());
        }
    }
}

#[test]
fn million_pairs_are_prepared_by_another_thread() {
    const COUNT: usize = 1_000_000;
    let submitters = Arc::new(Submitters::default());
    let manager = CrossBackendTransferManager::builder().observer(Arc::clone(&submitters) as _).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let (from, to) = (host_pool(&manager, COUNT, 3), host_pool(&manager, COUNT, 0));
    let pairs: Vec<Pair> = (0..COUNT)
        .map(|at| (from.slice(at..at + 1).unwrap(), to.slice(COUNT - 1 - at..COUNT - at).unwrap()))
        .collect();
    let mut bad = pairs.clone();
    bad[COUNT - 1].0 = from.slice(..2).unwrap();
    let failed = pollster::block_on(manager.copy_many(bad).into_future()).unwrap_err();
    assert_eq!(
        (failed.error.kind(), failed.pairs.as_slice()),
        (ErrorKind::InvalidArgument, &[COUNT - 1][..])
    );
    assert!(to.read().unwrap().iter().all(|byte| *byte == 0));

    let report = pollster::block_on(manager.copy_many(pairs).into_future()).unwrap();
    assert_eq!((report.pairs, report.bytes, report.groups.len()), (COUNT, COUNT as u64, 1));
    assert!(to.read().unwrap().iter().all(|byte| *byte == 3));
    let threads = submitters.0.lock();
    assert!(!threads.is_empty() && threads.iter().all(|thread| *thread != thread::current().id()));
    drop(threads);
    drop((from, to));
    assert!(is_at_rest(&manager));
}

#[test]
fn scratch_memory_is_allocated_again_after_panics() {
    const SIZE: usize = 16 << 10;
    const COUNT: usize = 100;
    let (manager, backend) = with(Mock { in_place: Some(MOCK), ..Mock::default() });
    let host = manager.allocate_for(MOCK, MemoryKind::Pinned, SIZE * COUNT).unwrap();
    let there = manager.allocate(MOCK, MemoryKind::Device, SIZE * COUNT).unwrap();
    let part = |of: &RawBuffer, at: usize| of.slice(at * SIZE..(at + 1) * SIZE).unwrap();
    let pairs: Vec<_> = (0..COUNT).map(|at| (part(&host, at), part(&there, at * 7 % COUNT))).collect();
    let allocated = || manager.resource_counts()[0].1.allocations;
    let before = allocated();
    // As many as there may be buffers.
    backend.panic_at_allocations(0, 3);
    let is_made = (0..300).any(|_| {
        let submit = || drop(manager.copy_many(&pairs).wait());
        let _panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(submit));
        allocated() > before
    });
    assert!(is_made, "no scratch memory after panics");
}

#[test]
fn list_without_memory_for_its_way_is_staged_as_one() {
    let (manager, backend) = two_devices();
    let new = |device| manager.allocate(device, MemoryKind::Device, 1 << 19).unwrap();
    let pairs: Vec<Pair> = (0..4).map(|_| (new(MOCK), new(OTHER))).collect();
    // A second try would succeed.
    backend.refuse_next(ErrorKind::OutOfMemory);
    let report = manager.copy_many(&pairs).wait().unwrap();
    let methods: Vec<_> = report.groups.iter().map(|group| (group.method, group.chunks)).collect();
    assert_eq!(methods, [(TransferMethod::HostStaged, 4)]);
}
