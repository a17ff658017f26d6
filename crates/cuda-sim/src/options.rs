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

/// The properties of a device: those with a method that sets just them, and the others.
macro_rules! properties {
    ({ $( $(#[$attribute:meta])* $name:ident($set:ident: $type:ty) = $usual:expr; )* }
     { $( $other:ident: $other_type:ty = $other_usual:expr; )* }) => {
        /// The properties of a device to come; [`build`](Self::build) adds it to the driver.
        #[derive(Clone, Debug)]
        #[must_use = "a device exists only once it is built"]
        pub struct SimDeviceBuilder {
            $( pub(crate) $set: $type, )*
            $( pub(crate) $other: $other_type, )*
        }

        impl SimDeviceBuilder {
            pub(crate) fn new() -> Self {
                Self { $( $set: $usual, )* $( $other: $other_usual, )* }
            }

            $(
                $(#[$attribute])*
                pub fn $name(mut self, $set: $type) -> Self {
                    self.$set = $set;
                    self
                }
            )*
        }
    };
}

properties! {
    {
        /// Bytes of device memory; 256 MiB by default. The host's memory is used only as it is allocated.
        total_memory(total_memory: usize) = 256 << 20;
        /// Whether host and device may use managed memory at the same time; on by default.
        concurrent_managed_access(concurrent_managed: bool) = true;
        /// Whether there are stream-ordered memory pools; on by default.
        memory_pools(pools: bool) = true;
        /// How many copy engines there are; 3 by default.
        copy_engines(copy_engines: i32) = 3;
        /// How many multiprocessors there are; 132 by default.
        multiprocessors(multiprocessors: i32) = 132;
        /// Whether kernels may use ordinary host memory; off by default.
        pageable_access(pageable_access: bool) = false;
        /// Whether host memory can be registered; on by default.
        host_register(host_register: bool) = true;
        /// Whether host memory can be registered to be read only; off by default.
        read_only_register(read_only_register: bool) = false;
        /// The speed of the link to the host in GB/s (1e9 bytes) of virtual time; 55 by default.
        host_link(host_gbps: f64) = 55.0;
        /// The speed of the link to a peer in GB/s of virtual time; 370 by default.
        peer_link(peer_gbps: f64) = 370.0;
        /// The seed of the order in which this device runs its work; that of [`seed`](crate::seed) by default.
        seed(seed: u64) = crate::seed();
        /// Records every access and checks whether conflicting ones are ordered; off by default, it costs time and memory.
        record_accesses(record: bool) = false;
        /// How long a driver call waits for a host function that another thread runs; 60 s by default. After that the two are
        /// taken to wait for each other: standard error gets a report, [`SimDevice::deadlocks`] has it, and the device is lost
        /// with code 702.
        patience(patience: Duration) = Duration::from_secs(60);
    }
    {
        name: String = "Simulated H200".to_owned();
        capability: (i32, i32) = (9, 0);
        managed: bool = true;
        priorities: (i32, i32) = (0, -5);
        coherent: bool = false;
        peers: bool = true;
        corrupts_peers: bool = false;
        latency_ns: u64 = 6_000;
        launch_queue: u64 = 1_024;
    }
}

impl SimDeviceBuilder {
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

    /// Whether managed memory can be allocated; on by default.
    pub fn managed_memory(mut self, supported: bool) -> Self {
        self.managed = supported;
        self.concurrent_managed &= supported;
        self
    }

    /// The range of stream priorities; least 0 and greatest -5 by default.
    pub fn stream_priorities(mut self, least: i32, greatest: i32) -> Self {
        self.priorities = (least, greatest);
        self
    }

    /// Host and device share page tables and memory, as on a Grace Hopper board: ordinary host memory is accessible, the host
    /// uses managed memory where it lies, atomics work across; off by default.
    pub fn coherent(mut self) -> Self {
        self.coherent = true;
        self.pageable_access = true;
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

    /// The virtual time that every copy takes beside its bytes; 6 µs by default.
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// How many operations are in flight on a stream before a call that enqueues another one blocks; at least 1, and 1,024
    /// by default.
    pub fn launch_queue(mut self, operations: u64) -> Self {
        self.launch_queue = operations.max(1);
        self
    }

    /// Adds the device to the driver, under the next ordinal.
    #[must_use]
    pub fn build(self) -> SimDevice {
        SimDevice::at(state::lock().add_device(self))
    }
}
