//! `transload devices`: lists the devices, and the reasons why others are absent.

use serde::Serialize;
use serde_json::json;
use transload::{DeviceInfo, Runtime};

use crate::{exit::Failure, invocation::Invocation, output, text};

/// A device and its current memory use.
#[derive(Serialize)]
struct Device {
    #[serde(flatten)]
    info: DeviceInfo,
    free_bytes: Option<u64>,
    /// Why the free memory is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_error: Option<String>,
}

pub(crate) fn run(invocation: &Invocation) -> Result<String, Failure> {
    let runtime = &invocation.runtime;
    let devices: Vec<Device> = runtime.devices().into_iter().map(|info| Device::new(runtime, info)).collect();
    let absent = runtime.absent().iter().map(
        |(family, reason)| json!({ "family": family, "kind": reason.kind(), "reason": reason.to_string() }),
    );
    let result = json!({ "devices": devices, "absent": absent.collect::<Vec<_>>() });
    invocation.render("devices", &result, || human(runtime, &devices))
}

impl Device {
    fn new(runtime: &Runtime, info: DeviceInfo) -> Self {
        let memory = runtime.manager().backend(info.id).and_then(|backend| backend.memory_info(info.id));
        match memory {
            Ok(memory) => Self { info, free_bytes: Some(memory.free), memory_error: None },
            Err(error) => Self { info, free_bytes: None, memory_error: Some(error.to_string()) },
        }
    }
}

fn human(runtime: &Runtime, devices: &[Device]) -> String {
    let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), text::bytes);
    let rows = devices.iter().map(|Device { info, free_bytes, .. }| {
        let driver = if info.driver.is_empty() { "-" } else { &info.driver };
        let kinds: Vec<_> = info.kinds.iter().map(ToString::to_string).collect();
        [
            info.id.to_string(),
            info.name.clone(),
            known(info.total_memory),
            known(*free_bytes),
            kinds.join(" "),
            if info.simulated { format!("{driver}, simulated") } else { driver.to_owned() },
        ]
    });
    let rows: Vec<_> = rows.collect();
    let mut listed = output::table(["DEVICE", "NAME", "MEMORY", "FREE", "KINDS", "DRIVER"], 6, &rows);
    for Device { info, memory_error, .. } in devices {
        if let Some(error) = memory_error {
            listed += &format!("{}: free memory is not known: {error}\n", info.id);
        }
    }
    for Device { info, .. } in devices {
        if let Some(limit) =
            info.largest_allocation.filter(|limit| info.total_memory.is_none_or(|all| *limit < all))
        {
            listed += &format!("{}: at most {} in one allocation\n", info.id, text::bytes(limit));
        }
    }
    for (family, reason) in runtime.absent() {
        listed += &format!("\nno {family}: {reason}\n");
    }
    listed
}
