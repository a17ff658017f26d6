//! The threads that move chunks. They start with the first job, and end when the manager is gone and all jobs are over.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use transload_core::{Error, ErrorKind, Result};

use super::Job;

/// How long a thread that just worked looks for more before it sleeps: about as long as being woken takes (some 250 µs
/// where it was measured), so that at worst the cost is doubled.
const LOOKING: Duration = Duration::from_micros(400);
/// How long a thread tries for the board's lock before it sleeps for it: the lock is held for less than a microsecond, and
/// being woken from a lock takes as long as from anything else.
const TRYING: Duration = Duration::from_micros(20);
/// More threads than this do not make a link faster (measured with 4, 8 and 14 on a PCIe 5 link).
const MOST: usize = 8;

/// A crew that starts with its first job; the methods of a manager share one.
#[derive(Clone, Default)]
pub(crate) struct Hire {
    crew: Arc<OnceLock<Crew>>,
}

impl Hire {
    /// # Errors
    /// As for [`Crew::start`].
    pub(crate) fn crew(&self) -> Result<&Crew> {
        if let Some(crew) = self.crew.get() {
            return Ok(crew);
        }
        let started = Crew::start()?;
        // Where two threads came first, the threads of the loser end at once.
        Ok(self.crew.get_or_init(|| started))
    }

    /// Blocks until no job is posted or worked on.
    pub(crate) fn drain(&self) {
        if let Some(crew) = self.crew.get() {
            crew.drain();
        }
    }
}

/// Handle of the threads.
pub(crate) struct Crew {
    shared: Arc<Shared>,
    workers: usize,
}

/// The standard library's condition variable wakes all sleepers by one system call.
#[derive(Default)]
struct Shared {
    board: Mutex<Board>,
    posted: Condvar,
    quiet: Condvar,
    /// Jobs on the board, for looking without the lock.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Board {
    jobs: VecDeque<Arc<Job>>,
    working: usize,
    /// Threads that must be woken for a job.
    asleep: usize,
    closed: bool,
}

/// How many threads a crew has, unless the system refuses some.
pub(crate) fn usual_workers() -> usize {
    static WORKERS: OnceLock<usize> = OnceLock::new();
    *WORKERS.get_or_init(|| thread::available_parallelism().map_or(2, usize::from).min(MOST))
}

impl Crew {
    /// Starts the threads: one for each processor, at most eight.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] where the system gives none; with fewer than wanted it does.
    fn start() -> Result<Self> {
        let wanted = usual_workers();
        let shared = Arc::new(Shared::default());
        let mut workers = 0;
        for number in 0..wanted {
            let theirs = Arc::clone(&shared);
            let named = thread::Builder::new().name(format!("transload-stage-{number}"));
            match named.spawn(move || run(&theirs)) {
                Ok(_) => workers += 1,
                Err(_) if workers > 0 => break,
                Err(error) => {
                    return Err(Error::caused_by(
                        ErrorKind::Io,
                        "starting threads that stage transfers",
                        error,
                    ));
                }
            }
        }
        Ok(Self { shared, workers })
    }

    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Posts a job. Jobs are begun in the order in which they were posted.
    pub(crate) fn post(&self, job: Arc<Job>) {
        let mut board = self.shared.board_soon();
        board.jobs.push_back(job);
        self.shared.waiting.store(board.jobs.len(), Ordering::Release);
        let someone_sleeps = board.asleep > 0;
        drop(board);
        // Waking all takes as long as copying a chunk, which the poster may be about to do: the first one wakes the others.
        if someone_sleeps {
            self.shared.posted.notify_one();
        }
    }

    fn drain(&self) {
        let mut board = self.shared.board();
        while board.working > 0 || !board.jobs.is_empty() {
            board = self.shared.quiet.wait(board).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.board().closed = true;
        self.shared.posted.notify_all();
    }
}

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`board`](Self::board), without sleeping where others hold it for a moment: all threads that look for work come at
    /// once when there is some.
    fn board_soon(&self) -> MutexGuard<'_, Board> {
        let begun = Instant::now();
        loop {
            match self.board.try_lock() {
                Ok(board) => return board,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if begun.elapsed() < TRYING => std::hint::spin_loop(),
                Err(TryLockError::WouldBlock) => return self.board(),
            }
        }
    }

    /// The oldest job that has chunks left; forgets those that have none.
    fn next(&self, board: &mut Board) -> Option<Arc<Job>> {
        while board.jobs.front().is_some_and(|job| job.is_taken()) {
            board.jobs.pop_front();
        }
        self.waiting.store(board.jobs.len(), Ordering::Release);
        board.jobs.front().cloned()
    }

    fn look_for_a_moment(&self) {
        let begun = Instant::now();
        while self.waiting.load(Ordering::Acquire) == 0 && begun.elapsed() < LOOKING {
            std::hint::spin_loop();
        }
    }
}

fn run(shared: &Shared) {
    let mut board = shared.board();
    let mut was_woken = false;
    loop {
        if let Some(job) = shared.next(&mut board) {
            board.working += 1;
            let others_sleep = std::mem::take(&mut was_woken) && board.asleep > 0;
            drop(board);
            if others_sleep {
                shared.posted.notify_all();
            }
            job.work();
            // The last handle of the job may go here: outside the lock.
            drop(job);
            board = shared.board_soon();
            board.working -= 1;
            if board.working == 0 && board.jobs.is_empty() {
                shared.quiet.notify_all();
            }
            if shared.next(&mut board).is_none() {
                drop(board);
                shared.look_for_a_moment();
                board = shared.board_soon();
            }
        } else if board.closed {
            return;
        } else {
            if board.working == 0 {
                shared.quiet.notify_all();
            }
            board.asleep += 1;
            board = shared.posted.wait(board).unwrap_or_else(PoisonError::into_inner);
            board.asleep -= 1;
            was_woken = true;
        }
    }
}
