//! One suite of promises that every backend is held to, ours or a third party's (feature `conformance`).
//!
//! Everything goes through [`Backend`], [`Queue`](crate::Queue) and [`submit`](crate::submit): what the suite sees is what
//! the transfer manager sees. A test of a backend is a few lines:
//!
//! ```
//! use std::sync::Arc;
//! use transload_core::{Backend, DeviceId, conformance::{self, Subject}};
//!
//! /// `backend` is the one under test; `host` gives pageable memory, for example `transload_backend_cpu::CpuBackend`.
//! fn my_backend_keeps_its_promises(backend: Arc<dyn Backend>, host: Arc<dyn Backend>) {
//!     for device in backend.devices() {
//!         let subject = Subject::new(Arc::clone(&backend), device.id, Arc::clone(&host)).with_seed(7);
//!         let outcome = conformance::run_all(&subject, |check, result| println!("{}: {result:?}", check.name));
//!         assert!(outcome.is_ok(), "{outcome}");
//!     }
//! }
//! ```
//!
//! # What it asks for
//! * Nobody else uses the two backends meanwhile: the suite compares their ledgers before and after each check.
//! * A check that meets a broken promise answers a [`Failure`] with the seed; nothing in here panics. A panic of the
//!   backend is caught and reported likewise. A backend that never finishes work can still hang a `wait`; wakers are given
//!   [`Subject::patience`].
//! * What a backend does not offer is no failure as long as it says so: the verdict is
//!   [`NotApplicable`](Verdict::NotApplicable) with the reason.

macro_rules! fail {
    ($($text:tt)+) => { return Err($crate::conformance::Failure::new(format!($($text)+))) };
}

macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => { if !$condition { fail!($($text)+); } };
}

mod allocation;
mod awaiting;
mod completion;
mod content;
mod gate;
mod lab;
mod lifetime;
mod noise;
mod optional;
mod order;
mod outcome;
mod paths;
mod program;
mod recording;
mod refusal;
mod rows;
mod threads;

use std::{fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

pub use outcome::{Failure, Outcome, Verdict};

use crate::{Backend, DeviceId, Ledger};

/// What is tested, and how.
#[derive(Clone)]
#[non_exhaustive]
pub struct Subject {
    /// The backend under test.
    pub backend: Arc<dyn Backend>,
    /// The device of it.
    pub device: DeviceId,
    /// Gives pageable memory of the host ([`DeviceId::Cpu`]); may be the backend under test.
    pub host: Arc<dyn Backend>,
    /// Of all content, sizes and random programs.
    pub seed: u64,
    /// Bytes that one check may hold at once, about; 64 MiB where nothing else is said. Less than 32 MiB leaves out
    /// sizes at which much goes wrong.
    pub budget_bytes: usize,
    /// How long a waker may take to be called; 30 seconds where nothing else is said.
    pub patience: Duration,
}

impl Subject {
    /// A device of a backend, with the default seed, budget and patience.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, device: DeviceId, host: Arc<dyn Backend>) -> Self {
        let patience = Duration::from_secs(30);
        Self { backend, device, host, seed: 1, budget_bytes: 64 << 20, patience }
    }

    /// Another seed.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Another budget.
    #[must_use]
    pub fn with_budget(mut self, bytes: usize) -> Self {
        self.budget_bytes = bytes;
        self
    }

    /// Another patience.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// What is alive once all work is done.
    fn ledgers(&self) -> Result<[Ledger; 2], Failure> {
        self.backend.drain()?;
        self.host.drain()?;
        Ok([self.backend.ledger(), self.host.ledger()])
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("backend", &self.backend.name())
            .field("device", &self.device)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// A promise and how it is tested.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Names it in output.
    pub name: &'static str,
    /// What a backend promises.
    pub promise: &'static str,
    body: fn(&Subject) -> Result<Verdict, Failure>,
}

impl Check {
    const fn new(
        name: &'static str,
        promise: &'static str,
        body: fn(&Subject) -> Result<Verdict, Failure>,
    ) -> Self {
        Self { name, promise, body }
    }

    /// Runs it. Afterwards nothing of it may be alive: that is part of every check.
    ///
    /// # Errors
    /// The broken promise, with the check's name and the seed.
    pub fn run(&self, subject: &Subject) -> Result<Verdict, Failure> {
        let run = || {
            let before = subject.ledgers()?;
            let verdict = (self.body)(subject)?;
            let after = subject.ledgers()?;
            ensure!(
                before == after,
                "drained after the check, the backend has {} (before: {}), the host {} (before: {})",
                after[0],
                before[0],
                after[1],
                before[1]
            );
            Ok(verdict)
        };
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(run));
        outcome.unwrap_or_else(|panic| Err(Failure::panicked(&*panic))).map_err(|failure| Failure {
            check: self.name,
            seed: subject.seed,
            ..failure
        })
    }
}

