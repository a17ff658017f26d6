//! Unified buffers: the same guarantees in both modes and on every kind of device.

mod arrivals;
mod bad_use;
mod content;
mod copies;
mod exclusion;
mod failed_arrivals;
mod forms;
mod hints;
mod lifetime;
mod locks;
mod random;
mod role_changes;
mod roles;
mod threads;

use std::{fmt, sync::Arc};

use transload_core::{Pod, QueueLease};
use transload_cuda_sim::harness;
use transload_memory::{UnifiedBuffer, UnifiedMode};
use transload_streams::CudaStream;

use crate::support::setup::Setup;

/// A device, a buffer mode, and a stream.
pub(crate) struct Fixture {
    pub(crate) stream: CudaStream,
    pub(crate) mode: UnifiedMode,
    name: &'static str,
    /// Dropped last: checks that nothing leaked.
    pub(crate) setup: Setup,
}

impl Fixture {
    fn new(name: &'static str, setup: Setup, mode: UnifiedMode) -> Self {
        let stream = CudaStream::new(&setup.device).unwrap();
        Self { setup, mode, stream, name }
    }

    pub(crate) fn queue(&self) -> QueueLease {
        QueueLease::new(Arc::new(self.stream.clone()))
    }

    pub(crate) fn buffer<T: Pod>(&self, len: usize) -> UnifiedBuffer<T> {
        UnifiedBuffer::new_with_mode(&self.setup.memory, self.queue(), len, self.mode).unwrap()
    }

    pub(crate) fn is_managed(&self) -> bool {
        self.mode == UnifiedMode::Managed
    }

    pub(crate) fn finish(self) {
        let Self { setup, stream, .. } = self;
        drop(stream);
        setup.finish();
    }
}

impl fmt::Display for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} buffers on {}", self.mode, self.name)
    }
}

/// Both modes on the default device, and on the software driver also the devices that support one mode only.
pub(crate) fn fixtures() -> Vec<Fixture> {
    let mut fixtures = vec![Fixture::new("the usual device", Setup::new(), UnifiedMode::Explicit)];
    let usual = Setup::new();
    match UnifiedMode::of(&usual.device).unwrap() {
        UnifiedMode::Managed => fixtures.push(Fixture::new("the usual device", usual, UnifiedMode::Managed)),
        UnifiedMode::Explicit => println!("skipped: the device has no concurrent access to unified memory"),
    }
    if harness::is_real() {
        return fixtures;
    }
    let older = [
        ("a device before Pascal", harness::device_with(|device| device.pre_pascal().record_accesses(true))),
        (
            "a device without managed memory",
            harness::device_with(|device| device.managed_memory(false).record_accesses(true)),
        ),
    ];
    for (name, test) in older {
        let setup = Setup::on(test.unwrap());
        let mode = UnifiedMode::of(&setup.device).unwrap();
        assert_eq!(mode, UnifiedMode::Explicit, "{name} chooses by itself");
        fixtures.push(Fixture::new(name, setup, mode));
    }
    fixtures
}

/// Runs a test with each fixture.
pub(crate) fn for_each_fixture(test: impl Fn(&Fixture)) {
    for fixture in fixtures() {
        println!("{fixture}");
        test(&fixture);
        fixture.finish();
    }
}
