//! Once warm, an awaited copy allocates nothing on any thread, even if it is the first that takes long enough to need an
//! event. A binary of its own, for its allocator and for a driver that completes work as the test sets: the software driver
//! allocates.

// Clippy recognises no test in a binary without the harness.
#![allow(clippy::unwrap_used)]

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: only on Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    linux::run();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        alloc::{GlobalAlloc, Layout, System},
        backtrace::Backtrace,
        cell::Cell,
        ffi::{CStr, c_void},
        pin::pin,
        ptr::NonNull,
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
        },
        task::{Context, Wake, Waker},
        thread::{self, Thread},
    };

    use transload_core::{MemoryKind, Operation, Timing, Transfer, submit};
    use transload_cuda_sys::SymbolSource;
    use transload_memory::{CudaDevice, CudaMemoryManager};
    use transload_streams::CudaStream;

    /// Rounds per count. On a busy machine the reactor is slow to wake.
    const ROUNDS: i64 = 240;

    struct Counting;

    static COUNTS: AtomicBool = AtomicBool::new(false);
    static COUNT: AtomicU64 = AtomicU64::new(0);

    thread_local! {
        /// Printing a backtrace allocates too.
        static EXPLAINING: Cell<bool> = const { Cell::new(false) };
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    // SAFETY: every call is forwarded unchanged to the system allocator.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            if COUNTS.load(Ordering::Relaxed) && !EXPLAINING.replace(true) {
                COUNT.fetch_add(1, Ordering::Relaxed);
                eprintln!("allocated by:\n{}", Backtrace::force_capture());
                EXPLAINING.set(false);
            }
            // SAFETY: the caller's promise.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
            // SAFETY: the caller's promise.
            unsafe { System.dealloc(address, layout) }
        }
    }

    /// A driver that does nothing. Its work is complete after [`BUSY`] queries.
    struct Idle;

    static IDLE: Idle = Idle;
    static BUSY: AtomicI64 = AtomicI64::new(0);
    /// Handles and addresses given out so far.
    static GIVEN: AtomicU64 = AtomicU64::new(1 << 20);

    extern "C" fn fine() -> u32 {
        0
    }

    extern "C" fn question() -> u32 {
        /// `CUDA_ERROR_NOT_READY`.
        const NOT_READY: u32 = 600;
        if BUSY.fetch_sub(1, Ordering::Relaxed) > 0 { NOT_READY } else { 0 }
    }

    extern "C" fn waited() -> u32 {
        BUSY.store(0, Ordering::Relaxed);
        0
    }

    unsafe extern "C" fn handle(out: *mut u64) -> u32 {
        // SAFETY: the caller's out pointer.
        unsafe { out.write(GIVEN.fetch_add(4096, Ordering::Relaxed)) };
        0
    }

    unsafe extern "C" fn address(out: *mut u64, bytes: usize) -> u32 {
        // SAFETY: the caller's out pointer.
        unsafe { out.write(GIVEN.fetch_add((bytes as u64).next_multiple_of(4096), Ordering::Relaxed)) };
        0
    }

    unsafe extern "C" fn host_memory(out: *mut *mut u8, bytes: usize, _flags: u32) -> u32 {
        let layout = Layout::from_size_align(bytes.max(1), 4096).unwrap();
        // SAFETY: the size is not zero; the caller's out pointer. Never freed.
        unsafe { out.write(System.alloc_zeroed(layout)) };
        0
    }

    unsafe extern "C" fn version(out: *mut i32) -> u32 {
        // SAFETY: the caller's out pointer.
        unsafe { out.write(12_080) };
        0
    }

    unsafe extern "C" fn one(out: *mut i32) -> u32 {
        // SAFETY: the caller's out pointer.
        unsafe { out.write(1) };
        0
    }

    // SAFETY: each function has the C ABI and takes the parameters of the driver function of its name, or ignores them,
    // which the C ABI of the supported systems permits.
    unsafe impl SymbolSource for Idle {
        fn name(&self) -> &'static str {
            "a driver that does nothing"
        }

        fn is_simulated(&self) -> bool {
            true
        }

        fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
            let function: *const c_void = match name.to_str().ok()? {
                "cuEventQuery" | "cuStreamQuery" => question as *const c_void,
                "cuEventSynchronize" | "cuStreamSynchronize" | "cuCtxSynchronize" => waited as *const c_void,
                "cuDevicePrimaryCtxRetain"
                | "cuEventCreate"
                | "cuStreamCreateWithPriority"
                | "cuDeviceGetDefaultMemPool" => handle as *const c_void,
                "cuMemAlloc_v2" => address as *const c_void,
                "cuMemHostAlloc" => host_memory as *const c_void,
                "cuDriverGetVersion" => version as *const c_void,
                "cuDeviceGetCount" | "cuDeviceGetAttribute" => one as *const c_void,
                name if name.starts_with("cu") => fine as *const c_void,
                _ => return None,
            };
            NonNull::new(function.cast_mut())
        }
    }

    struct Unpark(Thread, AtomicBool);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.1.store(true, Ordering::Release);
            self.0.unpark();
        }
    }

    fn block_on(transfer: Transfer, unpark: &Unpark, waker: &Waker) {
        let mut transfer = pin!(transfer);
        let mut context = Context::from_waker(waker);
        while transfer.as_mut().poll(&mut context).is_pending() {
            while !unpark.1.swap(false, Ordering::Acquire) {
                thread::park();
            }
        }
    }

    pub(crate) fn run() {
        transload_cuda_sys::install(&IDLE).unwrap();
        let device = CudaDevice::new(0).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let host = memory.allocate(MemoryKind::Pinned, 4096).unwrap();
        let there = memory.allocate(MemoryKind::Device, 4096).unwrap();
        let unpark = Arc::new(Unpark(thread::current(), AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&unpark));
        let awaited = |stream: &CudaStream, questions: i64| {
            BUSY.store(questions, Ordering::Relaxed);
            block_on(stream.copy_from_host_async(&host, &there), &unpark, &waker);
        };
        let counted = |what: &str, round: &mut dyn FnMut(i64)| {
            COUNT.store(0, Ordering::SeqCst);
            COUNTS.store(true, Ordering::SeqCst);
            (0..ROUNDS).for_each(&mut *round);
            COUNTS.store(false, Ordering::SeqCst);
            assert_eq!(COUNT.load(Ordering::SeqCst), 0, "{what}");
            println!("no allocation in {ROUNDS} copies: {what}");
        };
        // The reactor's thread runs once it has woken a task.
        awaited(&CudaStream::new(&device).unwrap(), 5000);
        // Complete at the first query: needs neither an event nor the reactor, until an operation takes longer.
        let stream = CudaStream::new(&device).unwrap();
        (0..100).for_each(|_| awaited(&stream, 0));
        counted("of a stream that needed no event before", &mut |round| {
            awaited(&stream, [0, 1, 2, 40, 0, 500][round as usize % 6]);
        });
        let other = CudaStream::new(&device).unwrap();
        counted("of two streams in turn, one fresh but for its making", &mut |round| {
            awaited(if round % 2 == 0 { &stream } else { &other }, [0, 3, 500][round as usize % 3]);
        });
        let timed = |round: i64| {
            BUSY.store([0, 3, 500][round as usize % 3], Ordering::Relaxed);
            let copy = Operation::Copy { src: &host, dst: &there };
            let fence = submit(&stream, &copy, Timing::Measured).unwrap();
            fence.wait().unwrap();
            assert!(fence.timeline().take_duration(fence.point()).unwrap().is_some());
        };
        (0..100).for_each(timed);
        counted("that are timed", &mut |round| timed(round));
    }
}
