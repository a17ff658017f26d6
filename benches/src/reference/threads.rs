//! Persistent threads of a hand-written reference: each does its part of every run.

use std::{
    hint::spin_loop,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Result;

/// How long an idle thread spins before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(100);

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct ReferenceThreads {
    runs: Arc<Runs>,
    threads: Vec<JoinHandle<()>>,
}

/// The runs, as a thread sees them.
#[derive(Debug)]
pub(crate) struct Runs {
    /// Threads that have not finished this run, or are not prepared.
    busy: AtomicUsize,
    /// Number of runs begun; changed under `asleep`.
    turn: AtomicU64,
    asleep: Mutex<()>,
    wake: Condvar,
    /// Told by the last thread of a run.
    over: Condvar,
    stop: AtomicBool,
    failure: Mutex<Option<anyhow::Error>>,
}

impl ReferenceThreads {
    /// Starts threads that call `body`, which prepares what the thread needs and then calls [`Runs::serve`].
    ///
    /// # Errors
    /// Those of `body`; the system's.
    pub(crate) fn start(
        name: &str,
        count: usize,
        body: impl Fn(&Runs) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Self> {
        let body = Arc::new(body);
        let runs = Arc::new(Runs {
            busy: AtomicUsize::new(count),
            turn: AtomicU64::new(0),
            asleep: Mutex::new(()),
            wake: Condvar::new(),
            over: Condvar::new(),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        });
        let mut started = Self { runs, threads: Vec::with_capacity(count) };
        for _ in 0..count {
            let (runs, body) = (Arc::clone(&started.runs), Arc::clone(&body));
            let run = move || body(&runs).unwrap_or_else(|error| runs.ended(Err(error)));
            started.threads.push(thread::Builder::new().name(name.to_owned()).spawn(run)?);
        }
        started.finish()?;
        Ok(started)
    }

    /// Begins a run.
    pub(crate) fn begin(&self) {
        self.runs.busy.store(self.threads.len(), Ordering::Relaxed);
        self.runs.begin();
    }

    /// Waits for the run's end.
    ///
    /// # Errors
    /// The error of a thread's part.
    pub(crate) fn finish(&self) -> Result<()> {
        let begun = Instant::now();
        while self.runs.busy.load(Ordering::Acquire) != 0 {
            if begun.elapsed() < SPIN_TIME { spin_loop() } else { thread::yield_now() }
        }
        self.outcome()
    }

    /// Like [`finish`](Self::finish), without a processor meanwhile.
    ///
    /// # Errors
    /// As there.
    #[cfg(any(target_os = "linux", windows))]
    pub(crate) fn finish_asleep(&self) -> Result<()> {
        let mut asleep = self.runs.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        while self.runs.busy.load(Ordering::Acquire) != 0 {
            asleep = self.runs.over.wait(asleep).unwrap_or_else(PoisonError::into_inner);
        }
        drop(asleep);
        self.outcome()
    }

    fn outcome(&self) -> Result<()> {
        let failure = self.runs.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), |error| Err(error.context("the reference's threads")))
    }
}

impl Drop for ReferenceThreads {
    fn drop(&mut self) {
        self.runs.stop.store(true, Ordering::Relaxed);
        self.runs.begin();
        for thread in self.threads.drain(..) {
            let _told_by_a_run = thread.join();
        }
    }
}

impl Runs {
    fn begin(&self) {
        let asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.turn.fetch_add(1, Ordering::Release);
        drop(asleep);
        self.wake.notify_all();
    }

    /// Calls `part` once for each run, until the threads end.
    pub(crate) fn serve(&self, part: impl Fn() -> Result<()>) {
        let mut seen = 0;
        self.ended(Ok(()));
        loop {
            seen = self.wait(seen);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.ended(part());
        }
    }

    fn ended(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
        if self.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
            // A thread that saw it busy under the lock waits by now.
            drop(self.asleep.lock().unwrap_or_else(PoisonError::into_inner));
            self.over.notify_all();
        }
    }

    /// Waits for the turn after `seen`.
    fn wait(&self, seen: u64) -> u64 {
        let turn = || Some(self.turn.load(Ordering::Acquire)).filter(|turn| *turn != seen);
        let begun = Instant::now();
        while begun.elapsed() < SPIN_TIME {
            if let Some(turn) = turn() {
                return turn;
            }
            spin_loop();
        }
        let mut asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(turn) = turn() {
                return turn;
            }
            asleep = self.wake.wait(asleep).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
