//! Drops values of other code on spare threads, after the device work that uses them.

use std::{
    any::Any,
    collections::VecDeque,
    fmt, mem,
    sync::{Arc, OnceLock},
    task::{Wake, Waker},
    time::Instant,
};

use parking_lot::{Condvar, Mutex};
use transload_core::{Error, Fence, Result, events::report};

use crate::{BlockingKey, Executor, Task, guarded::discard, workers::refuse_to_drain};

/// Owners of one queue that are dropped at once; a blocked one delays the rest only if there are so many.
const THREADS: usize = 4;

/// Has the values that other queues left when they were dropped: no thread had started for them, or the user holds up their work.
static LEFT: OnceLock<DropQueue> = OnceLock::new();

/// Drops values whose destructors are other code, such as the owners of adopted memory: on a spare thread of the executor, under no
/// lock, and not before given fences are complete. A destructor may block, panic, or wait for transfers. Values are dropped in no
/// particular order.
///
/// Clones share the queue. Dropping it does not wait: values that are left are dropped later, after their work: when their thread
/// starts, or at the next use of any queue. Usable from any thread.
#[derive(Clone)]
pub struct DropQueue {
    shared: Arc<Shared>,
}

struct Shared {
    executor: Executor,
    key: BlockingKey,
    state: Mutex<State>,
    /// Notified when a thread is done with a value.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Values for which a thread is requested.
    ready: VecDeque<Pending>,
    /// Values that wait for a fence.
    waiting: Vec<Waiting>,
    /// Threads that have a value in hand.
    busy: usize,
    /// Values that are not dropped, wherever they are.
    left: usize,
    next_id: u64,
}

struct Pending {
    value: Box<dyn Any + Send>,
    after: Vec<Fence>,
}

struct Waiting {
    id: u64,
    pending: Pending,
    /// Whether its work does not complete until the user acts; nothing wakes it then.
    held: bool,
}

impl Default for DropQueue {
    fn default() -> Self {
        Self::new(Executor::shared())
    }
}

impl DropQueue {
    /// Creates a queue that uses spare threads of `executor`.
    #[must_use]
    pub fn new(executor: Executor) -> Self {
        let (key, state) = (BlockingKey::new(THREADS), Mutex::default());
        Self { shared: Arc::new(Shared { executor, key, state, changed: Condvar::new() }) }
    }

    /// Drops a value once the fences are complete. Does not wait.
    pub fn push(&self, value: Box<dyn Any + Send>, after: Vec<Fence>) {
        if transload_core::mutant!("executor/drop-on-a-spare-thread") {
            return drop(value);
        }
        if let Some(left) = LEFT.get() {
            left.shared.retry();
        }
        let mut state = self.shared.state.lock();
        state.ready.push_back(Pending { value, after });
        state.left += 1;
        let held = state.recheck_held();
        drop(state);
        for _ in 0..=held {
            drop(self.shared.start_one());
        }
    }

    /// Returns the number of values that are not dropped yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.state.lock().left
    }

    /// Returns whether all values are dropped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Blocks until all values are dropped. The caller must hold no lock that their destructors need.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](transload_core::ErrorKind::Unsupported) on a thread of an executor, which may be the one that drops
    /// them: nothing is waited for. The first error of work that was waited for; [`ErrorKind::Busy`](transload_core::ErrorKind::Busy) if a value waits for work
    /// that only the user can end, such as a stream capture; [`ErrorKind::Io`](transload_core::ErrorKind::Io) if no thread starts.
    pub fn drain(&self) -> Result<()> {
        refuse_to_drain()?;
        if let Some(left) = LEFT.get() {
            left.shared.retry();
        }
        let mut outcome = Ok(());
        let shared = &self.shared;
        loop {
            let mut state = shared.state.lock();
            while state.busy > 0 && !transload_core::mutant!("executor/drain-waits-for-drops") {
                shared.changed.wait(&mut state);
            }
            if state.ready.is_empty() && state.waiting.is_empty() {
                return outcome;
            }
            let fences: Vec<Fence> =
                state.waiting.iter().flat_map(|waiting| waiting.pending.after.iter().cloned()).collect();
            drop(state);
            let mut held = None;
            for fence in fences {
                match held_by_user(&fence) {
                    Some(error) => held = Some(error),
                    None => outcome = outcome.and(fence.wait()),
                }
            }
            let mut state = shared.state.lock();
            state.recheck(|waiting| waiting.pending.after.iter().all(Fence::is_known_complete));
            let ready = state.ready.len();
            drop(state);
            for _ in 0..ready {
                if let Err(error) = shared.start_one().wait() {
                    return outcome.and(Err(error));
                }
            }
            if let (0, Some(held)) = (ready, held) {
                return outcome.and(Err(held));
            }
        }
    }
}

