//! Registered memory of the user's: ordinary host memory made reachable for copy engines, and kept so for the next time.
//!
//! Every method may be called from any thread. Registering may wait for work in flight on the buffer, and takes some 40 µs for
//! each MiB; what is registered already costs a look into a table. No lock is held while the driver is called.

mod anchor;
mod registered;
mod table;
#[cfg(test)]
mod table_tests;

use std::{fmt, ops::Range, ptr::NonNull, sync::Arc};

use parking_lot::{Condvar, Mutex};
use transload_core::{
    Access, DeviceId, Error, ErrorKind, MemoryKind, MemoryShortage, Place, RawBuffer, Result,
};
use transload_cuda_sys::DriverError;

use self::{
    anchor::Registration,
    registered::{Promised, Registered},
    table::{Asked, Evicted, Plan, Table},
};
use super::{
    page::page,
    pins::{Pins, READ_ONLY},
};
use crate::{CudaFeature, CudaMemoryManager, error::lift_allocation, lift};

/// Registers host memory and keeps the registrations, up to so many bytes; the ones used longest ago go first.
///
/// A registration is of whole pages. It keeps the buffers alive whose bytes it was made for, also after the program has dropped
/// them, so that memory is never unmapped while the driver has it: [`forget`](Self::forget) lets go of a buffer's memory at
/// once, [`trim`](Self::trim) of everything. It ends only when no buffer made from it is left and nothing is in flight on it.
///
/// Where a range overlaps a registration without lying in it, both become one, unless the older one is in use: that is
/// answered with `Busy`.
pub struct RegistrationCache {
    manager: Arc<CudaMemoryManager>,
    can_register: bool,
    can_register_read_only: bool,
    desk: Mutex<Desk>,
    /// Signalled when a range is no longer in some thread's hand.
    settled: Condvar,
}

struct Desk {
    table: Table<Registration>,
    hits: u64,
    registered: u64,
    evicted: u64,
}

/// Numbers of a [`RegistrationCache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationStatistics {
    /// Registrations alive.
    pub registrations: u64,
    /// Bytes of their pages.
    pub bytes: u64,
    /// Requests that found their memory registered.
    pub hits: u64,
    /// Registrations that were made.
    pub registered: u64,
    /// Registrations that were ended.
    pub evicted: u64,
}

