//! A thread for work that a drop must not wait for: frees that synchronise with the device (pinned, managed and
//! unpooled memory), ends of registrations, and uploads that a dropped unified buffer could not enqueue.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use transload_core::{
    DeviceId, Error, ErrorKind, RangeGuard, RawBuffer, Result, catch_panic, events::report,
};
use transload_cuda_sys::{AsStream, Context, DriverError, Stream, StreamOptions, ffi, record_drop_error};

use super::{driver_memory::finish_free, free_deferral::Running};
use crate::{
    allocation_counts::CountGuard,
    resource::{HostRegistration, Owner},
};

/// Memory to free.
#[derive(Debug)]
pub(crate) enum Address {
    /// Allocated by `cuMemAlloc` or `cuMemAllocManaged`.
    Device(u64),
    /// Allocated by `cuMemHostAlloc`.
    Host(usize),
    /// Registered with the driver, with the owner of the memory.
    Registered(HostRegistration),
}

enum FreeRequest {
    Free {
        context: Context,
        address: Address,
        /// Dropped when the memory is freed, so that empty counts are exact.
        counted: CountGuard,
    },
    Upload(Context, PendingUpload),
    Call(Box<dyn FnOnce() + Send>),
}

/// Pinned source bytes and the held destination range.
pub(crate) struct PendingUpload {
    pub(crate) from: RawBuffer,
    pub(crate) hold: RangeGuard,
}

#[derive(Default)]
struct FreeQueue {
    requests: Vec<FreeRequest>,
    /// The thread that is processing requests.
    busy: Option<ThreadId>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<FreeQueue>,
    work: Condvar,
    idle: Condvar,
    /// Number of calls that left their memory pending free.
    postponed: AtomicU64,
}

/// Handle of the thread, which ends once the last handle is dropped and everything is freed.
pub(crate) struct FreeThread {
    shared: Arc<Shared>,
}

impl fmt::Debug for FreeThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FreeThread").finish_non_exhaustive()
    }
}

impl FreeThread {
    pub(crate) fn start() -> Result<Arc<Self>> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        thread::Builder::new().name("transload-free".to_owned()).spawn(move || run(&theirs)).map_err(
            |error| Error::caused_by(ErrorKind::Io, "starting the thread that frees memory", error),
        )?;
        Ok(Arc::new(Self { shared }))
    }

    /// Returns the thread that frees pages of a device, which lives as long as somebody holds it. Each device has its own, since one
    /// may wait for work that never ends.
    pub(crate) fn of_pages(ordinal: u32) -> Result<Arc<Self>> {
        static THREADS: Mutex<BTreeMap<u32, Weak<FreeThread>>> = Mutex::new(BTreeMap::new());
        let mut threads = THREADS.lock();
        if let Some(thread) = threads.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(thread);
        }
        let thread = Self::start()?;
        threads.insert(ordinal, Arc::downgrade(&thread));
        Ok(thread)
    }

    /// Queues memory to be freed. Does not wait.
    pub(crate) fn free(&self, context: Context, address: Address, counted: CountGuard) {
        self.push(FreeRequest::Free { context, address, counted });
    }

    /// Queues bytes to be copied to device memory on a stream of this thread. Does not wait. A failure is recorded as a
    /// drop error and ends the hold.
    pub(crate) fn upload(&self, context: Context, pending: PendingUpload) {
        self.push(FreeRequest::Upload(context, pending));
    }

    /// Queues a call. Does not wait. A panic of user code that it runs is discarded.
    pub(crate) fn call(&self, call: impl FnOnce() + Send + 'static) {
        self.push(FreeRequest::Call(Box::new(call)));
    }

    /// Counts a call that leaves its memory pending free.
    pub(crate) fn count_postponed(&self) {
        self.shared.postponed.fetch_add(1, Ordering::Release);
    }

    /// Returns how many calls have left their memory pending free.
    pub(crate) fn postponed(&self) -> u64 {
        self.shared.postponed.load(Ordering::Acquire)
    }

    fn push(&self, request: FreeRequest) {
        self.shared.queue.lock().requests.push(request);
        self.shared.work.notify_one();
    }

    /// Blocks until everything queued so far is freed, or until the limit. Returns at once on the thread itself, which
    /// may call this from the destructor of the user's memory.
    pub(crate) fn drain(&self, limit: Option<Duration>) {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut queue = self.shared.queue.lock();
        let on_itself = queue.busy == Some(thread::current().id());
        if on_itself || transload_core::mutant!("memory/drain-waits-for-frees") {
            return;
        }
        while queue.busy.is_some() || !queue.requests.is_empty() {
            match end {
                Some(end) if self.shared.idle.wait_until(&mut queue, end).timed_out() => return,
                Some(_) => {}
                None => self.shared.idle.wait(&mut queue),
            }
        }
    }
}

