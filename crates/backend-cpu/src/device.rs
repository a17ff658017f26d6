//! What the host says of itself: its processor and its memory.

use transload_core::{DeviceId, DeviceInfo, Error, ErrorKind, MemoryInfo, MemoryKind, Result};

/// Refuses every device but the host.
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
    info.total_memory = memory().ok().map(|memory| memory.total);
    info.kinds = vec![MemoryKind::Pageable];
    info
}

/// Available and total bytes of main memory, as the kernel says. Limits of a container are not in it.
#[cfg(target_os = "linux")]
pub(crate) fn memory() -> Result<MemoryInfo> {
    const FILE: &str = "/proc/meminfo";
    let text = std::fs::read_to_string(FILE)
        .map_err(|error| Error::caused_by(ErrorKind::Io, format!("cannot read {FILE}"), error))?;
    parse(&text).ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, format!("{FILE} has no lines MemTotal and MemAvailable in kB"))
    })
}

/// Available and total bytes of main memory: not known how to ask here.
#[cfg(not(any(target_os = "linux", windows)))]
pub(crate) fn memory() -> Result<MemoryInfo> {
    let text = "the cpu backend can tell free and total memory on Linux and Windows only";
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// Available and total bytes of main memory, as the system says.
#[cfg(windows)]
pub(crate) fn memory() -> Result<MemoryInfo> {
    crate::windows_memory::memory().ok_or_else(|| {
        let error = std::io::Error::last_os_error();
        Error::caused_by(ErrorKind::Io, "the system does not say how much memory it has", error)
    })
}

#[cfg(any(target_os = "linux", test))]
fn parse(meminfo: &str) -> Option<MemoryInfo> {
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    Some(MemoryInfo { free: bytes("MemAvailable")?, total: bytes("MemTotal")? })
}

#[cfg(target_os = "linux")]
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Windows says it to every process, in a variable.
#[cfg(not(target_os = "linux"))]
fn processor() -> Option<String> {
    std::env::var("PROCESSOR_IDENTIFIER").ok().filter(|name| cfg!(windows) && !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_kibibytes_and_damage_is_no_number() {
        let text = "MemTotal:       100 kB\nMemFree:   1 kB\nMemAvailable:     60 kB\n";
        assert_eq!(parse(text), Some(MemoryInfo { free: 60 * 1024, total: 100 * 1024 }));
        assert_eq!(parse("MemTotal: 100 kB\n"), None);
        assert_eq!(parse("MemTotal: x kB\nMemAvailable: 60 kB\n"), None);
        assert_eq!(parse(""), None);
    }
}