impl RegistrationCache {
    /// A cache over a device's driver, of at most `limit` bytes. What it registers is pinned for every device.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(manager: &Arc<CudaMemoryManager>, limit: u64) -> Result<Self> {
        let device = manager.device();
        Ok(Self {
            manager: Arc::clone(manager),
            can_register: device.supports_feature(CudaFeature::HostRegister)?,
            can_register_read_only: device.supports_feature(CudaFeature::ReadOnlyHostRegister)?,
            desk: Mutex::new(Desk { table: Table::new(limit), hits: 0, registered: 0, evicted: 0 }),
            settled: Condvar::new(),
        })
    }

    /// The buffer's bytes as pinned memory; pinned and mapped memory is answered as it is. Nothing is copied.
    ///
    /// The buffer lends its bytes: until the answer and its slices are gone, using the buffer itself in conflict is answered with
    /// `Busy`. Where it may be written nobody else may use it at all, so a second call for the same bytes is `Busy`, too.
    /// What is in flight on the answer when it is dropped, later users of the buffer come behind.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes, and for memory that somebody else registered; `Busy` as said above, and where a view of
    /// the buffer is open; `OutOfMemory` with the numbers where the limit leaves no room; `Unsupported` for memory of devices,
    /// and where driver or device cannot register this memory; the driver's.
    pub fn register(&self, buffer: &RawBuffer) -> Result<RawBuffer> {
        let access = if buffer.is_writable() { Access::Write } else { Access::Read };
        self.register_for(buffer, access)
    }

    /// As [`register`](Self::register), to be a source only: the buffer and any number of answers can be read at the same time,
    /// and nothing can be transferred into them.
    ///
    /// # Errors
    /// As for `register`.
    pub fn register_source(&self, buffer: &RawBuffer) -> Result<RawBuffer> {
        self.register_for(buffer, Access::Read)
    }

    /// Memory that is no buffer's, as pinned memory. It is never freed by this library.
    ///
    /// # Errors
    /// As for [`register`](Self::register).
    ///
    /// # Safety
    /// * `bytes` initialised bytes at `address` stay mapped until [`forget_slice`](Self::forget_slice) of them has answered
    ///   `Ok`, or the cache and everything it gave is dropped and the memory manager is [drained](CudaMemoryManager::drain).
    /// * They may be written where `writable` says so. Until the answer is dropped and nothing is in flight on it, nobody uses
    ///   them in conflict with it: another answer for the same bytes is not ordered with this one.
    pub unsafe fn register_slice(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        writable: bool,
    ) -> Result<RawBuffer> {
        // SAFETY: the caller's promise.
        let promised = unsafe { Promised::buffer(address, bytes, writable) };
        self.register(&promised)
    }

    /// Ends what is registered of a buffer's bytes; its memory is kept no longer.
    ///
    /// # Errors
    /// `Busy` where it is in use: a buffer made from it is left, or work in flight uses it. The driver's.
    pub fn forget(&self, buffer: &RawBuffer) -> Result<()> {
        match buffer.host_address() {
            Some(address) => self.forget_range(&pages(address, buffer.len())?),
            None => Ok(()),
        }
    }

    /// As [`forget`](Self::forget), for memory that is no buffer's.
    ///
    /// # Errors
    /// As for `forget`.
    pub fn forget_slice(&self, address: NonNull<u8>, bytes: usize) -> Result<()> {
        self.forget_range(&pages(address, bytes)?)
    }

    /// Ends every registration that is not in use. Answers how many bytes that were.
    ///
    /// # Errors
    /// The driver's first; the others are ended all the same.
    pub fn trim(&self) -> Result<u64> {
        // Buffers that wait for the end of their work hold registrations.
        self.manager.parts().reclaimer.sweep();
        let taken = self.desk.lock().table.take_idle();
        let (mut bytes, mut outcome) = (0, Ok(()));
        for evicted in Hand::all(self, taken) {
            let len = (evicted.range().end - evicted.range().start) as u64;
            match evicted.end() {
                Ok(true) => bytes += len,
                Ok(false) => {}
                Err(error) => outcome = outcome.and(Err(lift(error))),
            }
        }
        outcome.map(|()| bytes)
    }

    /// The numbers of this moment.
    #[must_use]
    pub fn statistics(&self) -> RegistrationStatistics {
        let Desk { table, hits, registered, evicted } = &*self.desk.lock();
        RegistrationStatistics {
            registrations: table.len() as u64,
            bytes: table.bytes(),
            hits: *hits,
            registered: *registered,
            evicted: *evicted,
        }
    }

    fn register_for(&self, buffer: &RawBuffer, access: Access) -> Result<RawBuffer> {
        let place = buffer.place();
        if matches!(place.kind, MemoryKind::Pinned | MemoryKind::Mapped) && place.device.is_cpu() {
            return Ok(buffer.clone());
        }
        let address = buffer.host_address().filter(|_| place.kind == MemoryKind::Pageable);
        let Some(address) = address else {
            let text = format!("{place} memory cannot be registered; valid is ordinary host memory");
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        if buffer.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a registration needs at least 1 byte"));
        }
        if !self.can_register {
            let text = format!("{} cannot register host memory", self.manager.device().id());
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        self.manager.parts().reclaimer.sweep();
        let asked = Asked { range: pages(address, buffer.len())?, writable: buffer.is_writable() };
        let loan = buffer.lend(access)?;
        loan.wait_for_earlier_work();
        let registration = self.cover(asked, buffer)?;
        let storage = Registered::new(loan, registration, access == Access::Write && buffer.is_writable());
        Ok(RawBuffer::new(Box::new(storage), self.manager.parts().reclaimer))
    }

    /// A registration of at least the pages asked for.
    fn cover(&self, mut asked: Asked, buffer: &RawBuffer) -> Result<Arc<Registration>> {
        let mut owners = vec![buffer.clone()];
        let mut at_work = Vec::new();
        loop {
            let (joined, others) = {
                let mut desk = self.desk.lock();
                match desk.table.plan(&asked, &at_work) {
                    Plan::Covered(registration) => {
                        desk.hits += 1;
                        return Ok(registration);
                    }
                    Plan::Wait => {
                        self.settled.wait(&mut desk);
                        continue;
                    }
                    Plan::InUse(range) => return Err(in_use(&range)),
                    Plan::Short(held) => {
                        let limit = desk.table.limit();
                        drop(desk);
                        return Err(short(&asked.range, held, limit));
                    }
                    Plan::Register => {
                        drop(desk);
                        return self.make(asked, owners);
                    }
                    Plan::Evict { joined, others } => (joined, others),
                }
            };
            for evicted in Hand::all(self, others) {
                let start = evicted.range().start;
                if !evicted.end().map_err(lift)? {
                    at_work.push(start);
                }
            }
            for evicted in Hand::all(self, joined) {
                let (range, writable) = (evicted.range().clone(), evicted.writable());
                let theirs = evicted.owners().to_vec();
                if !evicted.end().map_err(lift)? {
                    at_work.push(range.start);
                    continue;
                }
                let both = asked.range.start.min(range.start)..asked.range.end.max(range.end);
                // Only where one that may be read alone stays so, and where there is room for both.
                if writable == asked.writable
                    && (both.end - both.start) as u64 <= self.desk.lock().table.limit()
                {
                    asked.range = both;
                    owners.extend(theirs);
                }
            }
        }
    }

    /// Registers a range that is in this thread's hand.
    fn make(&self, asked: Asked, owners: Vec<RawBuffer>) -> Result<Arc<Registration>> {
        let hand = Joining { cache: self, start: asked.range.start, made: None };
        let parts = self.manager.parts();
        let bytes = asked.range.end - asked.range.start;
        let flags = if asked.writable || !self.can_register_read_only { 0 } else { READ_ONLY };
        let counted = parts.tally.enter(bytes);
        // SAFETY: every page of the range has a byte of one of the owners, who are kept along.
        let pins =
            unsafe { Pins::new(parts.context, asked.range.start, bytes, flags, Box::new(owners.clone())) };
        let pins = pins.map_err(|error| refused(error, &parts, bytes))?;
        let made = Registration::new(&asked.range, &parts, pins, counted, owners);
        let made = Arc::new(made.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "no memory is at 0"))?);
        Ok(hand.done(made))
    }

    fn forget_range(&self, range: &Range<usize>) -> Result<()> {
        self.manager.parts().reclaimer.sweep();
        let taken = self.desk.lock().table.take_touching(range).map_err(|range| in_use(&range))?;
        let mut outcome = Ok(());
        for evicted in Hand::all(self, taken) {
            let range = evicted.range().clone();
            let ended = match evicted.end() {
                Ok(true) => Ok(()),
                Ok(false) => Err(in_use(&range)),
                Err(error) => Err(lift(error)),
            };
            outcome = outcome.and(ended);
        }
        outcome
    }
}