impl Drop for FreeThread {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.work.notify_one();
    }
}

fn run(shared: &Shared) {
    loop {
        let mut queue = shared.queue.lock();
        while queue.requests.is_empty() {
            if queue.closed {
                return;
            }
            shared.work.wait(&mut queue);
        }
        let requests = std::mem::take(&mut queue.requests);
        queue.busy = Some(thread::current().id());
        drop(queue);
        for request in requests {
            match request {
                FreeRequest::Free { context, address, counted } => {
                    let running = Running::begin();
                    let released = release(&context, address);
                    drop(running);
                    let (freed, owner) = match released {
                        Ok(owner) => (Ok(()), Some(owner)),
                        Err(error) => (Err(error), None),
                    };
                    finish_free(freed, &context, counted);
                    drop_user_values(owner);
                }
                FreeRequest::Upload(context, pending) => {
                    record_drop_error(upload(&context, &pending));
                    drop_user_values(pending);
                }
                FreeRequest::Call(call) => _ = catch_panic(call),
            }
        }
        shared.queue.lock().busy = None;
        shared.idle.notify_all();
    }
}

/// Drops values whose destructors may run user code, which may panic: owners of registered memory, wakers.
fn drop_user_values<T>(dropped: T) {
    let _panic = catch_panic(|| drop(dropped));
}

fn upload(context: &Context, pending: &PendingUpload) -> Result<(), DriverError> {
    let to = pending.hold.buffer();
    let (Some(from), Some(address)) = (pending.from.host_address(), to.device_address()) else {
        return Ok(());
    };
    let bytes = pending.from.len().min(to.len());
    let stream = Stream::new(context, StreamOptions::default())?;
    // SAFETY: both sides are alive and have `bytes` bytes. The hold excludes every other use of the destination,
    // earlier ones are complete, and the source is not written any more.
    context.call("cuMemcpyHtoDAsync_v2", || unsafe {
        ffi::cuMemcpyHtoDAsync_v2(address, from.as_ptr().cast(), bytes, stream.as_raw())
    })?;
    wait_until_complete(&stream)
}

/// Waits for a stream's work, however often that fails: an error says nothing about the work while the device answers other calls.
fn wait_until_complete(stream: &Stream) -> Result<(), DriverError> {
    /// Pause before a wait is repeated.
    const PAUSE: Duration = Duration::from_millis(1);
    let mut is_first = true;
    while let Err(error) = stream.synchronize() {
        let error = stream.context().judge(error);
        if error.is_sticky() || transload_core::mutant!("memory/dropped-writes-are-waited-for") {
            return Err(error);
        }
        if std::mem::take(&mut is_first) {
            let device = DeviceId::Cuda(stream.context().device().ordinal());
            report::call_failed("waiting for the upload of a dropped buffer again", device, &error);
        }
        thread::park_timeout(PAUSE);
    }
    Ok(())
}

/// Frees memory and returns the owner that kept it mapped, if any.
fn release(context: &Context, address: Address) -> Result<Option<Owner>, DriverError> {
    match address {
        // SAFETY: the storage that owned the address was dropped, and it is freed exactly once, here.
        Address::Device(address) => context.call("cuMemFree_v2", || unsafe { ffi::cuMemFree_v2(address) }),
        Address::Host(address) => {
            let pointer = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: as above.
            context.call("cuMemFreeHost", || unsafe { ffi::cuMemFreeHost(pointer) })
        }
        Address::Registered(mut registration) => return registration.end(),
    }
    .map(|()| None)
}
