//! How much memory the host has for this process: what the system says, within the limits of its container.

#[cfg(any(target_os = "linux", test))]
mod cgroup;
#[cfg(any(target_os = "linux", test))]
mod mounts;
#[cfg(windows)]
mod windows;

use crate::{MemoryInfo, Result};

/// Bytes of main memory that this process can still have without swapping, and how many it can have in all: of the machine's,
/// and of what the control groups (versions 1 and 2) of the process allow, whichever is less. File pages that the system keeps
/// only as a cache count as free in both. Asks the system anew at each call, which takes some tens of microseconds.
///
/// Memory that a driver pins counts as any other; the limit of locked memory (`RLIMIT_MEMLOCK`) is for `mlock`, which the
/// CUDA driver does not use.
///
/// # Errors
/// [`Unsupported`](crate::ErrorKind::Unsupported) where the system does not tell: on anything but Linux and Windows, or without
/// `/proc`.
pub fn host_memory() -> Result<MemoryInfo> {
    query().ok_or_else(|| {
        let text =
            "this system does not tell how much memory the host has free; Linux (in /proc/meminfo) and Windows do";
        crate::Error::new(crate::ErrorKind::Unsupported, text)
    })
}

#[cfg(target_os = "linux")]
fn query() -> Option<MemoryInfo> {
    use std::sync::OnceLock;

    /// Where control groups are mounted does not change while a process runs.
    static MOUNTS: OnceLock<Vec<mounts::Mount>> = OnceLock::new();
    let mounts = MOUNTS.get_or_init(|| mounts::of_memory(&text("/proc/self/mountinfo").unwrap_or_default()));
    memory_from(text, mounts)
}

/// Anyone may have mounted something under a name that is no text; the other lines hold all the same.
#[cfg(target_os = "linux")]
fn text(path: &str) -> Option<String> {
    std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(windows)]
fn query() -> Option<MemoryInfo> {
    windows::memory()
}

#[cfg(not(any(target_os = "linux", windows)))]
fn query() -> Option<MemoryInfo> {
    None
}

/// What files say, which `read` finds by their paths.
#[cfg(any(target_os = "linux", test))]
fn memory_from(read: impl Fn(&str) -> Option<String>, mounts: &[mounts::Mount]) -> Option<MemoryInfo> {
    let machine = machine_memory(&read("/proc/meminfo")?)?;
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    Some(cgroup::limits(&read, &groups, mounts).fold(machine, |least, limit| MemoryInfo {
        free: least.free.min(limit.free),
        total: least.total.min(limit.total),
    }))
}

#[cfg(any(target_os = "linux", test))]
fn machine_memory(meminfo: &str) -> Option<MemoryInfo> {
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    Some(MemoryInfo { free: bytes("MemAvailable:")?, total: bytes("MemTotal:")? })
}

#[cfg(test)]
#[path = "../../../tests/unit/host_memory.rs"]
mod tests;