/// A registration that this thread has in hand to end it. Dropped otherwise, it is ready as before.
struct Hand<'a> {
    cache: &'a RegistrationCache,
    evicted: Option<Evicted<Registration>>,
    range: Range<usize>,
}

impl<'a> Hand<'a> {
    /// All at once, so that none stays in hand whatever happens to another.
    fn all(cache: &'a RegistrationCache, evicted: Vec<Evicted<Registration>>) -> Vec<Self> {
        let hand = |evicted: Evicted<Registration>| {
            let range = evicted.range.clone();
            Self { cache, evicted: Some(evicted), range }
        };
        evicted.into_iter().map(hand).collect()
    }

    fn range(&self) -> &Range<usize> {
        &self.range
    }

    fn writable(&self) -> bool {
        self.evicted.as_ref().is_some_and(|evicted| evicted.writable)
    }

    fn owners(&self) -> &[RawBuffer] {
        self.evicted.as_ref().map_or(&[], |evicted| evicted.payload.owners())
    }

    /// Ends it; answers `false` where work is in flight on it, and leaves it as it was.
    fn end(mut self) -> Result<bool, DriverError> {
        if self.evicted.as_ref().is_some_and(|evicted| evicted.payload.is_at_work()) {
            return Ok(false);
        }
        let Some(evicted) = self.evicted.take() else { return Ok(false) };
        // Gone from the table also where the driver refuses, or an owner's destructor panics.
        let _gone = Joining { cache: self.cache, start: self.range.start, made: None };
        evicted.payload.end()?;
        self.cache.desk.lock().evicted += 1;
        Ok(true)
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        if let Some(evicted) = self.evicted.take() {
            self.cache.desk.lock().table.ready(self.range.start, &evicted.payload);
            self.cache.settled.notify_all();
        }
    }
}

