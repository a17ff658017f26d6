//! The memory available to this process: the system's, within the limits of its container.

#[cfg(any(target_os = "linux", test))]
mod cgroup;
#[cfg(any(target_os = "linux", test))]
mod mounts;
#[cfg(windows)]
mod windows;

use crate::{MemoryInfo, Result};

/// Returns the free and total bytes of main memory for this process, without swapping: of the machine, and of
/// the process's control groups (versions 1 and 2), whichever is less. Page cache counts as free in both.
/// Queries the system at each call, which takes some tens of microseconds.
///
/// Pinned memory counts as used like any other; the limit of locked memory (`RLIMIT_MEMLOCK`) applies to
/// `mlock`, which the CUDA driver does not use.
///
/// # Errors
/// [`Unsupported`](crate::ErrorKind::Unsupported) on systems other than Linux and Windows, or without
/// `/proc`.
pub fn host_memory() -> Result<MemoryInfo> {
    query().ok_or_else(|| {
        let text = "cannot determine the host's free memory; supported are Linux (/proc/meminfo) and Windows";
        crate::Error::new(crate::ErrorKind::Unsupported, text)
    })
}

#[cfg(target_os = "linux")]
fn query() -> Option<MemoryInfo> {
    use std::sync::OnceLock;

    /// Mounts of control groups do not change while a process runs.
    static MOUNTS: OnceLock<Vec<mounts::Mount>> = OnceLock::new();
    let mounts = MOUNTS.get_or_init(|| mounts::of_memory(&text("/proc/self/mountinfo").unwrap_or_default()));
    memory_from(text, mounts)
}

/// A mount point may have a name that is not UTF-8; the other lines are still valid.
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

/// Returns what the files say; `read` reads one by its path.
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
