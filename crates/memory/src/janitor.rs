//! A thread for the calls that wait for the device: freeing pinned, managed and unpooled memory.
//!
//! The driver frees such memory only after the device's work is done, so the caller of `drop` must not do it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, ThreadId},
};

use parking_lot::{Condvar, Mutex};
use transload_core::{Error, ErrorKind, Result};
use transload_cuda_sys::{Context, DriverError, RelaxedCapture, check, ffi};

use crate::{device_memory::settle, resource::Pins, tally::Counted};

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

struct Job {
    context: Context,
    address: Address,
    /// Kept until the memory is really free, so that an empty ledger means what it says.
    counted: Counted,
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
        self.shared.desk.lock().jobs.push(Job { context, address, counted });
        self.shared.work.notify_one();
    }

    /// Blocks until everything left so far is freed. On the thread itself, which is then in the destructor of registered memory
    /// of the user's, it does nothing: what it would wait for is itself.
    pub(crate) fn drain(&self) {
        let mut desk = self.shared.desk.lock();
        if desk.busy == Some(thread::current().id()) {
            return;
        }
        while desk.busy.is_some() || !desk.jobs.is_empty() {
            self.shared.idle.wait(&mut desk);
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
        for Job { context, address, counted } in jobs {
            // What owned registered memory is the user's, and its destructor may panic: by then the memory is released.
            let released = catch_unwind(AssertUnwindSafe(|| release(&context, address)));
            let released = released.unwrap_or_else(|payload| {
                std::mem::forget(payload);
                Ok(())
            });
            settle(released, &context, counted);
        }
        shared.desk.lock().busy = None;
        shared.idle.notify_all();
    }
}

fn release(context: &Context, address: Address) -> Result<(), DriverError> {
    let _bound = context.enter()?;
    let _capture = RelaxedCapture::enter()?;
    match address {
        // SAFETY: the storage that owned the address is gone, and it is freed exactly once, here.
        Address::Device(address) => check("cuMemFree_v2", unsafe { ffi::cuMemFree_v2(address) }),
        Address::Host(address) => {
            let pointer = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: as above.
            check("cuMemFreeHost", unsafe { ffi::cuMemFreeHost(pointer) })
        }
        Address::Registered(mut pins) => pins.release(),
    }
}
