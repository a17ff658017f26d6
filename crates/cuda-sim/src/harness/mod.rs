//! Devices for tests that run on the software driver and on a real one.
//!
//! By default a test gets a new simulated device. With `TRANSLOAD_TEST_DRIVER=real` it gets the machine's device 0 (or its
//! first devices), so that the same assertions verify the software driver against hardware.

mod failing;
mod live;

use std::{
    ops::Deref,
    thread,
    time::{Duration, Instant},
};

pub use failing::fail_each_call;

pub use crate::api::cupti::{limit_migration_records, refuse_migration_counters, silence_migration_counters};

use crate::{SimDevice, SimDeviceBuilder, install, rng::Rng};

/// If set to `real`, [`device`] returns real devices.
pub const VARIABLE: &str = "TRANSLOAD_TEST_DRIVER";

/// How long a check waits: other threads may be about to free memory or to drop wakers.
const LIMIT: Duration = Duration::from_secs(20);

/// A device to test on.
#[derive(Clone, Copy, Debug)]
pub struct TestDevice {
    ordinal: u32,
    sim: Option<SimDevice>,
}

impl TestDevice {
    /// Returns the device ordinal for driver calls.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Returns whether results on it must be labelled simulated.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.sim.is_some()
    }

    /// Returns the simulated device, if it is one.
    #[must_use]
    pub fn sim(&self) -> Option<&SimDevice> {
        self.sim.as_ref()
    }

    /// Asserts that nothing is alive on the device. Waits up to 20 s, since other threads free what was dropped.
    ///
    /// # Panics
    /// If something is alive, with a list and the seed.
    #[track_caller]
    pub fn assert_no_live_objects(&self) {
        self.assert_no_live_objects_within(LIMIT);
    }

    #[track_caller]
    fn assert_no_live_objects_within(&self, limit: Duration) {
        if let Some(sim) = &self.sim {
            wait(limit, || sim.live_objects().is_empty());
            let live = sim.live_objects();
            assert!(
                live.is_empty(),
                "still alive on simulated device {} (seed {}): {live}",
                self.ordinal,
                sim.seed()
            );
        }
    }

    /// Returns a check that runs on drop. Make it the last field of a fixture, so that it is dropped last.
    pub fn end_check(&self) -> EndCheck {
        if !self.is_simulated() {
            live::begin();
        }
        EndCheck { device: *self, limit: LIMIT }
    }

    /// Asserts that the device's race checker found nothing (see `record_accesses`).
    ///
    /// # Panics
    /// If it found a race, with the first one.
    #[track_caller]
    pub fn assert_no_races(&self) {
        if let Some(sim) = &self.sim {
            let races = sim.races();
            let first = races.first().map(ToString::to_string).unwrap_or_default();
            assert!(races.is_empty(), "{} races on simulated device {}: {first}", races.len(), self.ordinal);
        }
    }
}

/// Asserts on drop, unless the thread is panicking, that everything created since was released. On the software driver,
/// checks the device's live objects and its race checker. On a real driver, checks the objects that this process
/// created and destroyed; this needs `--test-threads=1`. If checks overlap on real devices, the last one decides.
#[derive(Debug)]
#[must_use = "the check is made when this is dropped"]
pub struct EndCheck {
    device: TestDevice,
    limit: Duration,
}

impl Deref for EndCheck {
    type Target = TestDevice;

    fn deref(&self) -> &TestDevice {
        &self.device
    }
}

impl EndCheck {
    /// Sets how long the check waits for other threads to release objects; 20 s by default.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }
}

/// Waits until `is_empty` returns true or the limit expires.
fn wait(limit: Duration, is_empty: impl Fn() -> bool) {
    let end = Instant::now() + limit;
    while !is_empty() && Instant::now() < end {
        // Free storage whose last handle was dropped while work was in flight.
        transload_core::Reclaimer::new().sweep();
        thread::yield_now();
    }
}

impl Drop for EndCheck {
    fn drop(&mut self) {
        if self.device.is_simulated() {
            if !thread::panicking() {
                self.device.assert_no_live_objects_within(self.limit);
                self.device.assert_no_races();
            }
            return;
        }
        let alone = std::env::args().any(|argument| argument == "--test-threads=1");
        if let Some(before) = live::end()
            && alone
            && !thread::panicking()
        {
            wait(self.limit, || live::excess_over(&before).is_empty());
            let more = live::excess_over(&before);
            assert!(more.is_empty(), "still alive on the real device: {more:?}");
        }
    }
}

/// A simulated device with an [`EndCheck`]. Declare it first, so that it is dropped after everything created on it.
#[derive(Debug)]
pub struct Checked {
    sim: SimDevice,
    _end: EndCheck,
}

impl Deref for Checked {
    type Target = SimDevice;

    fn deref(&self) -> &SimDevice {
        &self.sim
    }
}

impl SimDeviceBuilder {
    /// Builds the device with an [`EndCheck`], which asserts on drop that nothing is alive on it.
    #[must_use]
    pub fn checked(self) -> Checked {
        let sim = self.build();
        Checked { sim, _end: TestDevice { ordinal: sim.ordinal(), sim: Some(sim) }.end_check() }
    }
}

/// Returns whether tests run on the machine's own driver.
#[must_use]
pub fn is_real() -> bool {
    std::env::var(VARIABLE).is_ok_and(|value| value == "real")
}

/// Returns a device with default properties.
#[must_use]
pub fn device() -> TestDevice {
    if is_real() {
        TestDevice { ordinal: 0, sim: None }
    } else {
        simulated(|builder| builder.record_accesses(true))
    }
}

/// Returns a device with the given properties; on a real driver, the machine's first device, with its own.
#[must_use]
pub fn device_like(properties: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder) -> TestDevice {
    if is_real() { device() } else { simulated(properties) }
}

/// Returns a device with properties that only the software driver can have. On a real driver, prints that the test is
/// skipped and returns `None`.
#[must_use]
pub fn device_with(properties: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder) -> Option<TestDevice> {
    if is_real() {
        println!("skipped: needs the software driver");
        return None;
    }
    Some(simulated(properties))
}

/// Returns `count` devices with default properties: on a real driver, the machine's first ones. If it has fewer, prints
/// that the test is skipped and returns `None`.
#[must_use]
pub fn devices(count: u32) -> Option<Vec<TestDevice>> {
    if !is_real() {
        return Some((0..count).map(|_| simulated(|builder| builder.record_accesses(true))).collect());
    }
    let present = transload_cuda_sys::Driver::get().and_then(|driver| driver.device_count()).unwrap_or(0);
    if present < count {
        println!("skipped: needs {count} devices, this machine has {present}");
        return None;
    }
    Some((0..count).map(|ordinal| TestDevice { ordinal, sim: None }).collect())
}

/// Returns random bytes, determined by the seed.
#[must_use]
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = Rng::new(seed);
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        noise.extend_from_slice(&random.next().to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

/// Returns the factor by which randomised tests are extended: the variable `TRANSLOAD_TEST_ROUNDS`, else 1. Set
/// `TRANSLOAD_SIM_SEED` to vary them.
#[must_use]
pub fn rounds() -> u32 {
    let given = std::env::var("TRANSLOAD_TEST_ROUNDS").ok().and_then(|text| text.trim().parse().ok());
    given.unwrap_or(1).max(1)
}

fn simulated(properties: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder) -> TestDevice {
    let installed = install();
    assert!(installed.is_ok(), "the software driver comes too late: {installed:?}");
    let sim = properties(SimDevice::builder()).build();
    TestDevice { ordinal: sim.ordinal(), sim: Some(sim) }
}
