//! What a simulated device, or the simulated driver as a whole, is like.

use std::{collections::BTreeSet, time::Duration};

use crate::{SimDevice, state};

/// Driver-wide variants for [`install_with`](crate::install_with).
#[derive(Clone, Debug)]
pub struct DriverOptions {
    pub(crate) version: i32,
    pub(crate) missing: BTreeSet<String>,
    pub(crate) init_code: u32,
}

impl Default for DriverOptions {
    fn default() -> Self {
        Self { version: 13_000, missing: BTreeSet::new(), init_code: 0 }
    }
}

impl DriverOptions {
    /// The version that `cuDriverGetVersion` reports (`1000 * major + 10 * minor`); 13000 by default.
    #[must_use]
    pub fn version(mut self, version: i32) -> Self {
        self.version = version;
        self
    }

    /// The driver does not export the function `name`.
    #[must_use]
    pub fn missing(mut self, name: &str) -> Self {
        self.missing.insert(name.to_owned());
        self
    }

    /// `cuInit` fails with `code`, for example 100 where there is no device.
    #[must_use]
    pub fn init_fails_with(mut self, code: u32) -> Self {
        self.init_code = code;
        self
    }
}

/// The properties of a device to come; [`build`](Self::build) adds it to the driver.
#[derive(Clone, Debug)]
#[must_use = "a device exists only once it is built"]
pub struct SimDeviceBuilder {
    pub(crate) name: String,
    pub(crate) capability: (i32, i32),
    pub(crate) total_memory: usize,
    pub(crate) managed: bool,
    pub(crate) concurrent_managed: bool,
    pub(crate) pools: bool,
    pub(crate) priorities: (i32, i32),
    pub(crate) copy_engines: i32,
    pub(crate) multiprocessors: i32,
    pub(crate) pageable_access: bool,
    pub(crate) coherent: bool,
    pub(crate) host_register: bool,
    pub(crate) read_only_register: bool,
    pub(crate) peers: bool,
    pub(crate) corrupts_peers: bool,
    pub(crate) host_gbps: f64,
    pub(crate) peer_gbps: f64,
    pub(crate) latency_ns: u64,
    pub(crate) seed: u64,
    pub(crate) record: bool,
    pub(crate) launch_queue: u64,
    pub(crate) patience: Duration,
}

impl SimDeviceBuilder {
    pub(crate) fn new() -> Self {
        Self {
            name: "Simulated H200".to_owned(),
            capability: (9, 0),
            total_memory: 256 << 20,
            managed: true,
            concurrent_managed: true,
            pools: true,
            priorities: (0, -5),
            copy_engines: 3,
            multiprocessors: 132,
            pageable_access: false,
            coherent: false,
            host_register: true,
            read_only_register: false,
            peers: true,
            corrupts_peers: false,
            host_gbps: 55.0,
            peer_gbps: 370.0,
            latency_ns: 6_000,
            seed: crate::seed(),
            record: false,
            launch_queue: 1_024,
            patience: Duration::from_secs(60),
        }
    }

    /// What the device is called; `Simulated` is put in front where it is not part of the name.
    pub fn name(mut self, name: &str) -> Self {
        self.name = if name.contains("Simulated") { name.to_owned() } else { format!("Simulated {name}") };
        self
    }

    /// The compute capability; 9.0 by default.
    pub fn compute_capability(mut self, major: i32, minor: i32) -> Self {
        self.capability = (major, minor);
        self
    }

    /// A device of compute capability 5.2: managed memory, but not while the device is busy, and no memory pools.
    pub fn pre_pascal(mut self) -> Self {
        self.capability = (5, 2);
        self.name = "Simulated GTX 980".to_owned();
        self.managed = true;
        self.concurrent_managed = false;
        self.pools = false;
        self.multiprocessors = 16;
        self.copy_engines = 2;
        self
    }

