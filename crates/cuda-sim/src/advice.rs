//! Advice and last prefetch location of managed memory, per host page.
//!
//! Source: `cuMemAdvise`, `cuMemPrefetchAsync` and `CUmem_range_attribute` in the CUDA driver API. Ranges are rounded
//! out to host pages. A query returns the value that all pages of the range share. The last prefetch is the one
//! requested, completed or not.

use std::ops::Range;

/// Size of a host page in bytes.
const PAGE: u64 = 4096;

/// A location of managed memory, as in `CUmemLocation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MemLocation {
    #[default]
    None,
    Device(u32),
    Host,
    /// A NUMA node of the host.
    Node(u32),
}

impl MemLocation {
    /// Returns the location as an `int`: `CU_DEVICE_INVALID`, a device ordinal, or `CU_DEVICE_CPU`.
    pub(crate) fn legacy_id(self) -> i32 {
        match self {
            Self::None => -2,
            Self::Device(ordinal) => ordinal.cast_signed(),
            Self::Host | Self::Node(_) => -1,
        }
    }

    /// Returns the `CUmemLocationType`.
    pub(crate) fn kind(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Device(_) => 1,
            Self::Host => 2,
            Self::Node(_) => 3,
        }
    }

    /// Returns the id that belongs to [`kind`](Self::kind). CUDA leaves it undefined for kinds without an id; here it
    /// is invalid.
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Device(number) | Self::Node(number) => number.cast_signed(),
            Self::None | Self::Host => i32::MIN,
        }
    }
}

/// The advice for one page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) read_mostly: bool,
    pub(crate) preferred: MemLocation,
    pub(crate) last_prefetch: MemLocation,
    pub(crate) accessed_by: Vec<MemLocation>,
}

/// The pages of one allocation; empty until advice is given.
#[derive(Debug, Default)]
pub(crate) struct Advice {
    pages: Vec<Page>,
}

impl Advice {
    /// Returns the pages that a range touches, in an allocation of `whole` bytes.
    pub(crate) fn pages_mut(&mut self, whole: usize, range: Range<u64>) -> &mut [Page] {
        self.pages.resize((whole as u64).div_ceil(PAGE) as usize, Page::default());
        let range = indices(&range, self.pages.len());
        &mut self.pages[range]
    }

    /// Like [`pages_mut`](Self::pages_mut), but shared. Empty if no advice was given yet.
    pub(crate) fn pages(&self, range: Range<u64>) -> &[Page] {
        &self.pages[indices(&range, self.pages.len())]
    }
}

fn indices(range: &Range<u64>, pages: usize) -> Range<usize> {
    let end = (range.end.div_ceil(PAGE) as usize).min(pages);
    ((range.start / PAGE) as usize).min(end)..end
}

/// Returns the location that all pages share, else `None`.
pub(crate) fn common_location(pages: &[Page], which: impl Fn(&Page) -> MemLocation) -> MemLocation {
    let first = pages.first().map(&which).unwrap_or_default();
    if pages.iter().all(|page| which(page) == first) { first } else { MemLocation::None }
}

/// Returns the locations that are set as accessors of every page.
pub(crate) fn accessors(pages: &[Page]) -> Vec<MemLocation> {
    let mut all = pages.first().map(|page| page.accessed_by.clone()).unwrap_or_default();
    all.retain(|location| pages.iter().all(|page| page.accessed_by.contains(location)));
    all
}