fn held_by_user(fence: &Fence) -> Option<Error> {
    if fence.is_known_complete() { None } else { fence.held_by_user() }
}

impl State {
    /// Moves waiting values to `ready`. Returns how many.
    fn recheck(&mut self, which: impl Fn(&Waiting) -> bool) -> usize {
        let before = self.ready.len();
        self.ready
            .extend(self.waiting.extract_if(.., |waiting| which(waiting)).map(|waiting| waiting.pending));
        self.ready.len() - before
    }

    fn recheck_held(&mut self) -> usize {
        self.recheck(|waiting| waiting.held && !transload_core::mutant!("executor/held-drop-is-retried"))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let State { ready, waiting, .. } = mem::take(self.state.get_mut());
        if transload_core::mutant!("executor/values-outlive-their-queue") {
            return;
        }
        let left = ready.len() + waiting.len();
        if left == 0 {
            return;
        }
        let DropQueue { shared } = LEFT.get_or_init(DropQueue::default);
        let mut state = shared.state.lock();
        state.ready.extend(ready);
        state.ready.extend(waiting.into_iter().map(|waiting| waiting.pending));
        state.left += left;
        drop(state);
        (0..left).for_each(|_| drop(shared.start_one()));
    }
}

impl Shared {
    /// Requests threads for the values for which none started, and for those that the user held up.
    fn retry(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let held = state.recheck_held();
        // The others may have been requested already.
        let others = (state.ready.len() - held).min(THREADS);
        drop(state);
        (0..held + others).for_each(|_| drop(self.start_one()));
    }

    /// Requests a thread for one value. If none starts, the value stays for the next request.
    fn start_one(self: &Arc<Self>) -> Task<()> {
        let shared = Arc::clone(self);
        self.executor.spawn_blocking(&self.key, move || shared.run_one())
    }

    /// Drops the first value, or lets it wait for its work.
    fn run_one(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let Some(mut pending) = state.ready.pop_front() else { return };
        state.busy += 1;
        drop(state);
        // Dropped after the fences, which may keep another owner for this queue.
        let mut done = Done { shared: self, has_dropped: true };
        pending.after.retain(|fence| {
            !fence.is_known_complete() && !transload_core::mutant!("executor/drop-after-fences")
        });
        let Some(fence) = pending.after.first().cloned() else {
            let begun = Instant::now();
            discard(pending.value);
            return report::owner_dropped(begun.elapsed());
        };
        let held = held_by_user(&fence).is_some();
        let mut state = self.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.waiting.push(Waiting { id, pending, held });
        done.has_dropped = false;
        drop(state);
        // After it is in the list, where its waker looks for it.
        let recheck = Arc::new(Recheck { shared: Arc::clone(self), id });
        if !held && fence.wake_at(&Waker::from(Arc::clone(&recheck))) {
            recheck.wake();
        }
    }
}

/// A thread is done with a value when this is dropped.
struct Done<'a> {
    shared: &'a Shared,
    /// Also where a timeline has panicked, and the value went with it.
    has_dropped: bool,
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.busy -= 1;
        state.left -= usize::from(self.has_dropped);
        drop(state);
        self.shared.changed.notify_all();
    }
}

/// Requests a thread for a value when its fence is complete.
struct Recheck {
    shared: Arc<Shared>,
    id: u64,
}

impl Wake for Recheck {
    fn wake(self: Arc<Self>) {
        let found = self.shared.state.lock().recheck(|waiting| waiting.id == self.id);
        if found > 0 && !transload_core::mutant!("executor/drop-after-its-wake") {
            drop(self.shared.start_one());
        }
    }
}

impl fmt::Debug for DropQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DropQueue").field("len", &self.len()).finish_non_exhaustive()
    }
}
