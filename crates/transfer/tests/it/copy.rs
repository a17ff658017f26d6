//! The verb and its builder: order after fences, states, refusals, and which thread submits.

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
    DeviceId, ErrorKind, MemoryKind, Observer, RawBuffer, StreamPriority, TransferEvent, TransferMethod,
    TransferState,
};
use transload_transfer::CrossBackendTransferManager;

use crate::{
    MOCK, Mock, beside_cpu,
    gate::Gate,
    is_at_rest,
    mock::{bytes, read_only, set_bytes},
    pair,
    watchdog::within,
    with,
};

/// Returns ones and zeros, in memory of the host.
fn on_host(manager: &CrossBackendTransferManager, len: usize) -> (RawBuffer, RawBuffer) {
    let make = || manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, len).unwrap();
    let (src, dst) = (make(), make());
    src.write().unwrap().fill(1);
    dst.write().unwrap().fill(0);
    (src, dst)
}

fn ends_at_rest(manager: &CrossBackendTransferManager, used: impl Sized) {
    drop(used);
    assert!(is_at_rest(manager));
}

fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> std::task::Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn copy_moves_after_every_fence_by_every_method() {
    within("copies after fences", || {
        let (manager, backend) = with(Mock::default());
        for method in [TransferMethod::DirectCopy, TransferMethod::HostStaged] {
            let before = backend.enqueued();
            let ((src, dst), gates) = (pair(&manager, 64), [Gate::new(), Gate::new()]);
            let [first, second] = [0, 1].map(|at: usize| gates[at].fence());
            let copy = manager.copy(&src, &dst).method(method).after(&first).after(&second);
            let mut copying = copy.into_future();
            assert!(poll(pin!(&mut copying)).is_pending());
            for gate in &gates {
                assert_eq!(backend.enqueued(), before, "{method} before a fence is complete");
                gate.open();
            }
            assert_eq!(pollster::block_on(copying).unwrap().method, method);
            assert_eq!(bytes(&dst), [1; 64]);
        }
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn host_copy_waits_for_its_fence_and_for_nothing_after() {
    within("a copy within the host after a fence", || {
        let manager = CrossBackendTransferManager::new();
        manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        let ((src, dst), gate) = (on_host(&manager, 64), Gate::new());
        let copying = manager.copy(&src, &dst).after(&gate.fence()).submit();
        assert_eq!(copying.state(), TransferState::Enqueued);
        // A read of the source is not blocked.
        assert_eq!(src.try_read().unwrap()[..], [1; 64]);
        gate.open();
        copying.wait().unwrap();
        assert_eq!(dst.read().unwrap()[..], [1; 64]);
        ends_at_rest(&manager, (src, dst));
    });
}

#[test]
fn failed_fence_orders_and_fails_nothing() {
    let (manager, backend) = with(Mock::default());
    let ((src, dst), (other, there)) = (pair(&manager, 64), pair(&manager, 64));
    backend.fail_next(ErrorKind::Device);
    let failing = manager.copy(&other, &there).submit();
    let fence = failing.fence().unwrap().clone();
    manager.copy(&src, &dst).after(&fence).wait().unwrap();
    failing.wait().unwrap_err();
    assert_eq!(bytes(&dst), [1; 64]);
    ends_at_rest(&manager, (src, dst, other, there, fence));
}

#[test]
fn state_follows_a_transfer_from_queue_to_end() {
    let (manager, _backend) = with(Mock::default());
    let ((src, dst), gate) = (pair(&manager, 64), Gate::new());
    gate.uses(&dst);
    let staged = manager.copy(&src, &dst).method(TransferMethod::HostStaged).submit();
    assert_eq!(staged.state(), TransferState::Enqueued);
    let fence = pollster::block_on(staged.enqueued()).unwrap().unwrap();
    assert!(!fence.is_complete());
    gate.open();
    fence.wait().unwrap();
    assert_eq!(staged.state(), TransferState::Complete);
    staged.wait().unwrap();

    let refused = manager.copy(&src, &dst.slice(..63).unwrap()).submit();
    assert_eq!(refused.state(), TransferState::Refused);
    let error = pollster::block_on(refused.enqueued()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    refused.wait().unwrap_err();
    ends_at_rest(&manager, (src, dst, fence));
}

#[test]
fn plan_of_a_copy_says_what_it_does() {
    let (manager, _backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    for method in [TransferMethod::DirectCopy, TransferMethod::HostStaged] {
        let copy = manager.copy(&src, &dst).method(method).priority(StreamPriority::High);
        assert_eq!(copy.plan().unwrap().method, method);
        assert_eq!(copy.wait().unwrap().method, method);
    }
    // What cannot be submitted cannot be planned, for the same reason.
    for dst in [&dst.slice(..63).unwrap(), &src, &read_only(64)] {
        let copy = manager.copy(&src, dst);
        let (planned, submitted) = (copy.plan().unwrap_err(), copy.wait().unwrap_err());
        assert_eq!((planned.kind(), planned.to_string()), (submitted.kind(), submitted.to_string()));
    }
    let none = manager.copy(&src, &dst).method(TransferMethod::PeerToPeer);
    assert_eq!(none.plan().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(none.wait().unwrap_err().kind(), ErrorKind::Unsupported);
    ends_at_rest(&manager, (src, dst));
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
fn awaited_copy_leaves_long_submissions_to_the_executor() {
    let submitters = Arc::new(Submitters::default());
    let manager = CrossBackendTransferManager::builder().observer(Arc::clone(&submitters) as _).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let devices = vec![(MOCK, vec![MemoryKind::Device, MemoryKind::Pinned])];
    manager.register_backend(Mock { devices, ..Mock::default() }.build() as _).unwrap();
    let is_own = |src: &RawBuffer, dst: &RawBuffer| {
        pollster::block_on(manager.copy(src, dst).forbid(TransferMethod::HostStaged).into_future()).unwrap();
        submitters.0.lock().pop() == Some(thread::current().id())
    };
    let (src, dst) = on_host(&manager, 1 << 20);
    let parts = |len: usize| (src.slice(..len).unwrap(), dst.slice(..len).unwrap());
    let ((small, there), (_, down)) = (parts(1 << 10), parts(1 << 10));
    assert!(!is_own(&small, &there), "the first use of a path");
    assert!(is_own(&small, &there), "a small copy within the host");
    assert!(!is_own(&src, &dst), "1 MiB within the host");
    let device = manager.allocate(MOCK, MemoryKind::Device, 1 << 10).unwrap();
    for _ in 0..2 {
        assert!(
            !is_own(&small, &device) && !is_own(&device, &down),
            "pageable memory, which a driver copies"
        );
    }
    let pinned = manager.allocate_for(MOCK, MemoryKind::Pinned, 1 << 10).unwrap();
    set_bytes(&pinned, 3);
    assert!(!is_own(&pinned, &device), "the first use of a path");
    assert!(is_own(&pinned, &device), "pinned memory");
    // Another priority has queues of its own.
    let high = manager.copy(&pinned, &device).priority(StreamPriority::High);
    pollster::block_on(high.into_future()).unwrap();
    assert_ne!(submitters.0.lock().pop(), Some(thread::current().id()));
    ends_at_rest(&manager, (src, dst, small, there, down, device, pinned));
}

#[test]
fn prepared_path_is_submitted_by_the_caller() {
    let (manager, _backend) = beside_cpu();
    let src = manager.allocate_for(MOCK, MemoryKind::Pinned, 64).unwrap();
    let dst = manager.allocate(MOCK, MemoryKind::Device, 64).unwrap();
    manager.prepare(src.place(), dst.place(), &transload_transfer::TransferOptions::new()).unwrap();
    let copying = pin!(manager.copy(&src, &dst).submit_async());
    assert!(poll(copying).is_ready());
    ends_at_rest(&manager, (src, dst));
}

#[test]
fn awaited_copy_owns_what_it_needs() {
    within("a copy whose buffers and manager were dropped", || {
        let (manager, _backend) = with(Mock::default());
        let ((src, dst), gate) = (pair(&manager, 64), Gate::new());
        let copying = manager.copy(&src, &dst).after(&gate.fence()).into_future();
        let thread = thread::spawn(move || pollster::block_on(copying).unwrap().bytes);
        drop((manager, src));
        gate.open();
        assert_eq!(thread.join().unwrap(), 64);
        assert_eq!(bytes(&dst), [1; 64]);
    });
}

#[test]
fn unsubmitted_copy_does_nothing() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    drop(manager.copy(&src, &dst).into_future());
    drop(manager.copy(&src, &dst));
    assert_eq!((backend.enqueued(), bytes(&dst)), (0, vec![0; 64]));
    ends_at_rest(&manager, (src, dst));
}