    /// Bytes of device memory; 256 MiB by default. The host's memory is used only as it is allocated.
    pub fn total_memory(mut self, bytes: usize) -> Self {
        self.total_memory = bytes;
        self
    }

    /// Whether managed memory can be allocated; on by default.
    pub fn managed_memory(mut self, supported: bool) -> Self {
        self.managed = supported;
        self.concurrent_managed &= supported;
        self
    }

    /// Whether host and device may use managed memory at the same time; on by default.
    pub fn concurrent_managed_access(mut self, supported: bool) -> Self {
        self.concurrent_managed = supported;
        self
    }

    /// Whether there are stream-ordered memory pools; on by default.
    pub fn memory_pools(mut self, supported: bool) -> Self {
        self.pools = supported;
        self
    }

    /// The range of stream priorities; least 0 and greatest -5 by default.
    pub fn stream_priorities(mut self, least: i32, greatest: i32) -> Self {
        self.priorities = (least, greatest);
        self
    }

    /// How many copy engines there are; 3 by default.
    pub fn copy_engines(mut self, count: i32) -> Self {
        self.copy_engines = count;
        self
    }

    /// How many multiprocessors there are; 132 by default.
    pub fn multiprocessors(mut self, count: i32) -> Self {
        self.multiprocessors = count;
        self
    }

    /// Whether kernels may use ordinary host memory; off by default.
    pub fn pageable_access(mut self, supported: bool) -> Self {
        self.pageable_access = supported;
        self
    }

    /// Host and device share page tables and memory, as on a Grace Hopper board: ordinary host memory is accessible, the host
    /// uses managed memory where it lies, atomics work across; off by default.
    pub fn coherent(mut self) -> Self {
        self.coherent = true;
        self.pageable_access = true;
        self
    }

    /// Whether host memory can be registered; on by default.
    pub fn host_register(mut self, supported: bool) -> Self {
        self.host_register = supported;
        self
    }

    /// Whether host memory can be registered to be read only; off by default.
    pub fn read_only_register(mut self, supported: bool) -> Self {
        self.read_only_register = supported;
        self
    }

    /// The device and its neighbours cannot reach each other's memory.
    pub fn no_peers(mut self) -> Self {
        self.peers = false;
        self
    }

    /// Copies between this device and any other change a byte on the way, and report success: what some settings of an
    /// IOMMU do to peers.
    pub fn corrupts_peers(mut self) -> Self {
        self.corrupts_peers = true;
        self
    }

    /// The speed of the link to the host in GB/s (1e9 bytes) of virtual time; 55 by default.
    pub fn host_link(mut self, gigabytes_per_second: f64) -> Self {
        self.host_gbps = gigabytes_per_second;
        self
    }

    /// The speed of the link to a peer in GB/s of virtual time; 370 by default.
    pub fn peer_link(mut self, gigabytes_per_second: f64) -> Self {
        self.peer_gbps = gigabytes_per_second;
        self
    }

    /// The virtual time that every copy takes beside its bytes; 6 µs by default.
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// The seed of the order in which this device runs its work; that of [`seed`](crate::seed) by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Records every access and checks whether conflicting ones are ordered; off by default, it costs time and memory.
    pub fn record_accesses(mut self, on: bool) -> Self {
        self.record = on;
        self
    }

    /// How many operations are in flight on a stream before a call that enqueues another one blocks; at least 1, and 1,024
    /// by default.
    pub fn launch_queue(mut self, operations: u64) -> Self {
        self.launch_queue = operations.max(1);
        self
    }

    /// How long a driver call waits for a host function that another thread runs; 60 s by default. After that the two are
    /// taken to wait for each other: standard error gets a report, [`SimDevice::deadlocks`] has it, and the device is lost
    /// with code 702.
    pub fn patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// Adds the device to the driver, under the next ordinal.
    #[must_use]
    pub fn build(self) -> SimDevice {
        SimDevice::at(state::lock().add_device(self))
    }
}
