//! How long to measure, how much memory to use, and whom to tell.

use std::{
    fmt,
    ops::ControlFlow,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use transload_core::TransferPath;

/// Settings of a calibration.
///
/// ```
/// use std::{ops::ControlFlow, time::Duration};
/// use transload_transfer::CalibrationOptions;
///
/// let options = CalibrationOptions::new().budget(Duration::from_secs(10)).progress(|at| {
///     println!("{}, {} bytes: {} of {}", at.path, at.bytes, at.done, at.total);
///     ControlFlow::Continue(()) // `Break` ends the calibration.
/// });
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct CalibrationOptions {
    pub(super) budget: Duration,
    pub(super) largest: u64,
    pub(super) kernel: Duration,
    pub(super) progress: Progress,
    pub(super) clock: Clock,
}

type Progress = Arc<dyn Fn(CalibrationProgress) -> ControlFlow<()> + Send + Sync>;
pub(super) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// How far a calibration is: passed to its callback before each measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CalibrationProgress {
    /// The path that is measured.
    pub path: TransferPath,
    /// The size that is measured, in bytes: of a list, that of all pieces.
    pub bytes: u64,
    /// Measured sizes and lists of all paths so far. Sizes around crossing points, and those by which staging is tuned, are not counted.
    pub done: usize,
    /// Sizes and lists of all paths: at most, since not every device has lists that are worth measuring.
    pub total: usize,
}

impl CalibrationOptions {
    /// 6 seconds for each pair of devices, and copies of up to 256 MiB.
    #[must_use]
    pub fn new() -> Self {
        Self {
            // Within 3 s an H200's lists from pageable memory were measured at two lengths, and went by ways up to 1.6 times as slow as
            // the best.
            budget: Duration::from_secs(6),
            largest: 256 << 20,
            kernel: Duration::from_micros(1500),
            progress: Arc::new(|_| ControlFlow::Continue(())),
            clock: Arc::new(since_start),
        }
    }

    /// Sets the time for each pair of devices. What is not measured by then keeps the costs that it had.
    #[must_use]
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// Sets the largest copy, in bytes. Larger ones are predicted to have the rate of the largest measured. A calibration has two buffers of
    /// this size at a time, and of no more than an eighth of the free memory of each device. Where that
    /// is not known it is an eighth of all memory, or 256 MiB. If half of the memory were enough for larger ones, but less is free, the path has
    /// fewer sizes, and is [unfinished](super::Calibration::unfinished).
    #[must_use]
    pub fn largest(mut self, bytes: u64) -> Self {
        self.largest = bytes;
        self
    }

    /// Sets how long the kernels take beside which lists are measured. A list that needs a kernel of its own waits for those of others, so
    /// set what is usual in your program; of the [budget](Self::budget) of a pair at most a 64th. Default: 1.5 ms, as a large multiplication of
    /// matrices takes on an H200.
    #[must_use]
    pub fn kernel(mut self, time: Duration) -> Self {
        self.kernel = time;
        self
    }

    /// Sets a callback, called before each measurement on the thread that measures. [`ControlFlow::Break`] ends the calibration; what
    /// is finished counts.
    #[must_use]
    pub fn progress(
        mut self,
        progress: impl Fn(CalibrationProgress) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.progress = Arc::new(progress);
        self
    }

    /// Sets the clock for measurements and the budget: the time since any moment. Default: the host's. For tests on simulated devices,
    /// whose copies take no time that would mean anything.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }
}

fn since_start() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

impl Default for CalibrationOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CalibrationOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CalibrationOptions")
            .field("budget", &self.budget)
            .field("largest", &self.largest)
            .field("kernel", &self.kernel)
            .finish_non_exhaustive()
    }
}
