//! The threads that do the work, and what they choose from: runnable lines by priority, then pieces of large copies.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use parking_lot::{Condvar, Mutex};
use transload_core::{Error, ErrorKind, Operation, Result, StreamPriority};

use crate::{
    copy::{self, Cut},
    line::Line,
    split::{Split, SplitRef},
};

/// What the workers and the queues share.
pub(crate) struct Workers {
    board: Mutex<Board>,
    /// Signalled when there is something to do, or nothing any more.
    changed: Condvar,
    /// Signalled when a helper leaves a split.
    left: Condvar,
    /// Lines that wait for a worker: a helper looks here between two pieces.
    runnable: AtomicUsize,
    /// Jobs in queues or under way. The threads stay until it is 0.
    unfinished: AtomicUsize,
    closing: AtomicBool,
    /// Threads that have not ended.
    alive: Arc<AtomicUsize>,
    threads: usize,
    parallel_from: usize,
}

#[derive(Default)]
struct Board {
    /// By priority, the most urgent first.
    lines: [VecDeque<Arc<Line>>; 3],
    splits: Vec<Shared>,
}

struct Shared {
    split: SplitRef,
    helpers: usize,
    /// Whether pieces may be left.
    open: bool,
}

enum Task {
    Run(Arc<Line>),
    Help(SplitRef),
}

/// Keeps the threads; when the last is dropped they end after the work that is enqueued.
pub(crate) struct Employment {
    workers: Arc<Workers>,
}

impl Drop for Employment {
    fn drop(&mut self) {
        let _board = self.workers.board.lock();
        self.workers.closing.store(true, Ordering::SeqCst);
        self.workers.changed.notify_all();
    }
}

impl Employment {
    /// Starts `threads` workers; `parallel_from` is the size in bytes from which they share an operation.
    pub(crate) fn new(threads: usize, parallel_from: usize) -> Result<Self> {
        let workers = Arc::new(Workers {
            board: Mutex::default(),
            changed: Condvar::new(),
            left: Condvar::new(),
            runnable: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            alive: Arc::default(),
            threads,
            parallel_from,
        });
        // Dropped on an error below, it ends the threads that were started.
        let employment = Self { workers };
        for index in 0..threads {
            let workers = Arc::clone(&employment.workers);
            let alive = Alive::new(&workers.alive);
            thread::Builder::new()
                .name(format!("transload-cpu-{index}"))
                .spawn(move || {
                    workers.work();
                    drop(alive);
                })
                .map_err(|error| {
                    Error::caused_by(ErrorKind::Device, format!("cannot start cpu worker {index}"), error)
                })?;
        }
        Ok(employment)
    }

    pub(crate) fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }
}

/// Counts a thread while it lives.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Workers {
    /// Puts a line up for the next free worker.
    pub(crate) fn push(&self, line: Arc<Line>) {
        let rank = rank(line.priority());
        self.runnable.fetch_add(1, Ordering::Relaxed);
        let mut board = self.board.lock();
        if let Some(lines) = board.lines.get_mut(rank) {
            lines.push_back(line);
        }
        drop(board);
        self.changed.notify_one();
    }

    pub(crate) fn job_begins(&self) {
        self.unfinished.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn job_ended(&self) {
        if self.unfinished.fetch_sub(1, Ordering::SeqCst) == 1 && self.closing.load(Ordering::SeqCst) {
            let _board = self.board.lock();
            self.changed.notify_all();
        }
    }

    /// Does an operation on the calling worker, with the others' help where it is large.
    ///
    /// # Safety
    /// As for [`copy::perform`].
    pub(crate) unsafe fn perform(&self, operation: &Operation<'_>) -> Result<()> {
        copy::announce(operation);
        if self.threads > 1 && copy::bytes(operation) >= self.parallel_from {
            let cut = Cut::new(operation, self.threads);
            if cut.pieces() > 1 {
                // SAFETY: the caller's promise.
                return unsafe { self.share_out(operation, cut) };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { copy::perform(operation) }
    }

    /// # Safety
    /// As for [`copy::perform`].
    unsafe fn share_out(&self, operation: &Operation<'_>, cut: Cut) -> Result<()> {
        let split = Split::new(operation, cut);
        let lead = Lead { workers: self, split: SplitRef::new(&split) };
        self.board.lock().splits.push(Shared { split: lead.split, helpers: 0, open: true });
        for _ in 1..self.threads.min(cut.pieces()) {
            self.changed.notify_one();
        }
        // SAFETY: the caller's promise; the leader stays to the end.
        unsafe { split.take_part(|| false) };
        // Waits for the helpers: from here on nobody knows the split.
        drop(lead);
        split.outcome()
    }

    fn work(&self) {
        while let Some(task) = self.next() {
            match task {
                Task::Run(line) => line.run(),
                Task::Help(split) => {
                    let mut help = Help { workers: self, split, exhausted: false };
                    // SAFETY: `next` counted this worker among the helpers, and `help` takes it off only when dropped.
                    let split = unsafe { split.get() };
                    // SAFETY: the leader was promised that the operation may be performed, and waits for its helpers.
                    help.exhausted = unsafe { split.take_part(|| self.runnable.load(Ordering::Relaxed) > 0) };
                }
            }
        }
    }

    /// Waits for something to do; `None` when there will be nothing any more.
    fn next(&self) -> Option<Task> {
        let mut board = self.board.lock();
        loop {
            if let Some(line) = board.lines.iter_mut().find_map(VecDeque::pop_front) {
                self.runnable.fetch_sub(1, Ordering::Relaxed);
                return Some(Task::Run(line));
            }
            if let Some(shared) = board.splits.iter_mut().find(|shared| shared.open) {
                shared.helpers += 1;
                return Some(Task::Help(shared.split));
            }
            if self.closing.load(Ordering::SeqCst) && self.unfinished.load(Ordering::SeqCst) == 0 {
                return None;
            }
            self.changed.wait(&mut board);
        }
    }
}

fn rank(priority: StreamPriority) -> usize {
    match priority {
        StreamPriority::High => 0,
        StreamPriority::Normal => 1,
        StreamPriority::Low => 2,
    }
}

/// A helper's stay with a split.
struct Help<'a> {
    workers: &'a Workers,
    split: SplitRef,
    exhausted: bool,
}

impl Drop for Help<'_> {
    fn drop(&mut self) {
        let mut board = self.workers.board.lock();
        if let Some(shared) = board.splits.iter_mut().find(|shared| shared.split == self.split) {
            shared.helpers -= 1;
            shared.open &= !self.exhausted;
        }
        // The split may be gone as soon as the lock is.
        drop(board);
        self.workers.left.notify_all();
    }
}

/// The leader's hold on a split: takes it off the board and waits until every helper has left.
struct Lead<'a> {
    workers: &'a Workers,
    split: SplitRef,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut board = self.workers.board.lock();
        while let Some(index) = board.splits.iter().position(|shared| shared.split == self.split) {
            let Some(shared) = board.splits.get_mut(index) else { break };
            shared.open = false;
            if shared.helpers == 0 {
                board.splits.swap_remove(index);
                break;
            }
            self.workers.left.wait(&mut board);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn the_threads_end_when_the_last_employment_is_dropped() {
        let first = Arc::new(Employment::new(3, usize::MAX).unwrap());
        let second = Arc::clone(&first);
        let alive = Arc::clone(&first.workers.alive);
        drop(first);
        assert_eq!(alive.load(Ordering::SeqCst), 3);
        drop(second);
        while alive.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
    }
}
