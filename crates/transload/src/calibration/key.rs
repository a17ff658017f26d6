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

    /// Returns the name of the file of this machine, which a newer driver or library does not change: so what is stale is found and told.
    pub(super) fn file_name(&self) -> String {
        let devices: Vec<_> =
            self.devices.iter().map(|device| (&device.id, &device.name, &device.uuid)).collect();
        let machine = (self.cores, self.threads, self.ring_limit, self.pinned_limit, devices);
        // FNV-1a: the same in every version of the standard library.
        let hash = format!("{machine:?}").bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        format!("calibration-{hash:016x}.json")
    }

    /// Returns why a calibration of another key is not used, for people.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let differs = |what: &str, here: &dyn std::fmt::Debug, there: &dyn std::fmt::Debug| {
            Some(format!("{what} {there:?}, here it is {here:?}"))
        };
        let drivers = |key: &Self| key.devices.iter().map(|device| device.driver.clone()).collect::<Vec<_>>();
        let undriven = |key: &Self| {
            let devices = key.devices.iter().cloned();
            devices.map(|device| DeviceKey { driver: String::new(), ..device }).collect::<Vec<_>>()
        };
        if undriven(self) != undriven(other) {
            return Some("is of another machine: it was measured with other devices".to_owned());
        }
        if self.library != other.library {
            return differs("is stale: it was measured with version", &self.library, &other.library);
        }
        if self.kernel_driver != other.kernel_driver {
            return differs(
                "is stale: it was measured with driver",
                &self.kernel_driver,
                &other.kernel_driver,
            );
        }
        if drivers(self) != drivers(other) {
            return differs("is stale: it was measured with drivers", &drivers(self), &drivers(other));
        }
        if (self.cores, self.threads) != (other.cores, other.threads) {
            let (here, there) = ((self.cores, self.threads), (other.cores, other.threads));
            return differs("is of another machine: it was measured with cores and threads", &here, &there);
        }
        let limits = |key: &Self| (key.ring_limit, key.pinned_limit);
        if limits(self) != limits(other) {
            let what = "was measured with limits of staging and pinned memory";
            return differs(what, &limits(self), &limits(other));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key() -> Key {
        let device = json!({
            "id": "cuda:0", "name": "a GPU", "uuid": "00000000000000000000000000000001", "driver": "13.0", "simulated": false,
        });
        let key = json!({
            "library": "1.0.0", "cores": 8, "threads": 8, "ring_limit": 1, "pinned_limit": null,
            "kernel_driver": "580", "devices": [device],
        });
        serde_json::from_value(key).unwrap()
    }

    #[test]
    fn calibration_before_an_update_has_the_same_file_and_is_stale() {
        let changes: [fn(&mut Key); 3] = [
            |key| key.library = "1.1.0".to_owned(),
            |key| key.kernel_driver = Some("590".to_owned()),
            |key| key.devices[0].driver = "13.1".to_owned(),
        ];
        for change in changes {
            let mut now = key();
            change(&mut now);
            assert_eq!(now.file_name(), key().file_name());
            let difference = now.difference(&key()).unwrap();
            assert!(difference.contains("is stale"), "{difference}");
        }
        assert_eq!(key().difference(&key()), None);
    }

    #[test]
    fn other_machines_and_limits_have_files_of_their_own() {
        let changes: [fn(&mut Key); 6] = [
            |key| key.cores = 2,
            |key| key.threads = 2,
            |key| key.ring_limit = 2,
            |key| key.pinned_limit = Some(2),
            |key| key.devices[0].uuid = None,
            |key| key.devices[0].name = "another GPU".to_owned(),
        ];
        for change in changes {
            let mut other = key();
            change(&mut other);
            assert_ne!(other.file_name(), key().file_name());
            let difference = other.difference(&key()).unwrap();
            assert!(!difference.contains("stale"), "{difference}");
        }
    }
}
