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
//!   [`Subject::wake_timeout`].
//! * What a backend does not offer is no failure as long as it says so: the verdict is
//!   [`NotApplicable`](Verdict::NotApplicable) with the reason.

macro_rules! fail {
    ($($text:tt)+) => { return Err($crate::conformance::Failure::new(format!($($text)+))) };
}

macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => { if !$condition { fail!($($text)+); } };
}

macro_rules! ensure_eq {
    ($found:expr, $expected:expr, $($what:tt)+) => {
        let (found, expected) = ($found, $expected);
        ensure!(found == expected, "{} is {found:?}, not {expected:?}", format_args!($($what)+));
    };
}

mod allocation;
mod awaiting;
mod completion;
mod content;
mod context;
mod gate;
mod lifetime;
mod optional;
mod order;
mod outcome;
mod paths;
mod program;
mod recording;
mod refusal;
mod rng;
mod rows;
mod threads;

use std::{fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

pub use outcome::{Failure, Outcome, Verdict};

/// What a check found.
type CheckResult = Result<Verdict, Failure>;

use crate::{Backend, DeviceId, ResourceCounts};
use context::TestContext;

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
    pub wake_timeout: Duration,
}

impl Subject {
    /// A device of a backend, with the default seed, budget and timeout.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, device: DeviceId, host: Arc<dyn Backend>) -> Self {
        let wake_timeout = Duration::from_secs(30);
        Self { backend, device, host, seed: 1, budget_bytes: 64 << 20, wake_timeout }
    }

    /// Another seed.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// What is alive once all work is done.
    fn ledgers(&self) -> Result<[ResourceCounts; 2], Failure> {
        self.backend.drain()?;
        self.host.drain()?;
        Ok([self.backend.resource_counts(), self.host.resource_counts()])
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
    body: fn(&TestContext<'_>) -> CheckResult,
}

impl Check {
    /// Runs it. Afterwards nothing of it may be alive: that is part of every check.
    ///
    /// # Errors
    /// The broken promise, with the check's name and the seed.
    pub fn run(&self, subject: &Subject) -> CheckResult {
        let run = || {
            let before = subject.ledgers()?;
            let verdict = (self.body)(&TestContext::new(subject)?)?;
            let after = subject.ledgers()?;
            same_ledgers(&before, &after)?;
            Ok(verdict)
        };
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(run));
        outcome.unwrap_or_else(|panic| Err(Failure::panicked(panic))).map_err(|failure| Failure {
            check: self.name,
            seed: subject.seed,
            ..failure
        })
    }
}

macro_rules! checks {
    ($($name:literal $promise:literal $body:path;)*) => {
        &[$(Check { name: $name, promise: $promise, body: $body }),*]
    };
}

/// Every check, in the order in which they run: simple promises first, so that the first failure is the one to look at.
pub const CHECKS: &[Check] = checks! {
    "devices" "the device is listed once, with a name" allocation::devices;
    "kinds" "exactly the listed kinds of memory are allocated, and are what they say" allocation::kinds;
    "sizes" "allocations from 1 byte on hold all their bytes, apart from each other" allocation::sizes;
    "zero-bytes" "0 bytes are an invalid argument" allocation::zero_bytes;
    "one-pebibyte" "1 PiB is out of memory, with numbers, and harms nothing" allocation::one_pebibyte;
    "unknown-device" "a device that is not there is an unknown device" allocation::unknown_device;
    "memory-info" "free memory is at most all memory" allocation::memory_info;
    "copier" "the copier of a path is a device whose queues can copy it" paths::copier;
    "costs" "costs are given only for what can be done, and grow with the size" paths::costs;
    "copies" "copies put every byte in place and touch no other" content::copies;
    "empty" "operations on no bytes are done and touch nothing" content::empty;
    "within" "copies between two ranges of one allocation" content::within;
    "fills" "fills of every width, or Unsupported and nothing touched" content::fills;
    "pitched" "rows go to rows; the gaps stay" rows::pitched;
    "batches" "every pair of a batch is copied" rows::batches;
    "validation" "what is invalid is refused before anything moves" refusal::validation;
    "unsupported" "what a queue cannot do is Unsupported and touches nothing" refusal::unsupported;
    "prefetch" "prefetched memory keeps its content" optional::prefetch;
    "in-place" "copies in place, where offered, put every byte in place" optional::in_place;
    "peers" "peer copies, where devices reach each other, put every byte in place" optional::peers;
    "sharing" "what is shared or registered has the same bytes" optional::sharing;
    "recordings" "what is recorded is done in order at each replay, and not before" recording::recordings;
    "fences" "points are reached in order, once, and stay reached" completion::fences;
    "held-fences" "a fence is not over before its work is" completion::held_fences;
    "durations" "a measured operation's duration is given once" completion::durations;
    "wakers" "a waker is woken once, and not before its point is reached" awaiting::wakers;
    "thousand" "a thousand operations are awaited together" awaiting::thousand;
    "reader-after-writer" "a reader on another queue sees what was written before" order::reader_after_writer;
    "writer-after-reader" "a writer waits for earlier readers on other queues" order::writer_after_reader;
    "last-writer" "the last writer of several queues wins" order::last_writer;
    "other-backends" "work waits for other backends' work on its bytes" order::other_backends;
    "views" "a host view waits, or answers Busy, and keeps new work out" lifetime::views;
    "dropped" "memory dropped in flight lives until the work is done, and goes then" lifetime::dropped;
    "leases" "leases are counted, returned, and may end with work in flight" lifetime::leases;
    "threads" "many threads submit to shared buffers at once" threads::threads;
    "programs" "random programs leave the bytes that a model has" program::programs;
};

fn same_ledgers(before: &[ResourceCounts; 2], after: &[ResourceCounts; 2]) -> Result<(), Failure> {
    let ([backend, host], [then, hosts]) = (after, before);
    ensure!(
        before == after,
        "drained, the backend has {backend} (before: {then}), the host {host} (before: {hosts})"
    );
    Ok(())
}

/// Runs every check and tells of each as it ends.
pub fn run_all(subject: &Subject, mut progress: impl FnMut(&Check, &CheckResult)) -> Outcome {
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
