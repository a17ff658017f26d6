//! Properties of simulated devices and of the software driver.

use std::{collections::BTreeSet, ptr::NonNull, time::Duration};

use crate::{SimDevice, pace::Pace, state};

/// Driver-wide options for [`install_with`](crate::install_with).
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
    /// Sets the version that `cuDriverGetVersion` reports (`1000 * major + 10 * minor`); 13000 by default.
    #[must_use]
    pub fn version(mut self, version: i32) -> Self {
        self.version = version;
        self
    }

    /// Removes the function `name` from the driver's exports.
    #[must_use]
    pub fn missing(mut self, name: &str) -> Self {
        self.missing.insert(name.to_owned());
        self
    }

    /// Makes `cuInit` fail with `code`, for example 100 (no device).
    #[must_use]
    pub fn init_fails_with(mut self, code: u32) -> Self {
        self.init_code = code;
        self
    }
}

/// Defines the builder. The first list gets setters, the second has its own below.
macro_rules! properties {
    ({ $( $(#[$attribute:meta])* $name:ident($set:ident: $type:ty) = $usual:expr; )* }
     { $( $other:ident: $other_type:ty = $other_usual:expr; )* }) => {
        /// Builder of a simulated device; [`build`](Self::build) adds the device to the driver.
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
        /// Sets the bytes of device memory; 256 MiB by default. Host memory is used only for allocations.
        total_memory(total_memory: usize) = 256 << 20;
        /// Sets whether host and device may access managed memory concurrently; on by default.
        concurrent_managed_access(concurrent_managed: bool) = true;
        /// Sets whether stream-ordered memory pools are supported; on by default.
        memory_pools(pools: bool) = true;
        /// Sets the number of copy engines; 3 by default.
        copy_engines(copy_engines: i32) = 3;
        /// Sets the number of multiprocessors; 132 by default.
        multiprocessors(multiprocessors: i32) = 132;
        /// Sets whether kernels may access pageable host memory; off by default.
        pageable_access(pageable_access: bool) = false;
        /// Sets whether host memory can be registered; on by default.
        host_register(host_register: bool) = true;
        /// Sets whether host memory can be registered read-only; off by default.
        read_only_register(read_only_register: bool) = false;
        /// Sets the speed of the host link in GB/s (1e9 bytes) of virtual time; 55 by default.
        host_link(host_gbps: f64) = 55.0;
        /// Sets the speed in GB/s at which kernels access host memory, if it is not that of the host link.
        kernel_host_link(kernel_host_gbps: Option<f64>) = None;
        /// Sets the speed in GB/s of virtual time of announced host accesses to the device's memory, of all threads together; by default
        /// they take no time.
        host_copies(host_copy_gbps: Option<f64>) = None;
        /// Sets the virtual time in nanoseconds of each piece of a batch of copies, in addition to its bytes; 0 by default.
        batch_piece_ns(batch_piece_ns: u64) = 0;
        /// Sets the speed of peer links in GB/s of virtual time; 370 by default.
        peer_link(peer_gbps: f64) = 370.0;
        /// Sets the seed of the device's scheduling; [`seed`](crate::seed) by default.
        seed(seed: u64) = crate::seed();
        /// Sets whether accesses are recorded and checked for races; off by default, as it costs time and memory.
        record_accesses(record: bool) = false;
        /// Sets the device's UUID; by default it is made of a constant and the ordinal.
        uuid(uuid: Option<[u8; 16]>) = None;
        /// Sets how long a driver call waits for a host function that another thread runs; 60 s by default. Then a
        /// deadlock is assumed: a report goes to standard error and [`SimDevice::deadlocks`], and the device fails with
        /// code 702.
        host_function_timeout(host_function_timeout: Duration) = Duration::from_secs(60);
    }
    {
        name: String = "Simulated H200".to_owned();
        capability: (i32, i32) = (9, 0);
        managed: bool = true;
        priorities: (i32, i32) = (0, -5);
        coherent: bool = false;
        peers: bool = true;
        corrupt_peer_copies: bool = false;
        latency_ns: u64 = 6_000;
        launch_queue: u64 = 1_024;
        pace: Option<Pace> = None;
        external_memory: Option<OpenMemory> = None;
    }
}

/// Returns the address of `bytes` bytes of memory of another API, which a file descriptor names, and closes that; `None` if it cannot.
pub type OpenMemory = fn(fd: i32, bytes: u64) -> Option<NonNull<u8>>;

impl SimDeviceBuilder {
    /// Sets how memory of another API is imported; by default it cannot be.
    ///
    /// # Safety
    /// * The function returns memory that stays for the rest of the process.
    pub unsafe fn external_memory(mut self, open: OpenMemory) -> Self {
        self.external_memory = Some(open);
        self
    }

    /// Sets the device name; it is prefixed with `Simulated` unless it contains that word.
    pub fn name(mut self, name: &str) -> Self {
        self.name = if name.contains("Simulated") { name.to_owned() } else { format!("Simulated {name}") };
        self
    }

    /// Sets the compute capability; 9.0 by default.
    pub fn compute_capability(mut self, major: i32, minor: i32) -> Self {
        self.capability = (major, minor);
        self
    }

    /// Makes a device of compute capability 5.2: managed memory without concurrent access, and no memory pools.
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

    /// Sets whether managed memory is supported; on by default.
    pub fn managed_memory(mut self, supported: bool) -> Self {
        self.managed = supported;
        self.concurrent_managed &= supported;
        self
    }

    /// Sets the range of stream priorities; least 0 and greatest -5 by default.
    pub fn stream_priorities(mut self, least: i32, greatest: i32) -> Self {
        self.priorities = (least, greatest);
        self
    }

    /// Makes host and device share page tables and memory, as on Grace Hopper: kernels access pageable memory, the host
    /// accesses managed memory on the device, and atomics are system-wide. Off by default.
    pub fn coherent(mut self) -> Self {
        self.coherent = true;
        self.pageable_access = true;
        self
    }

    /// Disables peer access between this device and all others.
    pub fn no_peers(mut self) -> Self {
        self.peers = false;
        self
    }

    /// Makes peer copies to and from this device corrupt a byte but report success, as some IOMMU settings do.
    pub fn corrupt_peer_copies(mut self) -> Self {
        self.corrupt_peer_copies = true;
        self
    }

    /// Sets the virtual time that every copy takes in addition to its bytes; 6 µs by default.
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Lets the device's clock run with the host's: it begins at `offset`, gains `drift_ppm` millionths of the time on the host's, and no
    /// work is complete before its virtual end. By default virtual time passes by itself, as work runs.
    pub fn paced(mut self, offset: Duration, drift_ppm: i32) -> Self {
        self.pace = Some(Pace::new(offset, drift_ppm));
        self
    }

    /// Sets how many operations can be pending on a stream before enqueueing blocks; at least 1, by default 1,024.
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
