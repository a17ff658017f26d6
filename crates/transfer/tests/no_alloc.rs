//! Once warm, a transfer on the CPU backend allocates nothing. A binary of its own, for its allocator.
#![allow(clippy::unwrap_used)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
    task::{Context, Waker},
};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, Fence, MemoryKind, Operation, Place, Queue, QueueLease, RawBuffer, Result,
    StreamPriority, Timeline, Timing, TransferMethod, WorkloadType,
};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

struct Counting;

thread_local! {
    /// Of this thread: small copies run on the thread that submits them. The test harness allocates on its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of the second hundred rounds; the first one warms up.
fn allocations(mut round: impl FnMut()) -> u64 {
    (0..100).for_each(|_| round());
    let before = ALLOCATIONS.get();
    (0..100).for_each(|_| round());
    ALLOCATIONS.get() - before
}

/// A queue of the caller's.
#[derive(Clone)]
struct CallersQueue(Arc<QueueLease>);

// SAFETY: everything is passed on to the queue.
unsafe impl Queue for CallersQueue {
    fn device(&self) -> DeviceId {
        self.0.device()
    }

    fn priority(&self) -> StreamPriority {
        self.0.priority()
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        self.0.timeline()
    }

    fn can_copy(&self, src: Place, dst: Place) -> bool {
        self.0.can_copy(src, dst)
    }

    fn can_wait_for(&self, fence: &Fence) -> bool {
        self.0.can_wait_for(fence)
    }

    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence> {
        // SAFETY: the caller's promise.
        unsafe { self.0.enqueue(operation, after, timing) }
    }

    fn outstanding(&self) -> u64 {
        self.0.outstanding()
    }
}

#[test]
fn a_warm_transfer_on_a_stream_allocates_once() {
    let manager = CrossBackendTransferManager::new();
    let backend = CpuBackend::new().unwrap();
    let lease = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    manager.register_backend(backend).unwrap();
    let [src, dst] = [0; 2].map(|_| manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 8192).unwrap());
    let queue = CallersQueue(Arc::new(lease));
    // The builder keeps the stream outside, for the sake of copies that name none.
    assert_eq!(allocations(|| drop(manager.copy(&src, &dst).on(&queue).wait().unwrap())), 100);
}

#[test]
fn a_warm_transfer_allocates_nothing() {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let buffer = || manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 8192).unwrap();
    let (src, dst) = (buffer(), buffer());
    let options = TransferOptions::new()
        .priority(StreamPriority::High)
        .forbid(TransferMethod::ZeroCopy)
        .timing(Timing::Measured);
    let mut context = Context::from_waker(Waker::noop());

    let whole = allocations(|| drop(manager.copy(&src, &dst).wait().unwrap()));
    let range = allocations(|| drop(manager.transfer_buffer(&src, &dst, 8, 16, 4096).wait().unwrap()));
    let measured = allocations(|| drop(manager.copy(&src, &dst).options(options).wait().unwrap()));
    let awaited = allocations(|| {
        let mut transfer = std::pin::pin!(manager.copy(&src, &dst).submit());
        while transfer.as_mut().poll(&mut context).is_pending() {
            std::thread::yield_now();
        }
    });
    let two = allocations(|| {
        let transfers = [0, 4096].map(|half| manager.transfer_buffer(&src, &dst, half, half, 4096));
        transfers.into_iter().for_each(|transfer| drop(transfer.wait().unwrap()));
    });
    let dropped = allocations(|| drop(manager.copy(&src, &dst).submit()));
    assert_eq!((whole, range, measured, awaited, two, dropped), (0, 0, 0, 0, 0, 0));

    // The counter counts.
    let counted = allocations(|| drop::<RawBuffer>(buffer()));
    assert!(counted >= 100, "{counted}");
}
