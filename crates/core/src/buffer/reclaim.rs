//! Keeps memory that was dropped while operations still used it, until they are complete.

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::{Condvar, Mutex};

use smallvec::SmallVec;

use crate::{Error, Fence, Result, Storage, catch_panic};

/// The fences that an allocation pending free waits for. Up to eight are stored inline.
type Until = SmallVec<[Fence; 8]>;

/// Keeps memory that was dropped in use, with the fences of the work that still uses it.
///
/// Each backend has one, which it sweeps when it allocates or takes in memory, and drains on request.
/// Dropping a buffer never waits.
#[derive(Default)]
pub struct Reclaimer {
    list: Mutex<List>,
    /// Notified when a batch is returned to the list.
    returned: Condvar,
    /// Number of allocations in the list and in batches, so that sweeping an empty list costs one load.
    count: AtomicUsize,
}

#[derive(Default)]
struct List {
    pending: Vec<PendingFree>,
    /// Number of allocations that threads have taken out to poll. They may be returned, so `drain` waits for
    /// them.
    in_batches: usize,
}

struct PendingFree {
    until: Until,
    storage: Box<dyn Storage>,
}

impl PendingFree {
    /// Returns why its work does not complete until the user acts.
    fn held_by_user(&self) -> Option<Error> {
        let mut open = self.until.iter().filter(|fence| !fence.is_known_complete());
        open.find_map(|fence| fence.held_by_user())
    }

    fn is_complete(&self) -> bool {
        crate::mutant!("core/sweep-asks-fences") || self.until.iter().all(Fence::is_complete)
    }
}

/// Frees memory. A panic of its owner's destructor must not free others, which may be in use.
fn free(storage: Box<dyn Storage>) {
    match crate::mutant!("core/panic-frees-no-others") {
        true => drop(storage),
        false => _ = catch_panic(|| drop(storage)),
    }
}

impl Reclaimer {
    /// Creates an empty reclaimer.
    #[must_use]
    pub const fn new() -> Self {
        let list = List { pending: Vec::new(), in_batches: 0 };
        Self { list: Mutex::new(list), returned: Condvar::new(), count: AtomicUsize::new(0) }
    }

    pub(crate) fn push(&self, until: Until, storage: Box<dyn Storage>) {
        let mut list = self.list.lock();
        list.pending.push(PendingFree { until, storage });
        self.count.store(list.pending.len() + list.in_batches, Ordering::Release);
    }

    /// Returns the number of allocations pending free.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Returns whether no allocation is pending free.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frees memory that is no longer in use; queries the driver but does not wait. Returns the number of
    /// freed allocations.
    pub fn sweep(&self) -> usize {
        sweep_orphans(self);
        if self.is_empty() {
            return 0;
        }
        // Fences are polled and memory is freed outside the lock: both call into a driver.
        let mut batch = Batch::take(self, &mut self.list.lock());
        let over: Vec<_> = batch.pending.extract_if(.., |entry| entry.is_complete()).collect();
        let freed = over.len();
        over.into_iter().for_each(|entry| free(entry.storage));
        freed
    }

    /// Like [`drain`](Self::drain), but frees only allocations pending free now whose fences are complete or
    /// selected by `may_wait_for` and not held by the user. Other entries stay. For callers short of memory
    /// that may have to finish that work themselves.
    ///
    /// # Errors
    /// Like `drain`.
    pub fn drain_where(&self, may_wait_for: impl Fn(&Fence) -> bool) -> Result<()> {
        let mut outcome = Ok(());
        sweep_orphans(self);
        let ends =
            |fence: &Fence| fence.is_complete() || may_wait_for(fence) && fence.held_by_user().is_none();
        let allowed = |entry: &mut PendingFree| entry.until.iter().all(ends);
        // Each turn ends one at least.
        for _ in 0..self.len() {
            let batch = Batch::take(self, &mut self.list.lock());
            if !batch.end_some(allowed, &mut outcome) {
                break;
            }
        }
        outcome
    }

