//! What a calibration is valid for.

use std::fs;

use serde::{Deserialize, Serialize};
use transload_executor::processors;

use crate::Runtime;

/// What the times depend on, and what tells one machine from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    /// Version of this library.
    library: String,
    /// Processors that this process may use, as it was when the first runtime was made.
    cores: usize,
    /// Most worker threads of the runtime.
    threads: usize,
    /// Most bytes of staging buffers that transfers use for each device.
    ring_limit: u64,
    /// Most bytes of pinned memory, if limited.
    pinned_limit: Option<u64>,
    /// What the kernel says of its GPU driver.
    kernel_driver: Option<String>,
    devices: Vec<DeviceKey>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DeviceKey {
    id: String,
    /// Of the host, the processor's model.
    name: String,
    uuid: Option<String>,
    driver: String,
    simulated: bool,
}

impl Key {
    pub(super) fn of(runtime: &Runtime) -> Self {
        let devices = runtime.devices().into_iter().map(|info| DeviceKey {
            id: info.id.to_string(),
            name: info.name,
            uuid: info.uuid.map(|uuid| format!("{:032x}", u128::from_be_bytes(uuid))),
            driver: info.driver,
            simulated: info.simulated,
        });
        let kernel = fs::read_to_string("/proc/driver/nvidia/version").ok();
        Self {
            library: env!("CARGO_PKG_VERSION").to_owned(),
            cores: processors(),
            threads: runtime.executor().threads(),
            ring_limit: runtime.manager().ring_limit(),
            pinned_limit: runtime.resources().pinned_limit,
            kernel_driver: kernel.and_then(|text| text.lines().next().map(str::to_owned)),
            devices: devices.collect(),
        }
    }

    pub(super) fn is_simulated(&self) -> bool {
        self.devices.iter().any(|device| device.simulated)
    }

    /// Returns the name of the file of this machine. The key in the file is what counts: two may have one name.
    pub(super) fn file_name(&self) -> String {
        // FNV-1a: the same in every version of the standard library.
        let hash = format!("{self:?}").bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        format!("calibration-{hash:016x}.json")
    }

    /// Returns what differs, for people.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let differs = |what: &str, here: &dyn std::fmt::Debug, there: &dyn std::fmt::Debug| {
            Some(format!("it was measured with {what} {there:?}, here it is {here:?}"))
        };
        if self.library != other.library {
            return differs("version", &self.library, &other.library);
        }
        if (self.cores, self.threads) != (other.cores, other.threads) {
            return differs("cores and threads", &(self.cores, self.threads), &(other.cores, other.threads));
        }
        let limits = |key: &Self| (key.ring_limit, key.pinned_limit);
        if limits(self) != limits(other) {
            return differs("limits of staging and pinned memory", &limits(self), &limits(other));
        }
        if self.kernel_driver != other.kernel_driver {
            return differs("the driver", &self.kernel_driver, &other.kernel_driver);
        }
        (self.devices != other.devices).then(|| "it was measured with other devices or drivers".to_owned())
    }
}
