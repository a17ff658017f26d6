//! How much memory the host has, as the system says.

#[cfg(windows)]
mod windows_memory;

use transload_core::MemoryInfo;

/// Available and total bytes of main memory; limits of a container are not in it. `None` where the system does not say.
#[cfg(target_os = "linux")]
pub(crate) fn available() -> Option<MemoryInfo> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Available and total bytes of main memory. `None` where the system does not say.
#[cfg(windows)]
pub(crate) fn available() -> Option<MemoryInfo> {
    windows_memory::memory()
}

#[cfg(any(target_os = "linux", test))]
fn parse(text: &str) -> Option<MemoryInfo> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    Some(MemoryInfo { free: bytes("MemAvailable:")?, total: bytes("MemTotal:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_among_other_lines_and_nothing_is_made_up() {
        let text = "MemTotal:       16 kB\nMemFree:  1 kB\nMemAvailable:    8 kB\n";
        assert_eq!(parse(text), Some(MemoryInfo { free: 8 << 10, total: 16 << 10 }));
        assert_eq!(parse("MemTotal: 16 kB\n"), None);
        assert_eq!(parse("MemTotal: 16 MB\nMemAvailable: x kB\n"), None);
    }
}
