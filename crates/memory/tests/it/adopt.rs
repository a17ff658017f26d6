//! Memory of other owners: what is refused, who drops the owner, and the counts.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::Waker,
    thread::{self, ThreadId},
};

use transload_core::{
    Access, DeviceId, ErrorKind, Fence, MemoryKind, Place, RawBuffer, Result, Timeline, TimelineId,
    next_timeline_id,
};
use transload_cuda_sys::{Capture, CaptureMode, Stream, StreamOptions, ffi};
use transload_memory::{CudaFeature, CudaMemoryManager, context_of};

use crate::{gate, manager};

/// Memory of another owner, who tells on which thread it is dropped, and after what.
struct Owner {
    memory: RawBuffer,
    dropped: mpsc::Sender<ThreadId>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: the out pointer is valid for the call.
        let code = unsafe { ffi::cuCtxGetCurrent(&mut context) };
        assert_eq!((code, context.is_null()), (0, false), "destructors may need a context");
        self.dropped.send(thread::current().id()).unwrap();
    }
}

fn owner(memory: &CudaMemoryManager, kind: MemoryKind, bytes: usize) -> (Owner, mpsc::Receiver<ThreadId>) {
    let (dropped, drops) = mpsc::channel();
    (Owner { memory: memory.allocate(kind, bytes).unwrap(), dropped }, drops)
}

/// Adopts all of the owner's memory.
fn adopt(memory: &CudaMemoryManager, owner: Owner) -> RawBuffer {
    let (address, bytes) = (owner.memory.device_address().unwrap(), owner.memory.len());
    // SAFETY: the owner keeps the memory, and nobody else uses it.
    unsafe { memory.adopt(address, bytes, owner) }.unwrap()
}

#[test]
fn adopted_memory_of_every_kind_is_the_owners() {
    let (_device, memory) = manager();
    let id = memory.device().id();
    let concurrent = memory.device().supports_feature(CudaFeature::ConcurrentManagedAccess).unwrap();
    for kind in memory.kinds().into_iter().filter(|kind| *kind != MemoryKind::Mapped) {
        let (theirs, drops) = owner(&memory, kind, 1000);
        let address = theirs.memory.device_address().unwrap();
        let ours = adopt(&memory, theirs);
        let device = if kind == MemoryKind::Pinned { DeviceId::Cpu } else { id };
        assert_eq!((ours.place(), ours.len()), (Place::new(device, kind), 1000));
        let host = ours.host_address().map(|address| address.as_ptr().addr() as u64);
        match kind {
            MemoryKind::Device => assert_eq!((ours.device_address(), host), (Some(address), None)),
            MemoryKind::Unified => {
                assert_eq!((ours.device_address(), host), (Some(address), concurrent.then_some(address)));
            }
            _ => assert_eq!(host, Some(address)),
        }
        assert_eq!(context_of(&ours).is_some(), kind == MemoryKind::Device);
        assert_eq!(memory.resource_counts().allocations, 2, "{kind}: the owner's and the adopted one");
        drop(ours);
        memory.drain().unwrap();
        assert_ne!(drops.try_recv().unwrap(), thread::current().id());
        assert!(memory.resource_counts().is_empty(), "{kind}: {}", memory.resource_counts());
    }
}

#[test]
fn wrong_memory_is_refused_and_its_owner_dropped() {
    let (_device, memory) = manager();
    let there = memory.allocate(MemoryKind::Device, 1000).unwrap();
    let address = there.device_address().unwrap();
    let on_host = [0_u8; 100];
    let freed = 0x10;
    for (address, bytes, named) in [
        (0, 100, "the null address"),
        (address, 0, "0 bytes"),
        (address, usize::MAX, "address space"),
        (u64::MAX - 10, 100, "address space"),
        (address, 1 << 50, "the CUDA driver knows at most"),
        (address + 1, 1 << 50, "bytes from there"),
        (on_host.as_ptr().addr() as u64, 100, "valid is what it allocated or registered"),
        (freed, 100, "does not know the memory at 0x10"),
    ] {
        let (theirs, drops) = owner(&memory, MemoryKind::Device, 10);
        // SAFETY: it is refused.
        let error = unsafe { memory.adopt(address, bytes, theirs) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(named), "{error}");
        assert_ne!(drops.recv().unwrap(), thread::current().id());
    }
    drop(there);
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
}

