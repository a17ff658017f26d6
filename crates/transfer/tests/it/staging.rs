//! Staged transfers end despite failures, waits and lost devices.

use std::{
    cell::Cell,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread::{self, ThreadId},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use transload_backend_cpu::CpuBackend;
use transload_core::{
    DeviceId, ErrorKind, MemoryKind, Place, RawBuffer, RejectReason, Timing, Transfer, TransferMethod,
    host_access::HostAccess,
};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    Mock, MockBackend,
    gate::Gate,
    hook, is_at_rest,
    mock::{self, MOCK, bytes},
    pair,
    watchdog::within,
    with,
};

pub(crate) const OTHER: DeviceId = DeviceId::Other("mock", 1);
const MIB: usize = 1 << 20;
const FOREVER: u64 = u64::MAX;

pub(crate) fn staged() -> TransferOptions {
    TransferOptions::new().only(TransferMethod::HostStaged).timing(Timing::Off)
}

/// Submits a staged transfer of all of `src`.
pub(crate) fn stage(manager: &CrossBackendTransferManager, src: &RawBuffer, dst: &RawBuffer) -> Transfer {
    manager.copy(src, dst).options(staged()).submit()
}

/// Returns the most staging buffers, of 4 MiB, of a ring.
pub(crate) fn most_buffers() -> usize {
    2 * thread::available_parallelism().map_or(2, usize::from).min(8)
}

/// Returns a manager with two devices that are no peers.
pub(crate) fn two_devices() -> (CrossBackendTransferManager, Arc<MockBackend>) {
    let kinds = || vec![MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Unified];
    let devices = vec![(DeviceId::Cpu, vec![MemoryKind::Pageable]), (MOCK, kinds()), (OTHER, kinds())];
    with(Mock { devices, concurrent_managed_access: true, ..Mock::default() })
}

pub(crate) fn filled(
    manager: &CrossBackendTransferManager,
    device: DeviceId,
    kind: MemoryKind,
    len: usize,
    value: u8,
) -> RawBuffer {
    let buffer = manager.allocate(device, kind, len).unwrap();
    mock::set_bytes(&buffer, value);
    buffer
}

#[test]
fn transfers_fail_if_no_pinned_memory_at_all() {
    within("400 transfers without any staging buffer", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 2 * MIB);
        backend.fail_pinned(0, FOREVER, 2);
        for _ in 0..200 {
            let (up, down) = (stage(&manager, &src, &dst), stage(&manager, &dst, &src));
            for (transfer, is_behind) in [(up, false), (down, true)] {
                let error = transfer.wait().unwrap_err();
                // One submitted after a transfer that had not failed yet returns its failure.
                let is_behind = is_behind && error.kind() == ErrorKind::SourceFailed;
                assert!(is_behind || error.kind() == ErrorKind::OutOfMemory, "{error}");
                assert!(error.to_string().contains("planted shortage"), "{error}");
            }
        }
        // No byte moved, so none is marked. After the shortage everything works again.
        assert!(src.read().is_ok());
        backend.fail_pinned(0, 0, 0);
        stage(&manager, &dst, &src).wait().unwrap();
        mock::set_bytes(&src, 1);
        stage(&manager, &src, &dst).wait().unwrap();
        assert_eq!(bytes(&dst), vec![1; 2 * MIB]);
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn ring_grows_from_one_buffer_to_limit() {
    within("transfers through a ring that grows", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 8 * MIB);
        // After the first one, at most as many are allocated at once as there are.
        backend.fail_pinned(1, FOREVER, 1);
        stage(&manager, &src, &dst).wait().unwrap();
        manager.drain().unwrap();
        let tried = FOREVER - backend.pinned_to_fail();
        assert!(tried <= 1, "{tried} further buffers at once");
        let all = most_buffers();
        let (manager, _backend) = with(Mock::default());
        let (src, dst) = pair(&manager, all * 4 * MIB);
        let made = || manager.resource_counts()[0].1.allocations as usize - 2;
        while made() < all - (all / 8).max(1) {
            stage(&manager, &src, &dst).wait().unwrap();
        }
        assert_eq!(bytes(&dst), vec![1; all * 4 * MIB]);
    });
}

#[test]
fn ring_works_with_buffers_allocated_before_shortage() {
    within("transfers through one staging buffer", || {
        for succeed in [1, 2] {
            let (manager, backend) = with(Mock::default());
            let (src, dst) = pair(&manager, 5 * MIB);
            backend.fail_pinned(succeed, FOREVER, 2);
            let transfers = [(); 4].map(|()| stage(&manager, &src, &dst));
            transfers.into_iter().for_each(|transfer| drop(transfer.wait().unwrap()));
            assert_eq!(bytes(&dst), vec![1; 5 * MIB]);
            mock::set_bytes(&src, 0);
            stage(&manager, &dst, &src).wait().unwrap();
            assert_eq!(bytes(&src), vec![1; 5 * MIB]);
            drop((src, dst));
            assert!(is_at_rest(&manager));
        }
    });
}

