//! Keeps memory that was dropped while operations still used it, until they are complete.

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use smallvec::SmallVec;

use crate::{Error, Fence, Result, Storage, catch_panic};

/// The fences that an allocation pending free waits for. Up to eight are stored inline.
type Until = SmallVec<[Fence; 8]>;

/// Longest wait of a thread short of memory for what another one frees, whose destructor may wait for the thread.
const WAIT_FOR_OTHERS: Duration = Duration::from_secs(2);

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
    /// Number of allocations that each thread has taken out to poll or to free. They may be returned, so `drain` waits for those of others.
    in_batches: Vec<(ThreadId, usize)>,
    /// The last number given to an allocation.
    last: u64,
}

impl List {
    fn len(&self) -> usize {
        self.pending.len() + self.in_batches.iter().map(|(_, count)| count).sum::<usize>()
    }

    /// Counts so many more, or fewer, as taken out by a thread.
    fn take(&mut self, by: ThreadId, change: impl FnOnce(&mut usize)) {
        let at = self.in_batches.iter().position(|(thread, _)| *thread == by);
        let at = at.unwrap_or_else(|| {
            self.in_batches.push((by, 0));
            self.in_batches.len() - 1
        });
        let count = self.in_batches.get_mut(at).map(|(_, count)| {
            change(count);
            *count
        });
        if count == Some(0) {
            self.in_batches.swap_remove(at);
        }
    }

    /// Returns whether another thread has taken any out. What this one has, it may have from within a destructor.
    fn is_in_batch_of_other(&self) -> bool {
        let this = thread::current().id();
        self.in_batches.iter().any(|(thread, _)| *thread != this)
    }
}

struct PendingFree {
    /// Names it in its list.
    number: u64,
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
        let list = List { pending: Vec::new(), in_batches: Vec::new(), last: 0 };
        Self { list: Mutex::new(list), returned: Condvar::new(), count: AtomicUsize::new(0) }
    }

    pub(crate) fn push(&self, until: Until, storage: Box<dyn Storage>) {
        let mut list = self.list.lock();
        list.last += 1;
        let number = list.last;
        list.pending.push(PendingFree { number, until, storage });
        self.count.store(list.len(), Ordering::Release);
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
    /// that may have to finish that work themselves. Waits for up to two seconds for what other threads are freeing now.
    ///
    /// # Errors
    /// Like `drain`.
    pub fn drain_where(&self, may_wait_for: impl Fn(&Fence) -> bool) -> Result<()> {
        let mut outcome = Ok(());
        sweep_orphans(self);
        let last = self.list.lock().last;
        let ends =
            |fence: &Fence| fence.is_complete() || may_wait_for(fence) && fence.held_by_user().is_none();
        let allowed = |entry: &mut PendingFree| entry.number <= last && entry.until.iter().all(ends);
        let limit = Instant::now() + WAIT_FOR_OTHERS;
        while self.end_some(allowed, &mut outcome) {}
        let mut list = self.list.lock();
        while list.is_in_batch_of_other()
            && !crate::mutant!("core/short-waits-for-others")
            && !self.returned.wait_until(&mut list, limit).timed_out()
        {}
        drop(list);
        // What others only looked at is back.
        while self.end_some(allowed, &mut outcome) {}
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
            if list.is_in_batch_of_other() && !crate::mutant!("core/drain-waits-for-sweep") {
                // Another thread may return memory that has to be waited for.
                self.returned.wait(&mut list);
                continue;
            }
            if list.pending.is_empty() {
                return outcome;
            }
            drop(list);
            let mut held = Ok(());
            let ends = |entry: &mut PendingFree| match entry.held_by_user() {
                Some(error) => {
                    held = Err(error);
                    false
                }
                None => true,
            };
            if !self.end_some(ends, &mut outcome) {
                return outcome.and(held);
            }
        }
    }

    /// Frees what is known to be complete of the allocations that `ends` selects, or else waits for the first of them, which others see
    /// meanwhile: they may wait for it, too, or free it. Returns whether there was any; adds the first error to `outcome`.
    fn end_some(&self, ends: impl FnMut(&mut PendingFree) -> bool, outcome: &mut Result<()>) -> bool {
        let mut tell = |until: &Until| {
            for fence in until {
                let ended = fence.wait();
                if outcome.is_ok() {
                    *outcome = ended;
                }
            }
        };
        let mut batch = Batch::take(self, &mut self.list.lock());
        let chosen: Vec<_> = batch.pending.extract_if(.., ends).collect();
        let (mut ending, mut open): (Vec<_>, Vec<_>) =
            chosen.into_iter().partition(|entry| entry.until.iter().all(Fence::is_known_complete));
        let first =
            open.first().filter(|_| ending.is_empty()).map(|first| (first.number, first.until.clone()));
        batch.pending.append(&mut open);
        batch.put_back();
        if let Some((number, until)) = &first {
            drop(batch);
            tell(until);
            batch = Batch::take(self, &mut self.list.lock());
            ending.extend(batch.pending.extract_if(.., |entry| entry.number == *number));
            batch.put_back();
        }
        let any = first.is_some() || !ending.is_empty();
        for PendingFree { until, storage, .. } in ending {
            tell(&until);
            free(storage);
        }
        any
    }
}

/// Allocations that one thread has taken out of the list. On drop, returns those that are left.
struct Batch<'a> {
    reclaimer: &'a Reclaimer,
    pending: Vec<PendingFree>,
    taken: usize,
    thread: ThreadId,
}

impl<'a> Batch<'a> {
    fn take(reclaimer: &'a Reclaimer, list: &mut List) -> Self {
        let (pending, thread) = (std::mem::take(&mut list.pending), thread::current().id());
        let taken = pending.len();
        list.take(thread, |count| *count += taken);
        Self { reclaimer, pending, taken, thread }
    }

    /// Returns what is left.
    fn put_back(&mut self) {
        let mut list = self.reclaimer.list.lock();
        let left = self.pending.len();
        list.take(self.thread, |count| *count -= left);
        self.taken -= left;
        list.pending.append(&mut self.pending);
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let mut list = self.reclaimer.list.lock();
        let taken = self.taken;
        list.take(self.thread, |count| *count -= taken);
        list.pending.append(&mut self.pending);
        self.reclaimer.count.store(list.len(), Ordering::Release);
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
        for PendingFree { until, storage, .. } in self.list.get_mut().pending.drain(..) {
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