#[test]
fn refused_owner_is_dropped_after_the_work_in_flight() {
    let (_device, memory) = manager();
    let gate = gate::Gate::new();
    let refuse = |after: &[Fence]| {
        let (theirs, drops) = owner(&memory, MemoryKind::Device, 10);
        // SAFETY: it is refused.
        unsafe { memory.adopt_after(0, 10, theirs, after) }.unwrap_err();
        drops
    };
    let drops = refuse(&[gate.fence()]);
    // Those that nothing delays come later.
    (0..8).for_each(|_| _ = refuse(&[]).recv().unwrap());
    assert_eq!(drops.try_recv().ok(), None);
    gate.open();
    drops.recv().unwrap();
    memory.drain().unwrap();
}

#[test]
fn owner_is_dropped_once_after_the_last_work() {
    let (_device, memory) = manager();
    let gate = gate::Gate::new();
    let (theirs, drops) = owner(&memory, MemoryKind::Device, 1000);
    let ours = adopt(&memory, theirs);
    let mut loan = ours.slice(..100).unwrap().lend(Access::Write).unwrap();
    loan.end_after(&[gate.fence()]);
    drop((loan, ours));
    // Owners that nothing delays come later.
    for _ in 0..8 {
        let (theirs, drops) = owner(&memory, MemoryKind::Device, 1000);
        drop(adopt(&memory, theirs));
        drops.recv().unwrap();
    }
    assert_eq!(drops.try_recv().ok(), None);
    assert_ne!(memory.resource_counts().pending_free, 0);
    gate.open();
    // Nobody drains or allocates: the end of the work is enough.
    assert_ne!(drops.recv().unwrap(), thread::current().id());
    memory.drain().unwrap();
    assert!(drops.try_recv().is_err() && memory.resource_counts().is_empty(), "{}", memory.resource_counts());
}

#[test]
fn owner_that_blocks_delays_drain_and_no_allocation() {
    let (_device, memory) = manager();
    struct Blocks(mpsc::Receiver<()>, Arc<AtomicBool>);
    impl Drop for Blocks {
        fn drop(&mut self) {
            let _go = self.0.recv();
            self.1.store(true, Ordering::SeqCst);
        }
    }
    let there = memory.allocate(MemoryKind::Device, 1000).unwrap();
    let (go, gone) = mpsc::channel();
    let ended = Arc::new(AtomicBool::new(false));
    let address = there.device_address().unwrap();
    // SAFETY: `there` lives to the end of the test, and nobody else uses it.
    let ours = unsafe { memory.adopt(address, 1000, Blocks(gone, Arc::clone(&ended))) }.unwrap();
    drop(ours);
    for kind in memory.kinds() {
        drop(memory.allocate(kind, 1000).unwrap());
    }
    assert!(!ended.load(Ordering::SeqCst));
    thread::scope(|scope| {
        let draining = scope.spawn(|| memory.drain());
        go.send(()).unwrap();
        draining.join().unwrap().unwrap();
    });
    assert!(ended.load(Ordering::SeqCst));
}

#[test]
fn drain_frees_memory_that_an_owner_drops_in_use() {
    struct Uses {
        memory: Option<RawBuffer>,
        gate: gate::Gate,
    }
    impl Drop for Uses {
        fn drop(&mut self) {
            // Time for a drain that does not wait to go on.
            (0..10_000).for_each(|_| thread::yield_now());
            drop(self.memory.take());
            self.gate.open();
        }
    }
    let (_device, memory) = manager();
    let (theirs, gate) = (memory.allocate(MemoryKind::Device, 1000).unwrap(), gate::Gate::new());
    theirs.lend(Access::Write).unwrap().end_after(&[gate.fence()]);
    let address = theirs.device_address().unwrap();
    // SAFETY: the owner keeps the memory, and nobody else uses it.
    drop(unsafe { memory.adopt(address, 1000, Uses { memory: Some(theirs), gate }) }.unwrap());
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
}

