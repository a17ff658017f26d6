//! Zeroed, aligned host memory. Allocation returns an error instead of aborting.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
};

#[cfg(target_os = "linux")]
use transload_core::events::report;

/// Alignment of small allocations: a cache line.
const SMALL: usize = 64;
/// Alignment from [`PAGED_FROM`] bytes.
const PAGE: usize = 4096;
const PAGED_FROM: usize = 64 << 10;
/// Size and alignment of a transparent huge page.
#[cfg(target_os = "linux")]
const HUGE: usize = 2 << 20;
/// Bytes from which memory is a separate mapping with advice to use huge pages: page faults limit a copy into fresh
/// memory.
#[cfg(target_os = "linux")]
const HUGE_FROM: usize = 4 << 20;

/// Owned zeroed bytes.
pub(crate) struct Pages {
    address: NonNull<u8>,
    source: Source,
}

enum Source {
    Heap(Layout),
    /// A mapping of this many bytes.
    #[cfg(target_os = "linux")]
    Mapping(usize),
}

// SAFETY: `Pages` owns its bytes and exposes their address only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates `bytes` (at least 1) of zeroed memory; `None` if there is not enough. Aligned to 64 bytes; from 64 KiB
    /// to 4096; on Linux, from 4 MiB to 2 MiB.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_FROM {
            return Self::map(bytes);
        }
        let alignment = if bytes >= PAGED_FROM { PAGE } else { SMALL };
        let layout = Layout::from_size_align(bytes, alignment).ok().filter(|layout| layout.size() > 0)?;
        // SAFETY: the layout's size is not 0.
        let address = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { address, source: Source::Heap(layout) })
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// The allocator would zero memory of this alignment itself, and so touch every page before the advice.
    #[cfg(target_os = "linux")]
    fn map(bytes: usize) -> Option<Self> {
        let len = bytes.checked_next_multiple_of(HUGE)?;
        let padded = len.checked_add(HUGE)?;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that exists.
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
        let before = base.align_offset(HUGE).min(HUGE);
        let after = padded - before - len;
        // SAFETY: `before + len + after` is the size of the new mapping; this unmaps its two ends, both multiples of a
        // page and not used yet. Advice changes no content.
        unsafe {
            let start = base.add(before);
            // A failure of the first two costs address space only.
            if before > 0 {
                libc::munmap(base.cast(), before);
            }
            if after > 0 {
                libc::munmap(start.add(len).cast(), after);
            }
            if libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE) != 0 {
                report::pages_declined("huge pages", len, &std::io::Error::last_os_error());
            }
            Some(Self { address: NonNull::new(start)?, source: Source::Mapping(len) })
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        match self.source {
            // SAFETY: allocated in `new` with this layout, and freed only here.
            Source::Heap(layout) => unsafe { dealloc(self.address.as_ptr(), layout) },
            #[cfg(target_os = "linux")]
            // SAFETY: mapped in `map` with this length, and unmapped only here.
            Source::Mapping(len) => unsafe {
                libc::munmap(self.address.as_ptr().cast(), len);
            },
        }
    }
}
