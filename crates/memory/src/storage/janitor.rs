//! A thread for what a drop leaves to be done and must not wait for: freeing pinned, managed and unpooled memory, which the driver
//! does only after the device's work is done, and copying up what a unified buffer could not send.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use transload_core::{Error, ErrorKind, RangeGuard, RawBuffer, Result};
use transload_cuda_sys::{AsStream, Context, DriverError, Stream, StreamOptions, ffi, record_drop_error};

use super::{driver_memory::settle, free_deferral::Running};
use crate::{
    resource::{Owner, Pins},
    tally::Counted,
};

/// Memory to be freed.
#[derive(Debug)]
pub(crate) enum Address {
    /// Made by `cuMemAlloc` or `cuMemAllocManaged`.
    Device(u64),
    /// Made by `cuMemHostAlloc`.
    Host(usize),
    /// Registered with the driver; with what owns the memory.
    Registered(Pins),
}

enum Job {
    Free {
        context: Context,
        address: Address,
        /// Kept until the memory is really free, so that an empty ledger means what it says.
        counted: Counted,
    },
    Send(Context, Unsent),
}

/// Bytes of pinned memory that are to be where the hold is, and the hold, which keeps others from what is there now.
pub(crate) struct Unsent {
    pub(crate) from: RawBuffer,
    pub(crate) hold: RangeGuard,
}

#[derive(Default)]
struct Desk {
    jobs: Vec<Job>,
    /// The thread that is freeing just now.
    busy: Option<ThreadId>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    desk: Mutex<Desk>,
    work: Condvar,
    idle: Condvar,
}

/// Handle of the thread; the thread ends once the last handle is gone and everything is freed.
pub(crate) struct Janitor {
    shared: Arc<Shared>,
}

impl Janitor {
    pub(crate) fn start() -> Result<Arc<Self>> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        thread::Builder::new().name("transload-free".to_owned()).spawn(move || run(&theirs)).map_err(
            |error| Error::caused_by(ErrorKind::Io, "starting the thread that frees memory", error),
        )?;
        Ok(Arc::new(Self { shared }))
    }

    /// Leaves memory to be freed; does not wait.
    pub(crate) fn free(&self, context: Context, address: Address, counted: Counted) {
        self.post(Job::Free { context, address, counted });
    }

    /// Leaves bytes to be copied to device memory on a stream of the thread's own; does not wait. Failures are recorded as errors of
    /// a drop, and end the hold.
    pub(crate) fn send(&self, context: Context, unsent: Unsent) {
        self.post(Job::Send(context, unsent));
    }

    fn post(&self, job: Job) {
        self.shared.desk.lock().jobs.push(job);
        self.shared.work.notify_one();
    }

    /// Blocks until everything left so far is freed, or until the limit. On the thread itself, which is then in the destructor of
    /// registered memory of the user's, it does nothing: what it would wait for is itself.
    pub(crate) fn drain(&self, limit: Option<Duration>) {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut desk = self.shared.desk.lock();
        let on_itself = desk.busy == Some(thread::current().id());
        if on_itself || transload_core::mutant!("memory/drain-waits-for-frees") {
            return;
        }
        while desk.busy.is_some() || !desk.jobs.is_empty() {
            match end {
                Some(end) if self.shared.idle.wait_until(&mut desk, end).timed_out() => return,
                Some(_) => {}
                None => self.shared.idle.wait(&mut desk),
            }
        }
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.shared.desk.lock().closed = true;
        self.shared.work.notify_one();
    }
}

fn run(shared: &Shared) {
    loop {
        let mut desk = shared.desk.lock();
        while desk.jobs.is_empty() {
            if desk.closed {
                return;
            }
            shared.work.wait(&mut desk);
        }
        let jobs = std::mem::take(&mut desk.jobs);
        desk.busy = Some(thread::current().id());
        drop(desk);
        for job in jobs {
            match job {
                Job::Free { context, address, counted } => {
                    let running = Running::begin();
                    let released = release(&context, address);
                    drop(running);
                    let (freed, owner) = match released {
                        Ok(owner) => (Ok(()), Some(owner)),
                        Err(error) => (Err(error), None),
                    };
                    settle(freed, &context, counted);
                    drop_users(owner);
                }
                Job::Send(context, unsent) => {
                    record_drop_error(send(&context, &unsent));
                    drop_users(unsent);
                }
            }
        }
        shared.desk.lock().busy = None;
        shared.idle.notify_all();
    }
}

/// Drops what may run code of the user's, which may panic: the owner of registered memory, or wakers of tasks behind a hold.
fn drop_users<T>(dropped: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(dropped))) {
        std::mem::forget(payload);
    }
}

fn send(context: &Context, unsent: &Unsent) -> Result<(), DriverError> {
    let to = unsent.hold.buffer();
    let (Some(from), Some(address)) = (unsent.from.host_address(), to.device_address()) else {
        return Ok(());
    };
    let bytes = unsent.from.len().min(to.len());
    let stream = Stream::new(context, StreamOptions::default())?;
    // SAFETY: both sides are alive and have so many bytes. The hold keeps every other use from the destination, all earlier ones
    // are over, and nobody writes the source any more.
    context.call("cuMemcpyHtoDAsync_v2", || unsafe {
        ffi::cuMemcpyHtoDAsync_v2(address, from.as_ptr().cast(), bytes, stream.as_raw())
    })?;
    stream.synchronize()
}

/// Frees memory and returns what kept it mapped, if it is the user's.
fn release(context: &Context, address: Address) -> Result<Option<Owner>, DriverError> {
    match address {
        // SAFETY: the storage that owned the address is gone, and it is freed exactly once, here.
        Address::Device(address) => context.call("cuMemFree_v2", || unsafe { ffi::cuMemFree_v2(address) }),
        Address::Host(address) => {
            let pointer = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: as above.
            context.call("cuMemFreeHost", || unsafe { ffi::cuMemFreeHost(pointer) })
        }
        Address::Registered(mut pins) => return pins.end(),
    }
    .map(|()| None)
}