#[test]
fn drain_drops_the_owner_that_work_of_parked_memory_keeps() {
    /// Work that is complete once it was waited for, such as that of an adopted stream, which has an owner.
    struct Line {
        id: TimelineId,
        is_over: AtomicBool,
        _keeps: RawBuffer,
    }
    // SAFETY: it stands for no work, so no memory is used behind its back.
    unsafe impl Timeline for Line {
        fn id(&self) -> TimelineId {
            self.id
        }
        fn device(&self) -> DeviceId {
            DeviceId::Other("line", 0)
        }
        fn reached(&self) -> u64 {
            self.is_over.load(Ordering::Acquire).into()
        }
        fn poll(&self, point: u64) -> Result<bool> {
            Ok(self.reached() >= point)
        }
        fn wait(&self, _: u64) -> Result<()> {
            self.is_over.store(true, Ordering::Release);
            Ok(())
        }
        fn wake_at(&self, point: u64, _: &Waker) -> bool {
            self.reached() >= point
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
    }
    struct Slow {
        _memory: RawBuffer,
        is_dropped: Arc<AtomicBool>,
    }
    impl Drop for Slow {
        fn drop(&mut self) {
            // Time for a drain that does not wait to go on.
            (0..10_000).for_each(|_| thread::yield_now());
            self.is_dropped.store(true, Ordering::SeqCst);
        }
    }
    let (_device, memory) = manager();
    let (theirs, is_dropped) =
        (memory.allocate(MemoryKind::Device, 1000).unwrap(), Arc::new(AtomicBool::new(false)));
    let address = theirs.device_address().unwrap();
    let owner = Slow { _memory: theirs, is_dropped: Arc::clone(&is_dropped) };
    // SAFETY: the owner keeps the memory, and nobody else uses it.
    let keeps = unsafe { memory.adopt(address, 1000, owner) }.unwrap();
    let line = Arc::new(Line { id: next_timeline_id(), is_over: AtomicBool::new(false), _keeps: keeps });
    let parked = memory.allocate(MemoryKind::Device, 1000).unwrap();
    parked.lend(Access::Write).unwrap().end_after(&[Fence::new(line, 1)]);
    drop(parked);
    assert!(!is_dropped.load(Ordering::SeqCst));
    memory.drain().unwrap();
    assert!(is_dropped.load(Ordering::SeqCst));
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
}

#[test]
fn owner_that_panics_is_uncounted_all_the_same() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("a destructor panics, on purpose");
        }
    }
    let (_device, memory) = manager();
    let there = memory.allocate(MemoryKind::Device, 1000).unwrap();
    // SAFETY: `there` lives to the end of the test, and nobody else uses it.
    drop(unsafe { memory.adopt(there.device_address().unwrap(), 1000, Panics) }.unwrap());
    memory.drain().unwrap();
    assert_eq!(memory.resource_counts().allocations, 1, "{}", memory.resource_counts());
}

/// Memory that its owner frees, and tells how that ended.
struct Frees {
    address: u64,
    freed: mpsc::Sender<u32>,
}

impl Drop for Frees {
    fn drop(&mut self) {
        // SAFETY: it is the owner's, and nothing uses it any more.
        self.freed.send(unsafe { ffi::cuMemFree_v2(self.address) }).unwrap();
    }
}

#[test]
fn owner_that_frees_memory_leaves_captures_of_other_threads_valid() {
    let (_device, memory) = manager();
    let context = memory.device().context().unwrap();
    let (mut address, (freed, frees)) = (0, mpsc::channel());
    // SAFETY: the out pointer is valid, and the context is current.
    context.call("cuMemAlloc_v2", || unsafe { ffi::cuMemAlloc_v2(&mut address, 1000) }).unwrap();
    // SAFETY: the owner keeps the memory, and nobody else uses it.
    let ours = unsafe { memory.adopt(address, 1000, Frees { address, freed }) }.unwrap();
    let stream = Stream::new(context, StreamOptions::default()).unwrap();
    // SAFETY: nothing is captured, and the capture ends here.
    let capture = unsafe { Capture::begin(&stream, CaptureMode::Global) }.unwrap();
    drop(ours);
    assert_eq!(frees.recv().unwrap(), 0, "it was freed");
    capture.end().expect("the capture is valid to its end");
    memory.drain().unwrap();
}
