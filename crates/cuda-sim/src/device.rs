//! A simulated device, as a test sees it.

use std::{collections::BTreeSet, ops::Range};

use crate::{
    access::{AccessRecord, Race},
    live_objects::LiveObjects,
    memory::Kind,
    migrations::Migrations,
    options::SimDeviceBuilder,
    state,
};

/// A device of the software driver. Devices never disappear; a copy of this handle costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SimDevice {
    ordinal: u32,
}

/// Where a page of managed memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residency {
    /// Never touched.
    Nowhere,
    /// In the host's memory.
    Host,
    /// In the memory of the device with this ordinal.
    Device(u32),
}

impl SimDevice {
    pub(crate) fn at(ordinal: u32) -> Self {
        Self { ordinal }
    }

    /// The properties of a device to add; it appears with [`SimDeviceBuilder::build`].
    pub fn builder() -> SimDeviceBuilder {
        SimDeviceBuilder::new()
    }

    /// The ordinal to ask the driver for.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The seed of this device's scheduling; print it when a test fails.
    #[must_use]
    pub fn seed(&self) -> u64 {
        state::lock().device(self.ordinal).options.seed
    }

    /// What is alive on the device.
    #[must_use]
    pub fn live_objects(&self) -> LiveObjects {
        state::lock().live_objects(self.ordinal)
    }

    /// How many driver calls were attributed to the device: those that name it, its context, or a handle of it, and
    /// those made while its context was current. Calls that only read or move the thread's stack of contexts are not
    /// counted (a driver cannot fail them), nor are the error names.
    #[must_use]
    pub fn calls(&self) -> u64 {
        state::lock().device(self.ordinal).faults.calls
    }

    /// The `nth` call from now on (1 is the next) that is called `name`, or any counted one (see [`calls`](Self::calls))
    /// for `None`, answers `code` and does nothing. It hits once. Names are as exported, with their version:
    /// `cuMemAlloc_v2`.
    pub fn fail_call(&self, name: Option<&str>, nth: u64, code: u32) {
        state::lock().device_mut(self.ordinal).faults.add(name, nth, code);
    }

    /// A sticky error: every call on the device's context answers `code` until the context is destroyed.
    pub fn poison(&self, code: u32) {
        state::lock().device_mut(self.ordinal).faults.sticky = Some(code);
    }

    /// How many operations are enqueued on the device and have not run.
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

    /// The names of the operations that ran on the device, with the number of the stream each ran on, in the order in
    /// which they finished. Streams are numbered in the order of their creation on this device.
    #[must_use]
    pub fn executed(&self) -> Vec<(u32, &'static str)> {
        state::lock().device(self.ordinal).executed.iter().copied().collect()
    }

    /// The recorded accesses of work on this device, and of the host to memory that belongs to it, oldest first; the
    /// last 65,536 are kept. Empty unless the device was built with `record_accesses(true)`.
    #[must_use]
    pub fn accesses(&self) -> Vec<AccessRecord> {
        state::lock().device(self.ordinal).log.records()
    }

    /// Pairs of conflicting accesses to memory of this device that nothing orders (the first 1,024). Empty unless the
    /// device was built with `record_accesses(true)`.
    #[must_use]
    pub fn races(&self) -> Vec<Race> {
        state::lock().device(self.ordinal).log.races.clone()
    }

    /// Addresses of managed memory that the host touched (as far as accesses are announced) while the device, which does
    /// not support that, had work queued. Real hardware raises a segmentation fault there.
    #[must_use]
    pub fn forbidden_touches(&self) -> Vec<usize> {
        state::lock().device(self.ordinal).forbidden_touches.clone()
    }

    /// Reports of driver calls that waited too long for a host function (see [`SimDeviceBuilder::patience`]).
    #[must_use]
    pub fn deadlocks(&self) -> Vec<String> {
        state::lock().device(self.ordinal).deadlocks.iter().map(|(_, text)| text.clone()).collect()
    }

    /// Where the page of managed memory at `address` is; `None` where the address is not managed memory.
    #[must_use]
    pub fn residency(&self, address: u64) -> Option<Residency> {
        let state = state::lock();
        let allocation = state.memory.find(address)?;
        match &allocation.kind {
            Kind::Managed(managed) => Some(managed.at(address - allocation.base)),
            _ => None,
        }
    }

    /// What happened to the pages that a range of managed memory touches, since it was allocated; `None` where its first
    /// address is not managed memory. The host's touches count as far as they are announced.
    #[must_use]
    pub fn migrations(&self, range: Range<u64>) -> Option<Migrations> {
        let state = state::lock();
        let allocation = state.memory.find(range.start)?;
        let Kind::Managed(managed) = &allocation.kind else { return None };
        let bytes = range.end.saturating_sub(range.start);
        Some(managed.migrations(managed.pages_of(range.start - allocation.base, bytes)))
    }

    /// Which devices this device's context enabled peer access to.
    #[must_use]
    pub fn enabled_peers(&self) -> BTreeSet<u32> {
        let state = state::lock();
        let primary = state.device(self.ordinal).primary.as_ref().map(|primary| primary.context);
        let context = primary.and_then(|context| state.contexts.get(&context));
        context.map(|context| context.peers.clone()).unwrap_or_default()
    }
}
