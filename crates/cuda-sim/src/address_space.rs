//! Virtual addresses for device memory, which the host cannot dereference.

/// First address if the system reserves no range. No host mapping is placed here unless requested by address, on any of
/// our targets.
const FALLBACK_BASE: u64 = 0x00F0_0000_0000_0000;

/// Alignment of device allocations in bytes (CUDA guarantees 256).
pub(crate) const ALIGNMENT: u64 = 512;

/// A device's range of virtual addresses. Addresses increase and are reused only after wrapping around, so that a stale
/// pointer finds no allocation.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    base: u64,
    end: u64,
    cursor: u64,
}

impl AddressSpace {
    /// Reserves a range many times larger than the device's memory.
    pub(crate) fn reserve(total_memory: u64, ordinal: u32) -> Self {
        let bytes =
            total_memory.saturating_mul(16).clamp(1 << 34, 1 << 42).max(total_memory.saturating_mul(2));
        let base = reserve_unreadable(bytes).unwrap_or(FALLBACK_BASE + u64::from(ordinal) * (1 << 43));
        let base = base.next_multiple_of(1 << 21);
        Self { base, end: base + bytes - (1 << 21), cursor: base }
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.base..self.end).contains(&address)
    }

    /// Finds a free range of `bytes`. `next_taken` returns the first allocation that ends after an address, as (start,
    /// end).
    pub(crate) fn take(&mut self, bytes: u64, next_taken: impl Fn(u64) -> Option<(u64, u64)>) -> Option<u64> {
        // Leave a gap after each allocation, so that an overrun hits no allocation.
        let wanted = bytes.next_multiple_of(ALIGNMENT).checked_add(ALIGNMENT)?;
        for start in [self.cursor, self.base] {
            let mut candidate = start;
            while candidate.checked_add(wanted)? <= self.end {
                match next_taken(candidate) {
                    Some((taken_start, taken_end)) if taken_start < candidate + wanted => {
                        candidate = taken_end.next_multiple_of(ALIGNMENT) + ALIGNMENT;
                    }
                    _ => {
                        self.cursor = candidate + wanted;
                        return Some(candidate);
                    }
                }
            }
        }
        None
    }
}

/// If set, the software driver reserves no address space. Some CPU emulators (qemu-user before version 8) track every
/// reserved page, which costs seconds and memory per device.
#[cfg(target_os = "linux")]
const UNRESERVED: &str = "TRANSLOAD_SIM_UNRESERVED";

#[cfg(target_os = "linux")]
fn reserve_unreadable(bytes: u64) -> Option<u64> {
    if std::env::var_os(UNRESERVED).is_some() {
        return None;
    }
    let length = usize::try_from(bytes).ok()?;
    // SAFETY: an anonymous mapping at an address of the system's choice touches nothing that exists.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    (address != libc::MAP_FAILED).then(|| address.addr() as u64)
}

#[cfg(not(target_os = "linux"))]
fn reserve_unreadable(_bytes: u64) -> Option<u64> {
    None
}
