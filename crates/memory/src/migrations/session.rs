//! The process's CUPTI subscription, shared by all trackers: started by the first, stopped by the last.

use std::{
    alloc::{self, Layout},
    ffi::c_void,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use transload_core::{Result, events::report};

use super::{
    cupti::{Cupti, Subscriber},
    regions::Regions,
};

/// Records received by one tracker.
pub(super) type SharedRegions = Arc<Mutex<Regions>>;

/// Layout of a record buffer, for about ten thousand records. The library requires alignment to 8.
const BUFFER: Layout = match Layout::from_size_align(1 << 20, 8) {
    Ok(layout) => layout,
    Err(_) => panic!("1 MiB aligned to 8 is a layout"),
};

#[derive(Debug)]
struct Running {
    subscriber: Option<Subscriber>,
    users: usize,
    /// Ordinals of devices whose counters were verified.
    verified: Vec<u32>,
}

/// Held while trackers start or end. The callbacks do not lock it.
static RUNNING: Mutex<Running> = Mutex::new(Running { subscriber: None, users: 0, verified: Vec::new() });
/// The active trackers. Locked briefly.
static LISTENERS: Mutex<Vec<SharedRegions>> = Mutex::new(Vec::new());
/// Addresses of our buffers held by the library. Another user without a subscription may have registered callbacks
/// earlier, and its buffers then come back through ours.
static LENT: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// The library, for the callbacks.
static CUPTI: OnceLock<&'static Cupti> = OnceLock::new();

/// Adds a tracker, which receives only records of later events.
///
/// # Errors
/// `Unsupported` with the cause.
pub(super) fn add_listener(regions: &SharedRegions) -> Result<()> {
    let cupti = Cupti::get()?;
    let cupti = *CUPTI.get_or_init(|| cupti);
    let mut running = RUNNING.lock();
    if running.users == 0 {
        let subscriber = cupti.subscribe()?;
        // SAFETY: the two functions below meet these conditions until the process ends.
        let started = unsafe { cupti.register(requested, completed) }.and_then(|()| cupti.start());
        if let Err(error) = started {
            // Report the failed start, not a failed stop.
            let _stopped = cupti.stop().and(cupti.unsubscribe(subscriber));
            return Err(error);
        }
        running.subscriber = Some(subscriber);
    }
    running.users += 1;
    // Deliver earlier records to the trackers before this one.
    let flushed = cupti.flush();
    LISTENERS.lock().push(Arc::clone(regions));
    drop(running);
    flushed.inspect_err(|_| remove_listener(regions))
}

/// Returns whether the device's counters were verified since they were started.
pub(super) fn is_verified(device: u32) -> bool {
    RUNNING.lock().verified.contains(&device)
}

pub(super) fn record_verified(device: u32) {
    let mut running = RUNNING.lock();
    if running.users > 0 && !running.verified.contains(&device) {
        running.verified.push(device);
    }
}

/// Removes a tracker. The last one stops the counters.
pub(super) fn remove_listener(regions: &SharedRegions) {
    LISTENERS.lock().retain(|other| !Arc::ptr_eq(other, regions));
    let Some(cupti) = CUPTI.get() else { return };
    let mut running = RUNNING.lock();
    running.users = running.users.saturating_sub(1);
    if running.users > 0 {
        return;
    }
    running.verified.clear();
    if let Some(subscriber) = running.subscriber.take()
        && let Err(error) = cupti.stop().and(cupti.flush()).and(cupti.unsubscribe(subscriber))
    {
        report::drop_failed(&error);
    }
}

/// Delivers the records of all completed work.
///
/// # Errors
/// `Unsupported` with the library's error.
pub(super) fn flush() -> Result<()> {
    CUPTI.get().map_or(Ok(()), |cupti| cupti.flush())
}

extern "C" fn requested(buffer: *mut *mut u8, bytes: *mut usize, most: *mut usize) {
    // SAFETY: the layout's size is not 0.
    let memory = unsafe { alloc::alloc(BUFFER) };
    let size = if memory.is_null() { 0 } else { BUFFER.size() };
    if size > 0 {
        LENT.lock().push(memory.addr());
    }
    // SAFETY: the library passes three valid out pointers; 0 records means as many as fit.
    unsafe {
        buffer.write(memory);
        bytes.write(size);
        most.write(0);
    }
}

extern "C" fn completed(context: *mut c_void, stream: u32, buffer: *mut u8, _bytes: usize, valid: usize) {
    if let Some(cupti) = CUPTI.get() {
        let listeners = LISTENERS.lock();
        // SAFETY: the library completed this buffer with this many valid bytes.
        let unknown = unsafe {
            cupti.read(buffer, valid, |record| {
                listeners.iter().for_each(|regions| regions.lock().add(record));
            })
        };
        // SAFETY: context and stream are those of a completed buffer.
        let lost = unknown.saturating_add(unsafe { cupti.dropped(context, stream) });
        if lost > 0 {
            listeners.iter().for_each(|regions| regions.lock().add_lost(lost));
        }
    }
    if is_ours(buffer) {
        // SAFETY: `requested` allocated it with this layout, and the library is done with it.
        unsafe { alloc::dealloc(buffer, BUFFER) };
    }
}

/// Returns whether the buffer was ours, and forgets it.
fn is_ours(buffer: *mut u8) -> bool {
    let mut lent = LENT.lock();
    let index = lent.iter().position(|known| *known == buffer.addr());
    index.map(|index| lent.swap_remove(index)).is_some()
}

#[cfg(test)]
#[path = "../../tests/unit/session.rs"]
mod tests;
