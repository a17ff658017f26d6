//! A cache of registrations of ordinary host memory, so that copy engines can access it directly.
//!
//! Every method may be called from any thread. Registering may wait for work in flight on the buffer and takes about 40
//! µs per MiB; a cached registration costs a table lookup. Ending one (to make room, in `forget` and in `trim`) makes
//! the driver wait for the device (driver 580); until then no work on its buffers can be submitted. No lock is held during driver
//! calls.

mod ending;
mod entry_guard;
mod errors;
mod kept;
mod pending_uses;
mod range;
mod storage;
mod table;
#[cfg(test)]
#[path = "../../../tests/unit/registration_table.rs"]
mod table_tests;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use transload_core::{Access, Error, ErrorKind, Loan, MemoryKind, RawBuffer, Result, events::report};

use self::{
    ending::Owners,
    entry_guard::{DropLater, End, EntryGuard},
    errors::{addresses, in_use, limit_exceeded, refused},
    kept::KeptCounts,
    range::Registration,
    storage::RegisteredStorage,
    table::{Plan, Request, Table},
};
use super::host_registration::{HostRegistration, READ_ONLY};
use crate::{
    CudaFeature, CudaMemoryManager, lift, manager::WAIT_FOR_FREES, pinned_limit::Pinned, storage::Running,
};

/// Registers host memory and caches the registrations, up to a limit in bytes, evicting the least recently used. Memory
/// without a buffer gets one from [`HostBytes`](transload_core::HostBytes).
///
/// A registration covers exactly the requested bytes; other bytes of the same page are registered separately. It keeps
/// the buffers that own the bytes alive, so that registered memory is never unmapped: [`forget`](Self::forget) releases
/// one buffer's memory, [`trim`](Self::trim) everything. It ends only when no buffer created from it is left, no
/// work on it, or on the owners, is in flight, and no view or loan of the owners is open; work submitted on them
/// meanwhile waits. While a [`FreeDeferral`](crate::FreeDeferral) exists none ends, and all count as in use.
///
/// A range that overlaps a registration without lying in it is merged with it, or `Busy` is returned if that is in use.
pub struct RegistrationCache {
    manager: Arc<CudaMemoryManager>,
    can_register: bool,
    can_register_read_only: bool,
    /// Registrations that last until their memory is freed.
    kept: Arc<KeptCounts>,
    state: Mutex<CacheState>,
    /// Signalled when a range is no longer busy in another thread.
    entry_settled: Condvar,
}

struct CacheState {
    table: Table<Registration>,
    hits: u64,
    registered: u64,
    evicted: u64,
}

impl CacheState {
    /// Has the table count what lasts until it is freed.
    fn note_kept(&mut self, kept: &KeptCounts) {
        if !transload_core::mutant!("memory/kept-registrations-count") {
            self.table.set_kept(kept.bytes.load(Ordering::Relaxed));
        }
    }
}

/// Counters of a [`RegistrationCache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RegistrationStatistics {
    /// Number of live registrations, with those that last until their memory is freed.
    pub registrations: u64,
    /// Total bytes of these.
    pub bytes: u64,
    /// Number of requests whose memory was already registered.
    pub hits: u64,
    /// Number of registrations made.
    pub registered: u64,
    /// Number of registrations ended.
    pub evicted: u64,
}

