//! Pages that were never touched: found, and made before something is copied into them.

use std::ops::Range;

/// Size and alignment of a transparent huge page.
const HUGE_PAGE: usize = 2 << 20;

/// The part of a copy's destination whose pages the system has yet to make.
///
/// A copy into such pages is slow: each first touch is a fault in which the system clears a page, two threads that meet in one
/// huge page both clear it, and streaming stores find none of it in a cache. [`populate`](Self::populate) makes them without
/// a fault each, and is for [`spawn_blocking`](crate::Executor::spawn_blocking).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsentPages(Range<usize>);

impl AbsentPages {
    /// A multiple of this is the best size for pieces of a copy into absent pages: two never share a huge page.
    pub const GRAIN: usize = HUGE_PAGE;

    /// Returns the absent pages of a piece, given in bytes from the beginning of the destination at `address`, which has
    /// `bytes` bytes; `None` if the page in their middle is present or the system does not tell. A huge page belongs to the
    /// piece that it begins in. Asks the system once, which takes some 300 ns, and touches no memory.
    #[must_use]
    pub fn of(address: usize, bytes: usize, piece: Range<usize>) -> Option<Self> {
        let end = address.checked_add(bytes)?;
        let from = |at: usize| address.checked_add(at)?.checked_next_multiple_of(HUGE_PAGE);
        let first = if piece.start == 0 { address } else { from(piece.start)? };
        let pages = first..from(piece.end)?.min(end);
        // Allocators write into the first page, and a neighbour may have touched the last one.
        (!pages.is_empty() && is_absent(pages.start.midpoint(pages.end))).then_some(Self(pages))
    }

    /// Has the system make the pages, which blocks for some 100 µs for each 2 MiB. No byte changes. Memory that is not mapped,
    /// or may not be written, is left as it is; so is all memory on systems other than Linux 5.14 and later.
    pub fn populate(self) {
        populate(self.0);
    }
}

#[cfg(target_os = "linux")]
fn populate(pages: Range<usize>) {
    let start = pages.start & !(page() - 1);
    // SAFETY: the call neither changes bytes nor unmaps any, whatever is at the address. Where it is refused, a first touch
    // makes the page.
    unsafe {
        libc::madvise(start as *mut libc::c_void, pages.end - start, libc::MADV_POPULATE_WRITE);
    }
}

#[cfg(target_os = "linux")]
fn page() -> usize {
    // SAFETY: asks for a constant of the system.
    let told = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(told).ok().filter(|page| page.is_power_of_two()).unwrap_or(4096)
}

#[cfg(target_os = "linux")]
fn is_absent(address: usize) -> bool {
    let mut present = 1;
    // SAFETY: the call writes one byte, for the page of the address, which need not be mapped.
    let asked = unsafe { libc::mincore((address & !(page() - 1)) as *mut libc::c_void, 1, &raw mut present) };
    asked == 0 && present & 1 == 0
}

#[cfg(not(target_os = "linux"))]
fn populate(_: Range<usize>) {}

#[cfg(not(target_os = "linux"))]
fn is_absent(_: usize) -> bool {
    false
}