    /// Waits for all allocations pending free and frees them. Does not wait for work that only the user can end,
    /// such as a capture; its memory stays pending free.
    ///
    /// # Errors
    /// The first error of an operation that was waited for; its memory is freed all the same.
    /// [`Busy`](crate::ErrorKind::Busy) if memory stays pending free, with the reason.
    pub fn drain(&self) -> Result<()> {
        let mut outcome = Ok(());
        sweep_orphans(self);
        loop {
            let mut list = self.list.lock();
            if list.in_batches > 0 && !crate::mutant!("core/drain-waits-for-sweep") {
                // Another thread may return memory that has to be waited for.
                self.returned.wait(&mut list);
                continue;
            }
            if list.pending.is_empty() {
                return outcome;
            }
            let batch = Batch::take(self, &mut list);
            drop(list);
            let mut held = Ok(());
            let ends = |entry: &mut PendingFree| match entry.held_by_user() {
                Some(error) => {
                    held = Err(error);
                    false
                }
                None => true,
            };
            if !batch.end_some(ends, &mut outcome) {
                return outcome.and(held);
            }
        }
    }
}

/// Allocations that one thread has taken out of the list. On drop, returns those that are left.
struct Batch<'a> {
    reclaimer: &'a Reclaimer,
    pending: Vec<PendingFree>,
    taken: usize,
}

impl<'a> Batch<'a> {
    fn take(reclaimer: &'a Reclaimer, list: &mut List) -> Self {
        let pending = std::mem::take(&mut list.pending);
        let taken = pending.len();
        list.in_batches += taken;
        Self { reclaimer, pending, taken }
    }

    /// Frees what is known to be complete of the allocations that `ends` selects, or waits for the first of them. Others may take the rest
    /// meanwhile, which may be complete before that. Returns whether it freed any; adds the first error to `outcome`.
    fn end_some(mut self, ends: impl FnMut(&mut PendingFree) -> bool, outcome: &mut Result<()>) -> bool {
        let chosen: Vec<_> = self.pending.extract_if(.., ends).collect();
        let (mut ending, mut open): (Vec<_>, Vec<_>) =
            chosen.into_iter().partition(|entry| entry.until.iter().all(Fence::is_known_complete));
        if ending.is_empty() && !open.is_empty() {
            ending.push(open.remove(0));
        }
        self.pending.append(&mut open);
        self.put_back();
        let any = !ending.is_empty();
        for PendingFree { until, storage } in ending {
            for fence in &until {
                let ended = fence.wait();
                if outcome.is_ok() {
                    *outcome = ended;
                }
            }
            free(storage);
        }
        any
    }

    /// Returns what is left.
    fn put_back(&mut self) {
        let mut list = self.reclaimer.list.lock();
        list.in_batches -= self.pending.len();
        self.taken -= self.pending.len();
        list.pending.append(&mut self.pending);
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let mut list = self.reclaimer.list.lock();
        list.in_batches -= self.taken;
        list.pending.append(&mut self.pending);
        self.reclaimer.count.store(list.pending.len() + list.in_batches, Ordering::Release);
        drop(list);
        if !crate::mutant!("core/reclaimer-notified") {
            self.reclaimer.returned.notify_all();
        }
    }
}

/// Memory still in use when its reclaimer was dropped; every other reclaimer sweeps it.
static ORPHANS: Reclaimer = Reclaimer::new();

/// Frees orphaned memory that is no longer in use, without waiting.
fn sweep_orphans(asked_by: &Reclaimer) {
    if !std::ptr::eq(asked_by, &ORPHANS) {
        ORPHANS.sweep();
    }
}

impl Drop for Reclaimer {
    /// Never waits: memory still in use is left to the other reclaimers of the process.
    fn drop(&mut self) {
        self.sweep();
        for PendingFree { until, storage } in self.list.get_mut().pending.drain(..) {
            if !crate::mutant!("core/orphans-kept") {
                ORPHANS.push(until, storage);
            }
        }
    }
}

impl fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaimer").field("pending_free", &self.len()).finish()
    }
}
