//! A simulated device, as tests see it.

use std::{
    collections::BTreeSet,
    ops::Range,
    time::{Duration, Instant},
};

use crate::{
    access::{AccessRecord, Race},
    live_objects::LiveObjects,
    memory::Kind,
    migrations::Migrations,
    options::SimDeviceBuilder,
    state,
};

/// A handle of a device of the software driver. Cheap to copy. Devices are never removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SimDevice {
    ordinal: u32,
}

/// Location of a page of managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residency {
    /// Not populated: never accessed.
    Unpopulated,
    /// In host memory.
    Host,
    /// In the memory of the device with this ordinal.
    Device(u32),
}

impl SimDevice {
    pub(crate) fn at(ordinal: u32) -> Self {
        Self { ordinal }
    }

    /// Returns the default properties of a device. [`SimDeviceBuilder::build`] adds the device.
    pub fn builder() -> SimDeviceBuilder {
        SimDeviceBuilder::new()
    }

    /// Returns the device ordinal for driver calls.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Returns the seed of this device's scheduling. Print it if a test fails.
    #[must_use]
    pub fn seed(&self) -> u64 {
        state::lock().device(self.ordinal).options.seed
    }

    /// Returns counts of the objects and allocations that are alive on the device.
    #[must_use]
    pub fn live_objects(&self) -> LiveObjects {
        state::lock().live_objects(self.ordinal)
    }

    /// Returns the number of driver calls attributed to the device: those that name it, its context or a handle of it,
    /// and those made while its context was current. Not counted are error names and calls that only read or change the
    /// thread's context stack, which a driver cannot fail.
    #[must_use]
    pub fn calls(&self) -> u64 {
        state::lock().device(self.ordinal).faults.calls
    }

    /// Makes a call fail with `code` once, without effect. Selects the `nth` call from now (1 is the next) named
    /// `name`, or the `nth` counted call (see [`calls`](Self::calls)) if `name` is `None`. Names include their version:
    /// `cuMemAlloc_v2`.
    pub fn fail_call(&self, name: Option<&str>, nth: u64, code: u32) {
        state::lock().device_mut(self.ordinal).faults.add(name, nth, code);
    }

    /// Sets a sticky error: every call on the device's context returns `code` until the context is destroyed.
    pub fn poison(&self, code: u32) {
        state::lock().device_mut(self.ordinal).faults.sticky = Some(code);
    }

    /// Returns the virtual time at which the last of the operations that ran ends. What is enqueued later begins no earlier, so the
    /// difference of two calls is at least the duration of what was enqueued and ran between them.
    #[must_use]
    pub fn now(&self) -> Duration {
        let mut state = state::lock();
        let device = state.device(self.ordinal);
        let streams = state.streams.values().filter(|stream| stream.device == self.ordinal);
        let latest = streams.map(|stream| stream.time).max().unwrap_or(0);
        let now = latest.max(device.now).max(device.engines.all_free_at());
        // The host knows it now.
        state.device_mut(self.ordinal).now = now;
        Duration::from_nanos(now)
    }

    /// Returns the number of operations that are enqueued on the device and have not run.
    #[must_use]
    pub fn queued(&self) -> usize {
        let state = state::lock();
        state
            .streams
            .values()
            .filter(|stream| stream.device == self.ordinal)
            .map(|stream| stream.queue.len())
            .sum()
    }

    /// Returns the operations that ran on the device, as stream number and name, in completion order. Streams are
    /// numbered in creation order.
    #[must_use]
    pub fn executed(&self) -> Vec<(u32, &'static str)> {
        state::lock().device(self.ordinal).executed.iter().copied().collect()
    }

    /// Returns the virtual times at which streams reached the last 65,536 events with timing, by stream number, in completion order.
    #[must_use]
    pub fn event_times(&self) -> Vec<(u32, Duration)> {
        let state = state::lock();
        let times = state.device(self.ordinal).event_times.iter();
        times.map(|(stream, time)| (*stream, Duration::from_nanos(*time))).collect()
    }

    /// Returns the host's instant at which the virtual time is `at`; `None` unless the device is
    /// [paced](SimDeviceBuilder::paced).
    #[must_use]
    pub fn host_instant(&self, at: Duration) -> Option<Instant> {
        let pace = state::lock().device(self.ordinal).options.pace?;
        Some(pace.host_instant(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the last 65,536 recorded accesses, oldest first: those of work on this device, and those of the host to
    /// its memory. Empty unless the device was built with `record_accesses(true)`.
    #[must_use]
    pub fn accesses(&self) -> Vec<AccessRecord> {
        state::lock().device(self.ordinal).log.records()
    }

    /// Returns the first 1,024 pairs of conflicting accesses to memory of this device that nothing orders. Empty unless
    /// the device was built with `record_accesses(true)`.
    #[must_use]
    pub fn races(&self) -> Vec<Race> {
        state::lock().device(self.ordinal).log.races.clone()
    }

    /// Returns addresses of managed memory that the host accessed (if announced) while this device had work queued and
    /// does not support concurrent managed access. On real hardware, such an access is a segmentation fault.
    #[must_use]
    pub fn forbidden_accesses(&self) -> Vec<usize> {
        state::lock().device(self.ordinal).forbidden_accesses.clone()
    }

    /// Returns a report for each driver call that waited too long for a host function (see
    /// [`SimDeviceBuilder::host_function_timeout`]).
    #[must_use]
    pub fn deadlocks(&self) -> Vec<String> {
        state::lock().device(self.ordinal).deadlocks.iter().map(|(_, text)| text.clone()).collect()
    }

    /// Returns the location of the page of managed memory at `address`; `None` if it is not managed memory.
    #[must_use]
    pub fn residency(&self, address: u64) -> Option<Residency> {
        let state = state::lock();
        let allocation = state.memory.find(address)?;
        match &allocation.kind {
            Kind::Managed(managed) => Some(managed.at(address - allocation.base)),
            _ => None,
        }
    }

    /// Returns the migrations of the pages that a range of managed memory touches, since its allocation; `None` if the
    /// range does not start in managed memory. Host accesses count only if announced.
    #[must_use]
    pub fn migrations(&self, range: Range<u64>) -> Option<Migrations> {
        let state = state::lock();
        let allocation = state.memory.find(range.start)?;
        let Kind::Managed(managed) = &allocation.kind else { return None };
        let bytes = range.end.saturating_sub(range.start);
        Some(managed.migrations(managed.pages_of(range.start - allocation.base, bytes)))
    }

    /// Returns the devices to which this device's context enabled peer access.
    #[must_use]
    pub fn enabled_peers(&self) -> BTreeSet<u32> {
        let state = state::lock();
        let primary = state.device(self.ordinal).primary.as_ref().map(|primary| primary.context);
        let context = primary.and_then(|context| state.contexts.get(&context));
        context.map(|context| context.peers.clone()).unwrap_or_default()
    }
}
