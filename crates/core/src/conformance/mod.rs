//! A test suite for backends, ours or third-party (feature `conformance`).
//!
//! Uses only [`Backend`], [`Queue`](crate::Queue) and [`submit`](crate::submit), like the transfer manager. A
//! test of a backend is a few lines:
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
//! # Requirements
//! * Nothing else uses the two backends meanwhile: the suite compares their resource counts before and after
//!   each check.
//! * A check that finds a broken promise returns a [`Failure`] with the seed; the suite never panics. A panic
//!   of the backend is caught and reported likewise. A backend that never finishes work can still hang a
//!   `wait`; wakers have [`Subject::wake_timeout`].
//! * A backend need not support everything, but must say so: the verdict is then
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
mod foreign;
mod gate;
mod host_points;
mod kinds;
mod lifetime;
mod optional;
mod order;
mod outcome;
mod paths;
mod profiling;
mod program;
mod recording;
mod refusal;
mod rng;
mod rows;
mod threads;
mod typed_buffer;

use std::{fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

pub use outcome::{Failure, Outcome, Verdict};
pub use typed_buffer::typed_buffer;

/// The result of a check.
type CheckResult = Result<Verdict, Failure>;

use crate::{Backend, DeviceId, ResourceCounts};
use context::TestContext;

/// The backend and device under test, and the test's settings.
#[derive(Clone)]
#[non_exhaustive]
pub struct Subject {
    /// The backend under test.
    pub backend: Arc<dyn Backend>,
    /// The device under test.
    pub device: DeviceId,
    /// Allocates pageable host memory ([`DeviceId::Cpu`]); may be the backend under test.
    pub host: Arc<dyn Backend>,
    /// Seed of all content, sizes and random programs.
    pub seed: u64,
    /// Bytes that one check may allocate at once, approximately; 64 MiB by default, and at least 2 MiB. Less than 32 MiB leaves
    /// out sizes that reveal many faults.
    pub budget_bytes: usize,
    /// How long a waker may take to be called; 30 seconds by default.
    pub wake_timeout: Duration,
}

impl Subject {
    /// Creates a subject with the default seed, budget and timeout.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, device: DeviceId, host: Arc<dyn Backend>) -> Self {
        let wake_timeout = Duration::from_secs(30);
        Self { backend, device, host, seed: 1, budget_bytes: 64 << 20, wake_timeout }
    }

    /// Sets the seed.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Returns what both backends keep alive after all work is complete.
    fn resource_counts(&self) -> Result<[ResourceCounts; 2], Failure> {
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

/// A promise and its test.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Name in the output.
    pub name: &'static str,
    /// What a backend promises.
    pub promise: &'static str,
    body: fn(&TestContext<'_>) -> CheckResult,
}

impl Check {
    /// Runs the check. Also checks that nothing of it is alive afterwards.
    ///
    /// # Errors
    /// The broken promise, with the check's name and the seed.
    pub fn run(&self, subject: &Subject) -> CheckResult {
        let run = || {
            let before = subject.resource_counts()?;
            let verdict = (self.body)(&TestContext::new(subject)?)?;
            let after = subject.resource_counts()?;
            check_counts(&before, &after)?;
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

/// All checks, in the order in which they run: simple promises first, so look at the first failure first.
pub const CHECKS: &[Check] = checks! {
    "devices" "the device is listed once, with a name" allocation::devices;
    "kinds" "exactly the listed kinds of memory can be allocated, and have that kind" allocation::kinds;
    "sizes" "allocations of 1 byte and more hold all their bytes and do not overlap" allocation::sizes;
    "zero-bytes" "0 bytes are an invalid argument" allocation::zero_bytes;
    "one-pebibyte" "1 PiB is out of memory, with numbers, or beyond the largest allocation, and has no other effect" allocation::one_pebibyte;
    "unknown-device" "a missing device is an unknown device" allocation::unknown_device;
    "memory-info" "free memory is at most total memory" allocation::memory_info;
    "device-bytes" "the bytes of device memory are those of the device's allocations" allocation::device_bytes;
    "copier" "the copier of a path is a device whose queues can copy it" paths::copier;
    "costs" "costs exist only for supported methods, and grow with the size" paths::costs;
    "copies" "copies write every byte of the destination and no other" content::copies;
    "empty" "operations on 0 bytes complete and change nothing" content::empty;
    "within" "copies work between two ranges of one allocation" content::within;
    "fills" "fills of every width work, or are Unsupported and change nothing" content::fills;
    "pitched" "pitched copies write the rows and leave the gaps" rows::pitched;
    "batches" "every pair of a batch is copied" rows::batches;
    "validation" "invalid operations are refused and change nothing" refusal::validation;
    "unsupported" "unsupported operations are refused and change nothing" refusal::unsupported;
    "prefetch" "prefetched memory keeps its content" optional::prefetch;
    "in-place" "in-place copies, if supported, write every byte" optional::in_place;
    "casts" "casts, if supported, round to nearest even" optional::casts;
    "peers" "peer copies, if supported, write every byte" optional::peers;
    "makers" "memory of the host names who made it, and what another driver pinned is copied" foreign::makers;
    "aliases" "two handles of one memory have one order of uses" foreign::aliases;
    "sharing" "shared and registered buffers have the same bytes" optional::sharing;
    "recordings" "each replay performs the recorded operations in order; recording performs none" recording::recordings;
    "fences" "points are reached in order, once, and stay reached" completion::fences;
    "held-fences" "a fence is not complete before its work is" completion::held_fences;
    "durations" "a measured operation's duration is returned once" completion::durations;
    "stamps" "stamps of a queue do not decrease, and enclose the times of its operations" profiling::stamps;
    "records" "a sink is passed each operation once, with what it does" profiling::records;
    "record-kinds" "a record of an optional operation says what it does" kinds::kinds;
    "sampling" "a sink's counts include operations that are not timed" profiling::sampling;
    "sinks" "a device has one sink, which gets nothing of the time before and after" profiling::sinks;
    "wakers" "a waker is woken once, and not before its point is reached" awaiting::wakers;
    "thousand" "a thousand operations can be awaited together" awaiting::thousand;
    "reader-after-writer" "a reader on another queue sees earlier writes" order::reader_after_writer;
    "writer-after-reader" "a writer waits for earlier readers on other queues" order::writer_after_reader;
    "last-writer" "the last writer of several queues wins" order::last_writer;
    "other-backends" "work waits for other backends' work on its bytes" order::other_backends;
    "host-points" "devices wait for work that ends by the host alone, and such work signals its end" host_points::host_points;
    "views" "a host view waits or returns Busy, and excludes conflicting work" lifetime::views;
    "dropped" "memory dropped in flight is freed when the work is complete" lifetime::dropped;
    "leases" "leases are counted, returned, and may end with work in flight" lifetime::leases;
    "threads" "many threads can submit to shared buffers concurrently" threads::threads;
    "programs" "random programs give the same bytes as a model" program::programs;
};

fn check_counts(before: &[ResourceCounts; 2], after: &[ResourceCounts; 2]) -> Result<(), Failure> {
    let ([backend, host], [then, hosts]) = (after, before);
    ensure!(
        before == after,
        "after draining, the backend has {backend} (before: {then}), the host {host} (before: {hosts})"
    );
    Ok(())
}

/// Runs every check, and calls `progress` after each.
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
