//! Uploads that fit one part of a staging buffer, by a thread that waits for them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use transload_core::{ErrorKind, ListWay, MemoryKind, RawBuffer, Timing};
use transload_executor::Executor;
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    MOCK, Mock, hook, is_at_rest,
    mock::{bytes, set_bytes},
    pair,
    staging::{stage, staged},
    watchdog::within,
    with,
};

const BYTES: usize = 64 << 10;

#[test]
fn thread_that_waits_copies_a_short_upload_itself() {
    within("short uploads", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, BYTES);
        manager.prepare(src.place(), dst.place(), &TransferOptions::new()).unwrap();
        let me = thread::current().id();
        let copies = Arc::new(AtomicUsize::new(0));
        let _watch = hook::watch(&src, {
            let copies = Arc::clone(&copies);
            move |_| {
                assert_eq!(thread::current().id(), me);
                copies.fetch_add(1, Ordering::Relaxed);
            }
        });
        for (value, timing) in (0..40).zip([Timing::Off, Timing::Measured].into_iter().cycle()) {
            set_bytes(&src, value);
            copies.store(0, Ordering::Relaxed);
            let before = backend.enqueued();
            let report = manager.copy(&src, &dst).options(staged().timing(timing)).wait().unwrap();
            assert_eq!((copies.load(Ordering::Relaxed), backend.enqueued() - before), (1, 1));
            assert_eq!((report.chunks, report.moving.is_some()), (1, timing == Timing::Measured));
            assert!(bytes(&dst) == vec![value; BYTES]);
        }
        drop((src, dst));
        assert!(is_at_rest(&manager));
        assert_eq!(manager.staging_bytes(), 0);
    });
}

/// The last of a list one by one, for which it waits at once.
#[test]
fn thread_that_waits_for_a_list_copies_its_last_short_upload_itself() {
    within("lists of short uploads", || {
        let backend = Mock::default().build();
        let executor = Executor::with_threads(4).unwrap();
        let manager = CrossBackendTransferManager::builder().executor(&executor).build();
        manager.register_backend(Arc::clone(&backend) as _).unwrap();
        let (src, dst) = pair(&manager, 3 * BYTES);
        manager.prepare(src.place(), dst.place(), &TransferOptions::new()).unwrap();
        let part = |of: &RawBuffer, at: usize| of.slice(at * BYTES..(at + 1) * BYTES).unwrap();
        let pairs = [0, 1, 2].map(|at| (part(&src, at), part(&dst, 2 - at)));
        let copy_each = |list: &[(RawBuffer, RawBuffer)], value: u8| {
            set_bytes(&src, value);
            manager.copy_many(list).way(ListWay::OneByOne).options(staged()).wait().unwrap();
            for (src, dst) in list {
                assert!(bytes(dst) == bytes(src) && bytes(dst)[0] == value);
            }
        };
        let threads = executor.live_threads();
        (1..40).for_each(|value| copy_each(&pairs[..1], value));
        assert_eq!(executor.live_threads(), threads, "another thread was woken");
        let me = thread::current().id();
        let last = Arc::new(AtomicUsize::new(0));
        let _watch = hook::watch(&pairs[2].0, {
            let last = Arc::clone(&last);
            move |_| {
                assert_eq!(thread::current().id(), me);
                last.fetch_add(1, Ordering::Relaxed);
            }
        });
        (1..40).for_each(|value| copy_each(&pairs, value + 40));
        assert_eq!(last.load(Ordering::Relaxed), 39);
        drop((src, dst, pairs));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn failed_short_upload_returns_its_buffer_and_marks_the_destination() {
    within("short uploads that fail", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, BYTES);
        manager.prepare(src.place(), dst.place(), &TransferOptions::new()).unwrap();
        let upload = || manager.copy(&src, &dst).options(staged()).wait();
        for _ in 0..100 {
            backend.refuse_next(ErrorKind::Device);
            assert_eq!(upload().unwrap_err().kind(), ErrorKind::Device);
            backend.fail_next(ErrorKind::Device);
            assert_eq!(upload().unwrap_err().kind(), ErrorKind::Device);
        }
        dst.assume_written(..).unwrap();
        backend.break_next();
        assert!(upload().unwrap_err().is_partial());
        let read = manager.copy(&dst, &src).wait();
        assert_eq!(read.unwrap_err().kind(), ErrorKind::SourceFailed);
        upload().unwrap();
        assert!(bytes(&dst) == vec![1; BYTES]);
        drop((src, dst));
        assert!(is_at_rest(&manager));
        assert_eq!(manager.staging_bytes(), 0);
    });
}

#[test]
fn drain_waits_for_a_thread_that_copies_and_frees_its_buffer() {
    within("a drain beside a short upload", || {
        let (manager, _backend) = with(Mock::default());
        let (src, dst) = pair(&manager, BYTES);
        manager.prepare(src.place(), dst.place(), &TransferOptions::new()).unwrap();
        let (begun, is_begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let _watch = hook::watch(&src, move |_| {
            begun.send(()).unwrap();
            released.lock().recv().unwrap();
        });
        thread::scope(|scope| {
            let upload = scope.spawn(|| manager.copy(&src, &dst).options(staged()).wait());
            is_begun.recv().unwrap();
            let ((tell, told), manager) = (mpsc::channel(), &manager);
            scope.spawn(move || {
                manager.drain().unwrap();
                tell.send(manager.staging_bytes()).unwrap();
            });
            // Long enough for a drain that does not wait to return before the upload is released.
            let early = told.recv_timeout(Duration::from_secs(1));
            release.send(()).unwrap();
            upload.join().unwrap().unwrap();
            assert_eq!(early.or_else(|_| told.recv()).unwrap(), 0, "bytes of staging buffers after a drain");
        });
    });
}

#[test]
fn upload_of_bytes_in_use_waits_for_them() {
    within("an upload after a download", || {
        let (manager, _backend) = with(Mock::default());
        let (host, there) = pair(&manager, BYTES);
        let back = manager.allocate_for(MOCK, MemoryKind::Device, BYTES).unwrap();
        manager.prepare(host.place(), there.place(), &TransferOptions::new()).unwrap();
        set_bytes(&there, 7);
        let down = stage(&manager, &there, &host);
        manager.copy(&host, &back).options(staged()).wait().unwrap();
        down.wait().unwrap();
        assert!(bytes(&back) == vec![7; BYTES]);
    });
}
