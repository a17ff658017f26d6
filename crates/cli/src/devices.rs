//! `transload devices`: what there is, and what was looked for and is not there.

use serde::Serialize;
use transload::{DeviceInfo, Runtime};

use crate::{exit::Failure, invocation::Invocation, output, text};

#[derive(Serialize)]
struct Listing {
    devices: Vec<Device>,
    absent: Vec<Absent>,
}

#[derive(Serialize)]
struct Device {
    id: String,
    name: String,
    total_bytes: Option<u64>,
    free_bytes: Option<u64>,
    /// Why the free bytes are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_error: Option<String>,
    kinds: Vec<String>,
    driver: String,
    simulated: bool,
}

#[derive(Serialize)]
struct Absent {
    family: &'static str,
    kind: String,
    reason: String,
}

pub(crate) fn run(invocation: &Invocation) -> Result<String, Failure> {
    let runtime = &invocation.runtime;
    let listing = Listing {
        devices: runtime.devices().into_iter().map(|info| Device::look(runtime, info)).collect(),
        absent: runtime.absent().iter().map(|(family, reason)| Absent::new(family, reason)).collect(),
    };
    invocation.render("devices", &listing, || listing.human())
}

impl Device {
    fn look(runtime: &Runtime, info: DeviceInfo) -> Self {
        let memory = runtime.manager().backend(info.id).and_then(|backend| backend.memory_info(info.id));
        Self {
            id: info.id.to_string(),
            total_bytes: info.total_memory,
            free_bytes: memory.as_ref().ok().map(|memory| memory.free),
            memory_error: memory.err().map(|error| error.to_string()),
            name: info.name,
            kinds: info.kinds.iter().map(ToString::to_string).collect(),
            driver: info.driver,
            simulated: info.simulated,
        }
    }
}

impl Absent {
    fn new(family: &'static str, reason: &transload::Error) -> Self {
        Self { family, kind: format!("{:?}", reason.kind()), reason: reason.to_string() }
    }
}

impl Listing {
    fn human(&self) -> String {
        let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), text::bytes);
        let rows: Vec<_> = self
            .devices
            .iter()
            .map(|device| {
                let driver = if device.driver.is_empty() { "-" } else { &device.driver };
                let driver =
                    if device.simulated { format!("{driver}, simulated") } else { driver.to_owned() };
                [
                    device.id.clone(),
                    device.name.clone(),
                    known(device.total_bytes),
                    known(device.free_bytes),
                    device.kinds.join(" "),
                    driver,
                ]
            })
            .collect();
        let mut text = output::table(["DEVICE", "NAME", "MEMORY", "FREE", "KINDS", "DRIVER"], 6, &rows);
        for device in &self.devices {
            if let Some(error) = &device.memory_error {
                text += &format!("{}: free memory is not known: {error}\n", device.id);
            }
        }
        for absent in &self.absent {
            text += &format!("\nno {}: {}\n", absent.family, absent.reason);
        }
        text
    }
}