impl RegistrationCache {
    /// Creates a cache of at most `limit` bytes. Registered memory is pinned for every device.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(manager: &Arc<CudaMemoryManager>, limit: u64) -> Result<Self> {
        let device = manager.device();
        Ok(Self {
            manager: Arc::clone(manager),
            can_register: device.supports_feature(CudaFeature::HostRegister)?,
            can_register_read_only: device.supports_feature(CudaFeature::ReadOnlyHostRegister)?,
            kept: Arc::default(),
            state: Mutex::new(CacheState { table: Table::new(limit), hits: 0, registered: 0, evicted: 0 }),
            entry_settled: Condvar::new(),
        })
    }

    /// Returns the buffer's bytes as pinned memory, without copying; pinned and mapped memory is returned as it is.
    ///
    /// The buffer lends its bytes: until the returned buffer and its slices are dropped, conflicting use of the
    /// original fails with `Busy`. Writable bytes are lent exclusively, so a second call for them also fails. Later
    /// users of the original are ordered after the work in flight on the returned buffer.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes, and for memory registered by another user; `Busy` as above, and if a view of the
    /// buffer is open; `SourceFailed` like [`RawBuffer::lend`]; `OutOfMemory` with the numbers if the limit is reached; `Unsupported` for device memory, and if
    /// driver or device cannot register this memory; the driver's.
    pub fn register(&self, buffer: &RawBuffer) -> Result<RawBuffer> {
        let access = if buffer.is_writable() { Access::Write } else { Access::Read };
        let registered = self.register_for(buffer, access);
        report::emit_deferred();
        registered
    }

    /// Like [`register`](Self::register), but only as a source: the buffer and any number of returned buffers can be
    /// read concurrently, and nothing can be transferred into them.
    ///
    /// # Errors
    /// As for `register`.
    pub fn register_source(&self, buffer: &RawBuffer) -> Result<RawBuffer> {
        self.register_for(buffer, Access::Read)
    }

    /// Ends all registrations of a buffer's bytes and releases the memory, except one that lasts
    /// [until it is freed](Self::register_until_freed).
    ///
    /// # Errors
    /// `Busy` if in use: a buffer created from it exists, work in flight uses it, or a view or a loan of the buffer is open. The driver's.
    pub fn forget(&self, buffer: &RawBuffer) -> Result<()> {
        let Some(address) = buffer.host_address() else { return Ok(()) };
        let range = addresses(address, buffer.len())?;
        self.manager.alloc_context().reclaimer.sweep();
        let taken = self.state.lock().table.take_touching(&range).map_err(|range| in_use(&range))?;
        let (mut outcome, mut drop_later) = (Ok(()), DropLater::default());
        let guards = EntryGuard::all(self, taken);
        let ranges: Vec<_> = guards.iter().map(|guard| guard.range.clone()).collect();
        for (ended, range) in EntryGuard::end_all(guards).into_iter().zip(ranges) {
            let ended = match ended {
                Ok(End::Ended(ended)) => {
                    drop_later.push(ended);
                    Ok(())
                }
                Ok(End::InUse | End::Deferred) => Err(in_use(&range)),
                Err(error) => Err(lift(error)),
            };
            outcome = outcome.and(ended);
        }
        drop(drop_later);
        outcome
    }

    /// Ends every registration that is not in use, and returns their total bytes. Waits for frees as
    /// [`CudaMemoryManager::allocate`](crate::CudaMemoryManager::allocate) does.
    ///
    /// # Errors
    /// The driver's first error; the others are ended regardless.
    pub fn trim(&self) -> Result<u64> {
        self.end_idle(Some(WAIT_FOR_FREES))
    }

    /// Like [`trim`](Self::trim), but waits until no [`FreeDeferral`](crate::FreeDeferral) exists.
    ///
    /// # Errors
    /// As for `trim`.
    pub fn drain(&self) -> Result<u64> {
        self.end_idle(
            transload_core::mutant!("memory/drain-waits-for-registrations").then_some(Duration::ZERO),
        )
    }

    /// Waits for deferrals to end at most so long, for ever without a limit.
    fn end_idle(&self, limit: Option<Duration>) -> Result<u64> {
        // Parked buffers hold registrations.
        self.manager.alloc_context().reclaimer.sweep();
        let (mut bytes, mut outcome, mut drop_later) = (0, Ok(()), DropLater::default());
        while self.state.lock().table.has_idle() {
            // Before entries become busy, since a thread that defers frees may wait for one.
            let may_end = match limit {
                Some(limit) => Running::begin_within(limit),
                None => Some(Running::begin()),
            };
            drop(may_end);
            let taken = self.state.lock().table.take_idle();
            let mut are_deferred = false;
            let guards = EntryGuard::all(self, taken);
            let lengths: Vec<_> = guards.iter().map(|guard| guard.range.len() as u64).collect();
            for (ended, len) in EntryGuard::end_all(guards).into_iter().zip(lengths) {
                match ended {
                    Ok(End::Ended(ended)) => {
                        bytes += len;
                        drop_later.push(ended);
                    }
                    Ok(End::InUse) => {}
                    Ok(End::Deferred) => are_deferred = true,
                    Err(error) => outcome = outcome.and(Err(lift(error))),
                }
            }
            // Another deferral may have begun meanwhile.
            if !are_deferred || limit.is_some() {
                break;
            }
        }
        drop(drop_later);
        report::emit_deferred();
        outcome.map(|()| bytes)
    }

    /// Returns the most bytes that are registered.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.state.lock().table.limit()
    }

    /// Returns the current counters.
    #[must_use]
    pub fn statistics(&self) -> RegistrationStatistics {
        let CacheState { table, hits, registered, evicted } = &*self.state.lock();
        RegistrationStatistics {
            registrations: table.len() as u64 + self.kept.registrations.load(Ordering::Relaxed),
            bytes: table.bytes().saturating_add(self.kept_bytes()),
            hits: *hits,
            registered: *registered,
            evicted: *evicted,
        }
    }

    fn kept_bytes(&self) -> u64 {
        self.kept.bytes.load(Ordering::Relaxed)
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
        let mut loan = Some(lend(buffer, access)?);
        let registration = self.find_or_register(request, buffer, &mut loan)?;
        let loan = match loan {
            Some(loan) => loan,
            None => lend(buffer, access)?,
        };
        let storage =
            RegisteredStorage::new(loan, registration, access == Access::Write && buffer.is_writable());
        Ok(RawBuffer::new(Box::new(storage), self.manager.alloc_context().reclaimer))
    }

    /// Returns a registration that covers at least the requested bytes; `None` if the allocation is registered until it is freed.
    /// Ends the buffer's loan if another registration has to end first.
    fn find_or_register(
        &self,
        mut request: Request,
        buffer: &RawBuffer,
        loan: &mut Option<Loan>,
    ) -> Result<Option<Arc<Registration>>> {
        let wanted = request.range.clone();
        let mut owners = vec![buffer.clone()];
        let mut in_use_starts = Vec::new();
        loop {
            let (joined, others) = {
                let mut state = self.state.lock();
                // Under the lock: until a range is no longer busy, only its entry says that it is being registered.
                if buffer.is_registered_for(self.manager.device().id())
                    && !transload_core::mutant!("memory/register-finds-kept")
                {
                    state.hits += 1;
                    return Ok(None);
                }
                state.note_kept(&self.kept);
                match state.table.plan(&request, &in_use_starts) {
                    Plan::Covered(registration) => {
                        state.hits += 1;
                        return Ok(Some(registration));
                    }
                    Plan::Wait => {
                        self.entry_settled.wait(&mut state);
                        continue;
                    }
                    Plan::InUse(range) => return Err(in_use(&range)),
                    // Merged with others it is too long.
                    Plan::LimitExceeded(_)
                        if request.range != wanted
                            && !transload_core::mutant!("memory/merged-only-if-it-fits") =>
                    {
                        request.range = wanted.clone();
                        owners.truncate(1);
                        continue;
                    }
                    Plan::LimitExceeded(held) => {
                        let limit = state.table.limit();
                        drop(state);
                        return Err(limit_exceeded(&request.range, held, limit));
                    }
                    Plan::Register => {
                        drop(state);
                        return self.register_range(request, owners).map(Some);
                    }
                    Plan::Evict { joined, others } => (joined, others),
                }
            };
            // Dropped after the guards, also on error.
            let mut drop_later = DropLater::default();
            let first_joined = others.len();
            let guards = EntryGuard::all(self, others.into_iter().chain(joined).collect());
            let old: Vec<_> = guards.iter().map(EntryGuard::describe).collect();
            // A registration ends while nothing uses its buffers, which may have these bytes.
            drop(loan.take());
            for (index, (ended, (range, writable, theirs))) in
                EntryGuard::end_all(guards).into_iter().zip(old).enumerate()
            {
                match ended.map_err(lift)? {
                    End::Ended(ended) => drop_later.push(ended),
                    End::InUse | End::Deferred => {
                        in_use_starts.push(range.start);
                        continue;
                    }
                }
                if index < first_joined {
                    continue;
                }
                let both = request.range.start.min(range.start)..request.range.end.max(range.end);
                // Merge only if that keeps read-only memory read-only, and if both fit.
                if writable == request.writable
                    && (both.end - both.start) as u64 <= self.state.lock().table.limit()
                {
                    request.range = both;
                    owners.extend(theirs);
                }
            }
        }
    }

    /// Registers a range that this thread has marked busy.
    fn register_range(&self, request: Request, owners: Vec<RawBuffer>) -> Result<Arc<Registration>> {
        let mut guard = EntryGuard::new(self, &request);
        let alloc = self.manager.alloc_context();
        let bytes = request.range.end - request.range.start;
        let flags = if request.writable || !self.can_register_read_only { 0 } else { READ_ONLY };
        let counted = alloc.counts.add_pinned(bytes, Pinned::Registered)?;
        let owners: Owners = owners.into();
        // SAFETY: every byte of the range belongs to one of the owners, which are kept alive.
        let registration = unsafe {
            HostRegistration::new(
                alloc.context,
                request.range.start,
                bytes,
                flags,
                Box::new(Arc::clone(&owners)),
            )
        };
        let registration = registration.map_err(|error| refused(error, &alloc, bytes))?;
        let made = Registration::new(request.range, &alloc, registration, counted, owners);
        let made = Arc::new(made.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "no memory is at 0"))?);
        guard.registration = Some(Arc::clone(&made));
        self.state.lock().registered += 1;
        Ok(made)
    }
}

/// Lends the buffer once the work in flight on it is complete.
fn lend(buffer: &RawBuffer, access: Access) -> Result<Loan> {
    let loan = buffer.lend(access)?;
    if !transload_core::mutant!("memory/register-waits-for-work") {
        loan.wait_for_earlier_work()?;
    }
    Ok(loan)
}

impl fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationCache").field("statistics", &self.statistics()).finish_non_exhaustive()
    }
}