/// Every check, in the order in which they run: simple promises first, so that the first failure is the one to look at.
pub const CHECKS: &[Check] = &[
    Check::new("devices", "the device is listed once, with a name", allocation::devices),
    Check::new(
        "kinds",
        "exactly the listed kinds of memory are allocated, and are what they say",
        allocation::kinds,
    ),
    Check::new(
        "sizes",
        "allocations from 1 byte on hold all their bytes, apart from each other",
        allocation::sizes,
    ),
    Check::new("zero-bytes", "0 bytes are an invalid argument", allocation::zero_bytes),
    Check::new(
        "one-pebibyte",
        "1 PiB is out of memory, with numbers, and harms nothing",
        allocation::one_pebibyte,
    ),
    Check::new(
        "unknown-device",
        "a device that is not there is an unknown device",
        allocation::unknown_device,
    ),
    Check::new("memory-info", "free memory is at most all memory", allocation::memory_info),
    Check::new("copier", "the copier of a path is a device whose queues can copy it", paths::copier),
    Check::new("costs", "costs are given only for what can be done, and grow with the size", paths::costs),
    Check::new("copies", "copies put every byte in place and touch no other", content::copies),
    Check::new("empty", "operations on no bytes are done and touch nothing", content::empty),
    Check::new("within", "copies between two ranges of one allocation", content::within),
    Check::new("fills", "fills of every width, or Unsupported and nothing touched", content::fills),
    Check::new("pitched", "rows go to rows; the gaps stay", rows::pitched),
    Check::new("batches", "every pair of a batch is copied", rows::batches),
    Check::new("validation", "what is invalid is refused before anything moves", refusal::validation),
    Check::new(
        "unsupported",
        "what a queue cannot do is Unsupported and touches nothing",
        refusal::unsupported,
    ),
    Check::new("prefetch", "prefetched memory keeps its content", optional::prefetch),
    Check::new("in-place", "copies in place, where offered, put every byte in place", optional::in_place),
    Check::new(
        "peers",
        "peer copies, where devices reach each other, put every byte in place",
        optional::peers,
    ),
    Check::new("sharing", "what is shared or registered has the same bytes", optional::sharing),
    Check::new(
        "recordings",
        "what is recorded is done in order at each replay, and not before",
        recording::recordings,
    ),
    Check::new("fences", "points are reached in order, once, and stay reached", completion::fences),
    Check::new("held-fences", "a fence is not over before its work is", completion::held_fences),
    Check::new("durations", "a measured operation's duration is given once", completion::durations),
    Check::new("wakers", "a waker is woken once, and not before its point is reached", awaiting::wakers),
    Check::new("thousand", "a thousand operations are awaited together", awaiting::thousand),
    Check::new(
        "reader-after-writer",
        "a reader on another queue sees what was written before",
        order::reader_after_writer,
    ),
    Check::new(
        "writer-after-reader",
        "a writer waits for earlier readers on other queues",
        order::writer_after_reader,
    ),
    Check::new("last-writer", "the last writer of several queues wins", order::last_writer),
    Check::new("other-backends", "work waits for other backends' work on its bytes", order::other_backends),
    Check::new("views", "a host view waits, or answers Busy, and keeps new work out", lifetime::views),
    Check::new(
        "dropped",
        "memory dropped in flight lives until the work is done, and goes then",
        lifetime::dropped,
    ),
    Check::new("leases", "leases are counted, returned, and may end with work in flight", lifetime::leases),
    Check::new("threads", "many threads submit to shared buffers at once", threads::threads),
    Check::new("programs", "random programs leave the bytes that a model has", program::programs),
];

/// Runs every check and tells of each as it ends.
pub fn run_all(subject: &Subject, mut progress: impl FnMut(&Check, &Result<Verdict, Failure>)) -> Outcome {
    let results = CHECKS.iter().map(|check| {
        let result = check.run(subject);
        progress(check, &result);
        (check.name, result)
    });
    Outcome { results: results.collect() }
}

/// Runs every check.
pub fn backend(subject: &Subject) -> Outcome {
    run_all(subject, |_, _| {})
}
