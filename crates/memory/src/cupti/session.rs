//! The process's CUPTI subscription, shared by all listeners: started by the first, stopped by the last.

use std::{
    alloc::{self, Layout},
    ffi::c_void,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use transload_core::{Result, events::report};

use super::{
    library::{AnyRecord, Cupti, Source, Subscriber},
    recording::Activities,
};
use crate::migrations::Regions;

/// Migrations received by one tracker.
pub(crate) type SharedRegions = Arc<Mutex<Regions>>;

/// A user of records.
#[derive(Clone)]
pub(crate) enum Listener {
    Migrations(SharedRegions),
    Activities(Arc<Activities>),
}

impl Listener {
    fn source(&self) -> Source {
        match self {
            Self::Migrations(_) => Source::Migrations,
            Self::Activities(_) => Source::Activities,
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Migrations(one), Self::Migrations(other)) => Arc::ptr_eq(one, other),
            (Self::Activities(one), Self::Activities(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    fn add(&self, record: &AnyRecord) {
        match (self, record) {
            (Self::Migrations(regions), AnyRecord::Migration(record)) => regions.lock().add(*record),
            (Self::Activities(activities), AnyRecord::Activity(record)) => activities.add(*record),
            (Self::Activities(activities), AnyRecord::Migration(record)) => activities.add(record.into()),
            _ => {}
        }
    }

    /// Returns how many of these, of migrations and of activities, are of records that it wants.
    fn of_its_kinds(&self, [migrations, activities]: [u64; 2]) -> u64 {
        match self {
            Self::Migrations(_) => migrations,
            Self::Activities(_) => migrations.saturating_add(activities),
        }
    }

    fn add_lost(&self, count: u64) {
        match self {
            Self::Migrations(regions) => regions.lock().add_lost(count),
            Self::Activities(activities) => activities.add_lost(count),
        }
    }
}

/// Layout of a record buffer, for some hundred records: one with a record of work in flight is delivered once it is full, or when it has none. The library requires
/// alignment to 8.
const BUFFER: Layout = match Layout::from_size_align(64 << 10, 8) {
    Ok(layout) => layout,
    Err(_) => panic!("64 KiB aligned to 8 is a layout"),
};

#[derive(Debug)]
struct Running {
    subscriber: Option<Subscriber>,
    /// Listeners of each source.
    users: [usize; 2],
    /// Ordinals of devices whose counters of migrations were verified.
    verified: Vec<u32>,
}

/// Held while listeners start or end. The callbacks do not lock it.
static RUNNING: Mutex<Running> =
    Mutex::new(Running { subscriber: None, users: [0; 2], verified: Vec::new() });
/// The active listeners. Locked briefly.
static LISTENERS: Mutex<Vec<Listener>> = Mutex::new(Vec::new());
/// Addresses of our buffers held by the library. Another user without a subscription may have registered callbacks
/// earlier, and its buffers then come back through ours.
static LENT: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// The library, for the callbacks.
static CUPTI: OnceLock<&'static Cupti> = OnceLock::new();

/// Adds a listener of a source, which receives only records of later events.
///
/// # Errors
/// `Unsupported` with the cause.
pub(crate) fn add_listener(listener: Listener) -> Result<()> {
    use_source(listener.source())?;
    push_listener(listener);
    Ok(())
}

/// Adds a listener of a source that is [used](use_source).
pub(super) fn push_listener(listener: Listener) {
    LISTENERS.lock().push(listener);
}

/// Has a source recorded until [`end_source`]. Earlier records were delivered.
///
/// # Errors
/// `Unsupported` with the cause.
pub(super) fn use_source(source: Source) -> Result<()> {
    let cupti = Cupti::get()?;
    let cupti = *CUPTI.get_or_init(|| cupti);
    let mut running = RUNNING.lock();
    if running.users == [0; 2] {
        let subscriber = cupti.subscribe()?;
        // SAFETY: the two functions below meet these conditions until the process ends.
        if let Err(error) = unsafe { cupti.register(requested, completed) } {
            let _unsubscribed = cupti.unsubscribe(subscriber);
            return Err(error);
        }
        running.subscriber = Some(subscriber);
    }
    if running.users[source as usize] == 0
        && let Err(error) = cupti.start(source)
    {
        // Report the failed start, not a failed stop.
        let _stopped = cupti.stop(source);
        let _ended = running.unsubscribe_if_unused(cupti);
        return Err(error);
    }
    running.users[source as usize] += 1;
    let flushed = flush(true);
    drop(running);
    flushed.inspect_err(|_| end_source(source))
}

impl Running {
    fn unsubscribe_if_unused(&mut self, cupti: &Cupti) -> Result<()> {
        if self.users != [0; 2] {
            return Ok(());
        }
        self.subscriber.take().map_or(Ok(()), |subscriber| cupti.unsubscribe(subscriber))
    }
}

/// Returns whether the device's counters were verified since they were started.
pub(crate) fn is_verified(device: u32) -> bool {
    RUNNING.lock().verified.contains(&device)
}

pub(crate) fn record_verified(device: u32) {
    let mut running = RUNNING.lock();
    if running.users[Source::Migrations as usize] > 0 && !running.verified.contains(&device) {
        running.verified.push(device);
    }
}

/// Removes a listener. The last one of a source stops it.
pub(crate) fn remove_listener(listener: &Listener) {
    LISTENERS.lock().retain(|other| !other.is(listener));
    end_source(listener.source());
}

/// Ends what [`use_source`] began.
pub(super) fn end_source(source: Source) {
    let Some(cupti) = CUPTI.get() else { return };
    let mut running = RUNNING.lock();
    let users = &mut running.users[source as usize];
    *users = users.saturating_sub(1);
    if *users > 0 {
        return;
    }
    if source == Source::Migrations {
        running.verified.clear();
    }
    let stopped = cupti.stop(source).and(flush(true));
    if let Err(error) = stopped.and(running.unsubscribe_if_unused(cupti)) {
        report::drop_failed(&error);
    }
}

/// Delivers the records of completed work; without `all`, except those in a buffer with records of work in flight, which are lost otherwise. Also waits for what another
/// thread is delivering.
///
/// # Errors
/// `Unsupported` with the library's error.
pub(crate) fn flush(all: bool) -> Result<()> {
    static FLUSHING: Mutex<()> = Mutex::new(());
    let Some(cupti) = CUPTI.get() else { return Ok(()) };
    let _one_at_a_time = FLUSHING.lock();
    cupti.flush(all)
}

/// Returns the time of the records' clock, in nanoseconds.
///
/// # Errors
/// `Unsupported` with the library's error.
pub(super) fn timestamp() -> Result<u64> {
    CUPTI.get().map_or(Ok(0), |cupti| cupti.timestamp())
}

/// Returns the library, if a listener was ever added.
pub(super) fn library() -> Option<&'static Cupti> {
    CUPTI.get().copied()
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
            cupti.read(buffer, valid, |record| listeners.iter().for_each(|listener| listener.add(&record)))
        };
        // SAFETY: context and stream are those of a completed buffer.
        let dropped = unsafe { cupti.dropped(context, stream) };
        for listener in listeners.iter() {
            listener.add_lost(listener.of_its_kinds(unknown).saturating_add(dropped));
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