/// A range in this thread's hand: when dropped it is what was made, or nothing.
struct Joining<'a> {
    cache: &'a RegistrationCache,
    start: usize,
    made: Option<Arc<Registration>>,
}

impl Joining<'_> {
    fn done(mut self, made: Arc<Registration>) -> Arc<Registration> {
        self.made = Some(Arc::clone(&made));
        made
    }
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        {
            let mut desk = self.cache.desk.lock();
            match &self.made {
                Some(made) => {
                    desk.table.ready(self.start, made);
                    desk.registered += 1;
                }
                None => desk.table.gone(self.start),
            }
        }
        self.cache.settled.notify_all();
    }
}

/// The pages that a range of bytes touches.
fn pages(address: NonNull<u8>, bytes: usize) -> Result<Range<usize>> {
    let (page, start) = (page(), address.as_ptr().expose_provenance());
    let end = start.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(page));
    let overflows = || Error::new(ErrorKind::OutOfRange, format!("{bytes} bytes leave the address space"));
    Ok(start - start % page..end.ok_or_else(overflows)?)
}

fn in_use(range: &Range<usize>) -> Error {
    let text = format!(
        "bytes {:#x} to {:#x} are registered and in use; drop the buffers made from them, and wait for their work, first",
        range.start, range.end
    );
    Error::new(ErrorKind::Busy, text)
}

fn short(range: &Range<usize>, held: u64, limit: u64) -> Error {
    let requested = (range.end - range.start) as u64;
    let shortage = MemoryShortage { requested, free: Some(limit.saturating_sub(held)), total: Some(limit) };
    Error::out_of_memory(Place::new(DeviceId::Cpu, MemoryKind::Pinned), shortage)
}

/// Why the driver does not register a range.
fn refused(error: DriverError, parts: &crate::manager::Parts<'_>, bytes: usize) -> Error {
    const INVALID_VALUE: u32 = 1;
    const OPERATING_SYSTEM: u32 = 304;
    const ALREADY_REGISTERED: u32 = 712;
    const NOT_SUPPORTED: u32 = 801;
    match error.code() {
        Some(ALREADY_REGISTERED) => {
            let text =
                "part of this memory was registered by somebody else; let them use it, or undo it there";
            Error::caused_by(ErrorKind::InvalidArgument, text, error)
        }
        Some(INVALID_VALUE | OPERATING_SYSTEM | NOT_SUPPORTED) => {
            let text = "the driver cannot pin this memory, which may be read-only or a device's registers";
            Error::caused_by(ErrorKind::Unsupported, text, error)
        }
        _ => lift_allocation(error, parts.context, Place::new(DeviceId::Cpu, MemoryKind::Pinned), bytes),
    }
}

impl fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationCache").field("statistics", &self.statistics()).finish_non_exhaustive()
    }
}
