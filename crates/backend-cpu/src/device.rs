//! Returns the host's processor and memory.

use transload_core::{DeviceId, DeviceInfo, Error, ErrorKind, MemoryKind, Result, host_memory};

/// Checks that the device is the host.
pub(crate) fn check(device: DeviceId) -> Result<()> {
    if device.is_cpu() {
        return Ok(());
    }
    let text = format!("the cpu backend knows no device {device}; its only device is cpu");
    Err(Error::new(ErrorKind::UnknownDevice, text))
}

/// The host as a device.
pub(crate) fn info() -> DeviceInfo {
    let mut info = DeviceInfo::new(DeviceId::Cpu, processor().unwrap_or_else(|| "host".to_owned()));
    info.total_memory = host_memory().ok().map(|memory| memory.total);
    info.kinds = vec![MemoryKind::Pageable];
    info
}

#[cfg(target_os = "linux")]
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Windows names it in an environment variable.
#[cfg(not(target_os = "linux"))]
fn processor() -> Option<String> {
    std::env::var("PROCESSOR_IDENTIFIER").ok().filter(|name| cfg!(windows) && !name.is_empty())
}
