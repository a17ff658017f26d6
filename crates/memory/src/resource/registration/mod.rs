//! RegisteredStorage memory of the user's: ordinary host memory made reachable for copy engines, and kept so for the next time.
//!
//! Every method may be called from any thread. Registering may wait for work in flight on the buffer, and takes some 40 µs for
//! each MiB; what is registered already costs a look into a table. Where a registration ends (to make room, or in `forget` and
//! `trim`) the driver waits for everything in flight on the device (driver 580). No lock is held while the driver is called.

mod entry_guard;
mod errors;
mod pending_uses;
mod range;
mod storage;
mod table;
#[cfg(test)]
#[path = "../../../tests/unit/registration_table.rs"]
mod table_tests;

use std::{fmt, sync::Arc};

use parking_lot::{Condvar, Mutex};
use transload_core::{Access, Error, ErrorKind, MemoryKind, RawBuffer, Result};

use self::{
    entry_guard::{DropLater, EntryGuard},
    errors::{addresses, in_use, limit_exceeded, refused},
    range::Registration,
    storage::RegisteredStorage,
    table::{Plan, Request, Table},
};
use super::host_registration::{HostRegistration, READ_ONLY};
use crate::{CudaFeature, CudaMemoryManager, lift};

/// Registers host memory and keeps the registrations, up to so many bytes; the ones used longest ago go first. Memory that is no
/// buffer's becomes one by [`HostBytes`](transload_core::HostBytes).
///
/// A registration is of just the bytes it was made for; others in the same page are registered by themselves. It keeps the
/// buffers alive whose bytes they are, also after the program has dropped them, so that memory is never unmapped while the
/// driver has it: [`forget`](Self::forget) lets go of a buffer's memory at once, [`trim`](Self::trim) of everything. It ends
/// only when no buffer made from it is left and nothing is in flight on it, or on the buffers whose bytes they are. While a
/// [`FreeDeferral`](crate::FreeDeferral) lives none ends, and all count as in use.
///
/// Where a range overlaps a registration without lying in it, both become one, unless the older one is in use: that is
/// answered with `Busy`.
pub struct RegistrationCache {
    manager: Arc<CudaMemoryManager>,
    can_register: bool,
    can_register_read_only: bool,
    state: Mutex<CacheState>,
    /// Signalled when a range is no longer in some thread's hand.
    entry_settled: Condvar,
}

struct CacheState {
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
    /// Their bytes.
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
            state: Mutex::new(CacheState { table: Table::new(limit), hits: 0, registered: 0, evicted: 0 }),
            entry_settled: Condvar::new(),
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

    /// Ends what is registered of a buffer's bytes; its memory is kept no longer.
    ///
    /// # Errors
    /// `Busy` where it is in use: a buffer made from it is left, or work in flight uses it. The driver's.
    pub fn forget(&self, buffer: &RawBuffer) -> Result<()> {
        let Some(address) = buffer.host_address() else { return Ok(()) };
        let range = addresses(address, buffer.len())?;
        self.manager.alloc_context().reclaimer.sweep();
        let taken = self.state.lock().table.take_touching(&range).map_err(|range| in_use(&range))?;
        let (mut outcome, mut drop_later) = (Ok(()), DropLater::default());
        for evicted in EntryGuard::all(self, taken) {
            let range = evicted.range.clone();
            let ended = match evicted.end() {
                Ok(Some(ended)) => {
                    drop_later.push(ended);
                    Ok(())
                }
                Ok(None) => Err(in_use(&range)),
                Err(error) => Err(lift(error)),
            };
            outcome = outcome.and(ended);
        }
        drop(drop_later);
        outcome
    }

    /// Ends every registration that is not in use. Answers how many bytes that were.
    ///
    /// # Errors
    /// The driver's first; the others are ended all the same.
    pub fn trim(&self) -> Result<u64> {
        // Buffers that wait for the end of their work hold registrations.
        self.manager.alloc_context().reclaimer.sweep();
        let taken = self.state.lock().table.take_idle();
        let (mut bytes, mut outcome, mut drop_later) = (0, Ok(()), DropLater::default());
        for evicted in EntryGuard::all(self, taken) {
            let len = (evicted.range.end - evicted.range.start) as u64;
            match evicted.end() {
                Ok(Some(ended)) => {
                    bytes += len;
                    drop_later.push(ended);
                }
                Ok(None) => {}
                Err(error) => outcome = outcome.and(Err(lift(error))),
            }
        }
        drop(drop_later);
        outcome.map(|()| bytes)
    }

