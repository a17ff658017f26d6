//! Pace: a device's clock that runs with the host's, at an offset and a rate of its own.

use std::time::{Duration, Instant};

/// How a device's clock follows the host's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    origin: Instant,
    offset_ns: u64,
    /// Nanoseconds of the device in one of the host.
    rate: f64,
}

impl Pace {
    pub(crate) fn new(offset: Duration, drift_ppm: i32) -> Self {
        let offset_ns = u64::try_from(offset.as_nanos()).unwrap_or(u64::MAX);
        Self { origin: Instant::now(), offset_ns, rate: 1.0 + f64::from(drift_ppm) / 1e6 }
    }

    /// Returns the device's time now, in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        let passed = self.origin.elapsed().as_nanos() as f64 * self.rate;
        self.offset_ns.saturating_add(passed as u64)
    }

    /// Returns the host's instant at which the device's time is `at`.
    pub(crate) fn host_instant(&self, at: u64) -> Instant {
        let passed = at.saturating_sub(self.offset_ns) as f64 / self.rate;
        self.origin + Duration::from_nanos(passed as u64)
    }

    /// Blocks until the device's time is `end`.
    pub(crate) fn wait_until(&self, end: u64) {
        /// Waits up to this are spun, since a sleep takes longer.
        const SPUN: Duration = Duration::from_micros(200);
        loop {
            let left = Duration::from_nanos(end.saturating_sub(self.now()));
            match left.checked_sub(SPUN) {
                _ if left.is_zero() => return,
                Some(long) if !long.is_zero() => std::thread::sleep(long),
                _ => std::hint::spin_loop(),
            }
        }
    }
}
