//! Pages that were never touched: found, and made where something is copied into them.

use std::ops::Range;

/// Size and alignment of a transparent huge page. Pieces of a copy into absent pages are best a multiple of it: two threads that
/// meet in one huge page both clear it.
pub const HUGE_PAGE: usize = 2 << 20;

/// Returns whether the page of an address has yet to be made by the system, as where it was never touched; `false` where the
/// system does not tell. Asks the system once, which takes some 300 ns, and touches no memory.
#[must_use]
pub fn is_absent(address: usize) -> bool {
    imp::is_absent(address)
}

/// Walks through a piece of the memory at `address`, which has `bytes` bytes, given in bytes from its beginning: has the system
/// make each huge page that begins in the piece, then calls `each` for what of the piece lies in it.
///
/// A page that is made right before it is written is still in the processor's cache, and one call for many small pages costs
/// less than a fault for each. Blocks in the kernel for some 100 µs for each 2 MiB, so it is for
/// [`spawn_blocking`](crate::Executor::spawn_blocking). Changes no byte by itself. Memory that is not mapped, or may not be
/// written, is left as it is; so is all memory on systems other than Linux 5.14 and later.
pub fn populating(address: usize, bytes: usize, piece: Range<usize>, mut each: impl FnMut(Range<usize>)) {
    let mut at = piece.start;
    while at < piece.end {
        let here = address.saturating_add(at);
        let page = (here | (HUGE_PAGE - 1)).saturating_add(1);
        if at == 0 || here.is_multiple_of(HUGE_PAGE) {
            imp::populate(here..page.min(address.saturating_add(bytes)));
        }
        let end = piece.end.min(page - address);
        each(at..end);
        at = end;
    }
}

#[cfg(target_os = "linux")]
mod imp {
    use std::ops::Range;

    fn page_of(address: usize) -> usize {
        // SAFETY: asks for a constant of the system.
        let told = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let size = usize::try_from(told).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096);
        address & !(size - 1)
    }

    pub(super) fn is_absent(address: usize) -> bool {
        let mut present = 1;
        // SAFETY: the call writes one byte, for the page of the address, which need not be mapped.
        let asked = unsafe { libc::mincore(page_of(address) as *mut libc::c_void, 1, &raw mut present) };
        asked == 0 && present & 1 == 0
    }

    pub(super) fn populate(pages: Range<usize>) {
        let start = page_of(pages.start);
        // SAFETY: the call neither changes bytes nor unmaps any, whatever is at the address. Where it is refused, a first touch
        // makes the page.
        unsafe {
            libc::madvise(start as *mut libc::c_void, pages.end - start, libc::MADV_POPULATE_WRITE);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use std::ops::Range;

    pub(super) fn is_absent(_: usize) -> bool {
        false
    }

    pub(super) fn populate(_: Range<usize>) {}
}
