//! `transload devices`: lists the devices, and the reasons why others are absent.

use serde_json::{Value, json};
use transload::{DeviceInfo, Result, Runtime, backend::MemoryInfo};

use crate::{exit::Failure, invocation::Invocation, output, text};

/// A device and its current memory use.
type Device = (DeviceInfo, Result<MemoryInfo>);

pub(crate) fn run(invocation: &Invocation) -> Result<String, Failure> {
    let runtime = &invocation.runtime;
    let memory = |id| runtime.manager().backend(id)?.memory_info(id);
    let devices: Vec<Device> =
        runtime.devices().into_iter().map(|info| (info.clone(), memory(info.id))).collect();
    invocation.render("devices", &json(runtime, &devices), || human(runtime, &devices))
}

fn json(runtime: &Runtime, devices: &[Device]) -> Value {
    let devices = devices.iter().map(|(info, memory)| {
        let mut device = json!({
            "id": info.id.to_string(),
            "name": info.name,
            "total_bytes": info.total_memory,
            "free_bytes": memory.as_ref().ok().map(|memory| memory.free),
            "kinds": info.kinds.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "driver": info.driver,
            "simulated": info.simulated,
        });
        if let Err(error) = memory {
            device["memory_error"] = error.to_string().into();
        }
        device
    });
    let absent = runtime.absent().iter().map(|(family, reason)| {
        json!({ "family": family, "kind": format!("{:?}", reason.kind()), "reason": reason.to_string() })
    });
    json!({ "devices": devices.collect::<Vec<_>>(), "absent": absent.collect::<Vec<_>>() })
}

fn human(runtime: &Runtime, devices: &[Device]) -> String {
    let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), text::bytes);
    let rows = devices.iter().map(|(info, memory)| {
        let driver = if info.driver.is_empty() { "-" } else { &info.driver };
        let kinds: Vec<_> = info.kinds.iter().map(ToString::to_string).collect();
        [
            info.id.to_string(),
            info.name.clone(),
            known(info.total_memory),
            known(memory.as_ref().ok().map(|memory| memory.free)),
            kinds.join(" "),
            if info.simulated { format!("{driver}, simulated") } else { driver.to_owned() },
        ]
    });
    let rows: Vec<_> = rows.collect();
    let mut text = output::table(["DEVICE", "NAME", "MEMORY", "FREE", "KINDS", "DRIVER"], 6, &rows);
    for (info, memory) in devices {
        if let Err(error) = memory {
            text += &format!("{}: free memory is not known: {error}\n", info.id);
        }
    }
    for (family, reason) in runtime.absent() {
        text += &format!("\nno {family}: {reason}\n");
    }
    text
}