    /// The numbers of this moment.
    #[must_use]
    pub fn statistics(&self) -> RegistrationStatistics {
        let CacheState { table, hits, registered, evicted } = &*self.state.lock();
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
        self.manager.alloc_context().reclaimer.sweep();
        let request = Request { range: addresses(address, buffer.len())?, writable: buffer.is_writable() };
        let loan = buffer.lend(access)?;
        if !transload_core::mutant!("memory/register-waits-for-work") {
            loan.wait_for_earlier_work();
        }
        let registration = self.find_or_register(request, buffer)?;
        let storage =
            RegisteredStorage::new(loan, registration, access == Access::Write && buffer.is_writable());
        Ok(RawBuffer::new(Box::new(storage), self.manager.alloc_context().reclaimer))
    }

    /// A registration of at least the bytes request for.
    fn find_or_register(&self, mut request: Request, buffer: &RawBuffer) -> Result<Arc<Registration>> {
        let mut owners = vec![buffer.clone()];
        let mut in_use_starts = Vec::new();
        loop {
            let (joined, others) = {
                let mut state = self.state.lock();
                match state.table.plan(&request, &in_use_starts) {
                    Plan::Covered(registration) => {
                        state.hits += 1;
                        return Ok(registration);
                    }
                    Plan::Wait => {
                        self.entry_settled.wait(&mut state);
                        continue;
                    }
                    Plan::InUse(range) => return Err(in_use(&range)),
                    Plan::LimitExceeded(held) => {
                        let limit = state.table.limit();
                        drop(state);
                        return Err(limit_exceeded(&request.range, held, limit));
                    }
                    Plan::Register => {
                        drop(state);
                        return self.register_range(request, owners);
                    }
                    Plan::Evict { joined, others } => (joined, others),
                }
            };
            // Dropped behind the hands, also after an error.
            let mut drop_later = DropLater::default();
            let (joined, others) = (EntryGuard::all(self, joined), EntryGuard::all(self, others));
            for evicted in others {
                let start = evicted.range.start;
                match evicted.end().map_err(lift)? {
                    Some(ended) => drop_later.push(ended),
                    None => in_use_starts.push(start),
                }
            }
            for evicted in joined {
                let (range, writable) = (evicted.range.clone(), evicted.writable);
                let theirs =
                    evicted.registration.iter().flat_map(|old| old.owners().to_vec()).collect::<Vec<_>>();
                match evicted.end().map_err(lift)? {
                    Some(ended) => drop_later.push(ended),
                    None => {
                        in_use_starts.push(range.start);
                        continue;
                    }
                }
                let both = request.range.start.min(range.start)..request.range.end.max(range.end);
                // Only where one that may be read alone stays so, and where there is room for both.
                if writable == request.writable
                    && (both.end - both.start) as u64 <= self.state.lock().table.limit()
                {
                    request.range = both;
                    owners.extend(theirs);
                }
            }
        }
    }

    /// Registers a range that is in this thread's hand.
    fn register_range(&self, request: Request, owners: Vec<RawBuffer>) -> Result<Arc<Registration>> {
        let mut guard = EntryGuard::new(self, &request);
        let alloc = self.manager.alloc_context();
        let bytes = request.range.end - request.range.start;
        let flags = if request.writable || !self.can_register_read_only { 0 } else { READ_ONLY };
        let counted = alloc.counts.add(bytes);
        // SAFETY: every byte of the range is one of the owners', who are kept along.
        let registration = unsafe {
            HostRegistration::new(alloc.context, request.range.start, bytes, flags, Box::new(owners.clone()))
        };
        let registration = registration.map_err(|error| refused(error, &alloc, bytes))?;
        let made = Registration::new(&request.range, &alloc, registration, counted, owners);
        let made = Arc::new(made.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "no memory is at 0"))?);
        guard.registration = Some(Arc::clone(&made));
        self.state.lock().registered += 1;
        Ok(made)
    }
}

impl fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationCache").field("statistics", &self.statistics()).finish_non_exhaustive()
    }
}
