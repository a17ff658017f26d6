//! The size of an ordinary page.

/// 4 KiB, or 64 KiB on some machines.
#[cfg(unix)]
pub(super) fn page() -> usize {
    // SAFETY: asks for a constant of the system.
    let told = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(told).ok().filter(|page| page.is_power_of_two()).unwrap_or(4096)
}

/// 4 KiB.
#[cfg(not(unix))]
pub(super) fn page() -> usize {
    4096
}