#[test]
fn transfers_end_during_temporary_pinned_shortage() {
    within("transfers with a temporary shortage of staging buffers", || {
        for fail in 1..12 {
            let (manager, backend) = with(Mock::default());
            let (src, dst) = pair(&manager, 5 * MIB);
            backend.fail_pinned(fail % 3, fail, 2);
            let transfers = [(); 4].map(|()| stage(&manager, &src, &dst));
            for transfer in transfers {
                match transfer.wait() {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}"),
                }
            }
            backend.fail_pinned(0, 0, 0);
            stage(&manager, &src, &dst).wait().unwrap();
            assert_eq!(bytes(&dst), vec![1; 5 * MIB]);
            drop((src, dst));
            assert!(is_at_rest(&manager));
        }
    });
}

/// Blocks the accesses of one thread until it is released.
struct Stop {
    thread: Mutex<Option<ThreadId>>,
    changed: Condvar,
    met: AtomicBool,
}

static STOP: Stop = Stop { thread: Mutex::new(None), changed: Condvar::new(), met: AtomicBool::new(false) };

thread_local! {
    /// Accesses of this thread.
    static ACCESSES: Cell<u64> = const { Cell::new(0) };
}

pub(crate) fn stop_here(_: usize, _: usize, _: HostAccess) {
    ACCESSES.set(ACCESSES.get() + 1);
    let mut stopped = STOP.thread.lock();
    while *stopped == Some(thread::current().id()) {
        STOP.met.store(true, Ordering::SeqCst);
        STOP.changed.notify_all();
        STOP.changed.wait(&mut stopped);
    }
}

