//! Anonymous mappings with all pages present, optionally of huge pages or on a preferred node.
//!
//! Large mappings are populated by several threads, since the system clears every page, at about 10 GB/s per thread.

use std::{io, ptr::NonNull, thread};

use transload_core::{
    DeviceId, Error, MemoryKind, MemoryShortage, Place, Result, events::report, host_memory,
};

use super::numa;

/// Size and alignment of a transparent huge page.
pub(super) const HUGE: usize = 2 << 20;

/// Returns the page size: 4 KiB, or 64 KiB on some machines.
fn page() -> usize {
    // SAFETY: queries a constant of the system.
    let told = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(told).ok().filter(|page| page.is_power_of_two()).unwrap_or(4096)
}

/// Owned, zeroed pages that child processes do not inherit.
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping owns its bytes and exposes only their address.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Options of a mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct MappingOptions {
    pub(super) huge: bool,
    pub(super) node: Option<u32>,
}

impl Mapping {
    /// Maps at least `bytes` bytes, rounded up to a page. With huge pages it is aligned to 2 MiB; a remainder of less
    /// has ordinary pages.
    ///
    /// # Errors
    /// `OutOfMemory` if the system has too little available. Checked first, since the system would kill a process later
    /// instead.
    pub(super) fn new(bytes: usize, options: MappingOptions) -> Result<Self> {
        let shortage = || {
            let now = host_memory().ok();
            let shortage = MemoryShortage {
                requested: bytes as u64,
                free: now.map(|memory| memory.free),
                total: now.map(|memory| memory.total),
            };
            Error::out_of_memory(Place::new(DeviceId::Cpu, MemoryKind::Pinned), shortage)
        };
        let alignment = if options.huge { HUGE.max(page()) } else { page() };
        let len = bytes.checked_next_multiple_of(page()).ok_or_else(shortage)?;
        if host_memory().is_ok_and(|memory| len as u64 > memory.free) {
            return Err(shortage());
        }
        let mapping = map(len, alignment).ok_or_else(shortage)?;
        // SAFETY: advice and policies do not change the content of our own mapping; a refusal only costs speed.
        unsafe {
            let start = mapping.start.as_ptr();
            // A child's copy of a pinned page would be a different page.
            if libc::madvise(start.cast(), len, libc::MADV_DONTFORK) != 0 {
                report::pages_declined("pages without copies in child processes", len, &last_error());
            }
            if options.huge && libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE) != 0 {
                report::pages_declined("huge pages", len, &last_error());
            }
            if let Some(node) = options.node
                && let Err(error) = numa::prefer(start, len, node)
            {
                report::pages_declined("pages of a NUMA node", len, &error);
            }
        }
        if mapping.populate() { Ok(mapping) } else { Err(shortage()) }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Populates every page. Returns whether memory sufficed.
    fn populate(&self) -> bool {
        /// Bytes per thread.
        const SHARE: usize = 16 << 20;
        /// More get in each other's way: on a virtual machine with 32 processors 2 GiB take 100 ms with 4, 190 with 8, 260 with 16, and 16 GiB
        /// 0.7, 1.7 and 1.4 to 2.1 s (docs/benchmarks/2026-11-29-2xH200-page-population.txt).
        const MOST: usize = 4;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = (self.len / SHARE).clamp(1, MOST.min(cores));
        let share = (self.len / threads).next_multiple_of(HUGE);
        let shares = (0..threads).map(|index| {
            let from = (index * share).min(self.len);
            (from, (self.len - from).min(share))
        });
        thread::scope(|scope| {
            let mut handles = Vec::new();
            let mut all = true;
            for (from, len) in shares.filter(|(_, len)| *len > 0) {
                let touch = move || self.touch(from, len);
                match thread::Builder::new().name("transload-touch".to_owned()).spawn_scoped(scope, touch) {
                    Ok(handle) => handles.push(handle),
                    Err(error) => {
                        report::pages_declined("pages populated by more threads", len, &error);
                        all &= self.touch(from, len);
                    }
                }
            }
            handles.into_iter().fold(all, |all, handle| all & handle.join().unwrap_or(false))
        })
    }

    fn touch(&self, from: usize, len: usize) -> bool {
        // SAFETY: the range lies within the mapping, which is not shared yet.
        let start = unsafe { self.start.add(from) };
        // SAFETY: as above; populating changes no content.
        if unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) } == 0 {
            return true;
        }
        if last_error().raw_os_error() != Some(libc::EINVAL) {
            return false;
        }
        // Kernels before Linux 5.14 lack this advice.
        for at in (0..len).step_by(page()) {
            // SAFETY: as above; fresh pages hold zeros.
            unsafe { start.add(at).write_volatile(0) };
        }
        true
    }
}

fn last_error() -> io::Error {
    io::Error::last_os_error()
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and unmapped only here.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.len);
        }
    }
}

fn map(len: usize, alignment: usize) -> Option<Mapping> {
    let padded = len.checked_add(alignment - page())?;
    // SAFETY: an anonymous mapping at an address that the kernel chooses affects no existing one.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            padded,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return None;
    }
    let base = base.cast::<u8>();
    let before = base.align_offset(alignment).min(padded - len);
    let after = padded - len - before;
    // SAFETY: `before + len + after` is the size of the mapping just created; only its two ends are unmapped, which are
    // not shared yet. A failure costs address space.
    unsafe {
        let start = base.add(before);
        if before > 0 {
            libc::munmap(base.cast(), before);
        }
        if after > 0 {
            libc::munmap(start.add(len).cast(), after);
        }
        Some(Mapping { start: NonNull::new(start)?, len })
    }
}

#[cfg(test)]
#[path = "../../tests/unit/mapping.rs"]
mod tests;