#[test]
fn drain_waits_for_helping_thread() {
    within("a drain beside a waiter that stands still in its copy", || {
        hook::install();
        let (manager, _backend) = with(Mock::default());
        let manager = Arc::new(manager);
        // The waiter may come too late to copy anything: then once more.
        while !STOP.met.load(Ordering::SeqCst) {
            let (src, dst) = pair(&manager, 16 * MIB);
            // A drain frees the staging buffers, and a helping thread allocates none.
            stage(&manager, &src, &dst).wait().unwrap();
            let (begun, is_begun) = mpsc::channel();
            let (over, is_complete) = mpsc::channel();
            let waiter = {
                let (manager, src, dst) = (Arc::clone(&manager), src.clone(), dst.clone());
                thread::spawn(move || {
                    *STOP.thread.lock() = Some(thread::current().id());
                    let transfer = stage(&manager, &src, &dst);
                    begun.send(transfer.fence().unwrap().clone()).unwrap();
                    let outcome = transfer.wait();
                    over.send(()).unwrap();
                    outcome
                })
            };
            let fence = is_begun.recv().unwrap();
            let mut stopped = STOP.thread.lock();
            while !STOP.met.load(Ordering::SeqCst) && is_complete.try_recv().is_err() {
                STOP.changed.wait_for(&mut stopped, Duration::from_millis(1));
            }
            drop(stopped);
            let (tell, told) = mpsc::channel();
            let draining = thread::spawn({
                let (manager, fence) = (Arc::clone(&manager), fence.clone());
                move || tell.send(manager.drain().map(|()| fence.is_known_complete())).unwrap()
            });
            // Long enough for a drain that does not wait to return before the waiter is released.
            let early = told.recv_timeout(Duration::from_secs(1));
            *STOP.thread.lock() = None;
            STOP.changed.notify_all();
            let drained = early.or_else(|_| told.recv()).unwrap();
            assert!(drained.unwrap(), "drain returned while a waiter still copied");
            draining.join().unwrap();
            waiter.join().unwrap().unwrap();
            assert_eq!(bytes(&dst), vec![1; 16 * MIB]);
        }
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn waiting_transfers_do_not_delay_other_devices() {
    let (manager, _backend) = two_devices();
    let manager = Arc::new(manager);
    let source = filled(&manager, MOCK, MemoryKind::Device, 2 * MIB, 7);
    let gate = Gate::before(&source);
    let waiting: Vec<_> = (0..40)
        .map(|_| {
            let back = filled(&manager, DeviceId::Cpu, MemoryKind::Pageable, 2 * MIB, 0);
            (stage(&manager, &source, &back), back)
        })
        .collect();
    within("uploads to another device beside 40 downloads that wait", {
        let manager = Arc::clone(&manager);
        move || {
            let src = filled(&manager, DeviceId::Cpu, MemoryKind::Pageable, 9 * MIB, 1);
            let dst = filled(&manager, OTHER, MemoryKind::Device, 9 * MIB, 0);
            // One is awaited, one waited for, one dropped.
            pollster::block_on(stage(&manager, &src, &dst)).unwrap();
            stage(&manager, &dst, &src).wait().unwrap();
            drop(stage(&manager, &src, &dst));
            assert_eq!(bytes(&dst), vec![1; 9 * MIB]);
            // Unified memory of either device, both ways.
            for device in [MOCK, OTHER] {
                let unified = filled(&manager, device, MemoryKind::Unified, 3 * MIB, 0);
                let only = TransferOptions::new().only(TransferMethod::UnifiedMemory);
                let part =
                    |from: &RawBuffer, to: &RawBuffer| manager.copy(from, to).options(only).into_future();
                pollster::block_on(part(&src.slice(..3 * MIB).unwrap(), &unified)).unwrap();
                let back = filled(&manager, DeviceId::Cpu, MemoryKind::Pageable, 3 * MIB, 0);
                pollster::block_on(part(&unified, &back)).unwrap();
                assert_eq!(bytes(&back), vec![1; 3 * MIB]);
            }
            // The device that the others wait for is free for what does not wait.
            let near = filled(&manager, MOCK, MemoryKind::Device, 9 * MIB, 0);
            pollster::block_on(stage(&manager, &src, &near)).unwrap();
            assert_eq!(bytes(&near), vec![1; 9 * MIB]);
        }
    });
    assert!(waiting.iter().all(|(transfer, _)| !transfer.is_complete()));
    gate.open();
    within("the 40 downloads", move || {
        for (transfer, back) in waiting {
            pollster::block_on(transfer).unwrap();
            assert_eq!(bytes(&back), vec![7; 2 * MIB]);
        }
        drop(source);
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn stalled_download_leaves_buffers_for_uploads() {
    within("uploads beside a download whose copies stand still", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 3 * MIB);
        let there = filled(&manager, MOCK, MemoryKind::Device, 40 * MIB, 7);
        let back = filled(&manager, DeviceId::Cpu, MemoryKind::Pageable, 40 * MIB, 0);
        let gate = Gate::new();
        backend.close_downloads(gate.fence());
        let down = stage(&manager, &there, &back);
        while backend.enqueued() == 0 {
            thread::yield_now();
        }
        // By then it has all the buffers that it may have.
        for _ in 0..50 {
            pollster::block_on(stage(&manager, &src, &dst)).unwrap();
        }
        assert!(!down.is_complete());
        gate.open();
        pollster::block_on(down).unwrap();
        assert!(bytes(&back).iter().all(|byte| *byte == 7));
        drop((src, dst, there, back));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn staged_transfer_names_lost_device() {
    for (lost, healthy) in [(MOCK, OTHER), (OTHER, MOCK)] {
        within("transfers beside a lost device", move || {
            let (manager, backend) = two_devices();
            let src = filled(&manager, MOCK, MemoryKind::Device, 5 * MIB, 1);
            let dst = filled(&manager, OTHER, MemoryKind::Device, 5 * MIB, 0);
            let host = filled(&manager, DeviceId::Cpu, MemoryKind::Pageable, 5 * MIB, 3);
            backend.lose(lost);
            let error = stage(&manager, &src, &dst).wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
            let (bad, good) = if lost == MOCK { (&src, &dst) } else { (&dst, &src) };
            let refused = stage(&manager, &host, bad).wait().unwrap_err();
            assert!(refused.to_string().contains(&format!("{lost} was lost before")), "{refused}");
            stage(&manager, &host, good).wait().unwrap_or_else(|error| panic!("{healthy}: {error}"));
            assert_eq!(bytes(good), vec![3; 5 * MIB]);
        });
    }
}

#[test]
fn device_without_pinned_memory_stages_copies_to_others_in_pageable() {
    within("a transfer through pageable memory", || {
        let devices = vec![(MOCK, vec![MemoryKind::Device]), (OTHER, vec![MemoryKind::Device])];
        let (manager, _) = with(Mock { devices, ..Mock::default() });
        let [src, dst] = [(MOCK, 3), (OTHER, 0)]
            .map(|(at, value)| filled(&manager, at, MemoryKind::Device, 9 * MIB, value));
        let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
        let reason = |src: Place, dst: Place| {
            let error = manager.plan(src, dst, 64, &staged()).unwrap_err();
            error.to_string()
        };
        // Without the host's backend there is none. A ring that is made before uses it, too.
        let (tuning, _) = manager.staging_tuning(MOCK).unwrap();
        manager.set_staging_tuning(MOCK, tuning).unwrap();
        let none = RejectReason::NoStagingMemory.to_string();
        assert!(reason(src.place(), dst.place()).contains(&none));
        manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        assert_eq!(stage(&manager, &src, &dst).wait().unwrap().method, TransferMethod::HostStaged);
        assert_eq!(bytes(&dst), vec![3; 9 * MIB]);
        // Copies from and to the host would only pass more of it.
        assert!(reason(src.place(), host).contains(&none) && reason(host, dst.place()).contains(&none));
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn failure_of_either_half_fails_device_to_device() {
    within("transfers between devices of which one half fails", || {
        for nth in 0..2 {
            let (manager, backend) = two_devices();
            let src = filled(&manager, MOCK, MemoryKind::Device, 1000, 1);
            let dst = filled(&manager, OTHER, MemoryKind::Device, 1000, 0);
            (0..nth).for_each(|_| backend.pass_next());
            backend.fail_next(ErrorKind::Device);
            let error = stage(&manager, &src, &dst).wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Device, "operation {nth}: {error}");
            stage(&manager, &src, &dst).wait().unwrap();
            assert_eq!(bytes(&dst), vec![1; 1000]);
        }
    });
}

/// A waker that panics.
struct Panicking(AtomicU64);

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("planted panic of a waker");
    }
}

#[test]
fn panicking_waker_does_not_affect_other_tasks() {
    let (manager, _backend) = with(Mock::default());
    let manager = Arc::new(manager);
    let (src, dst) = pair(&manager, 3 * MIB);
    let gate = Gate::before(&src);
    let panicking = Arc::new(Panicking(AtomicU64::new(0)));
    let waker = Waker::from(Arc::clone(&panicking));
    let mut others = Vec::new();
    for _ in 0..12 {
        let mut first = Box::pin(stage(&manager, &src, &dst));
        assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        others.push(first);
    }
    // Another waiter must still be woken.
    let last = stage(&manager, &src, &dst);
    let (done, is_done) = mpsc::channel();
    let waits = thread::spawn(move || done.send(pollster::block_on(last)).unwrap());
    gate.open();
    is_done.recv_timeout(crate::watchdog::LIMIT).expect("the task beside the panics was not woken").unwrap();
    waits.join().unwrap();
    within("a drain after 12 panics", move || {
        for transfer in others {
            pollster::block_on(transfer).unwrap();
        }
        assert!(panicking.0.load(Ordering::SeqCst) > 0, "no waker was woken");
        stage(&manager, &src, &dst).wait().unwrap();
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn staged_transfer_has_duration_only_if_measured() {
    within("staged transfers with and without timing", || {
        let (manager, _backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 2 * MIB);
        let moving = |timing| {
            let options = staged().timing(timing);
            manager.copy(&src, &dst).options(options).wait().unwrap().moving
        };
        assert_eq!(moving(Timing::Off), None);
        assert!(moving(Timing::Measured).is_some_and(|time| !time.is_zero()));
    });
}

#[test]
fn failed_download_marks_destination_until_written() {
    within("reads after a failed download", || {
        let (manager, backend) = with(Mock::default());
        let (back, there) = pair(&manager, 9 * MIB);
        stage(&manager, &back, &there).wait().unwrap();
        backend.pass_next();
        backend.pass_next();
        backend.fail_next(ErrorKind::Device);
        stage(&manager, &there, &back).wait().unwrap_err();
        // Others fail before their first byte, also without a waiter: damaged bytes stay damaged.
        let (from, part) = (there.slice(..4096).unwrap(), back.slice(..4096).unwrap());
        for watched in [true, false] {
            // Of one chunk, so that no byte is moved.
            backend.fail_next(ErrorKind::Device);
            let failing = stage(&manager, &from, &part);
            if watched {
                failing.wait().unwrap_err();
            } else {
                drop(failing);
                manager.drain().unwrap_err();
            }
            assert_eq!(part.read().unwrap_err().kind(), ErrorKind::SourceFailed, "watched: {watched}");
        }
        stage(&manager, &there, &back).wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == 1));
        drop((back, there, from, part));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn poll_copies_nothing() {
    hook::install();
    let (manager, _backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 16 * MIB);
    let before = ACCESSES.get();
    let mut transfer = pin!(stage(&manager, &src, &dst));
    let mut polls = 0_u64;
    while transfer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        polls += 1;
        thread::yield_now();
    }
    assert_eq!(ACCESSES.get(), before, "a thread that polled {polls} times copied");
}
