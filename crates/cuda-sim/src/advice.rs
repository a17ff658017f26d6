//! What a managed allocation was advised, page by page of the host, and where it was last sent.
//!
//! Source: `cuMemAdvise`, `cuMemPrefetchAsync` and `CUmem_range_attribute` in the CUDA driver API: ranges are rounded out to the
//! host's pages; an answer is what all pages of a range agree on; the last prefetch is what was asked for, done or not.

use std::ops::Range;

/// The host's page.
const PAGE: u64 = 4096;

/// A place as the driver keeps it.
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
    /// `CU_DEVICE_INVALID`, a device, or `CU_DEVICE_CPU`.
    pub(crate) fn legacy_id(self) -> i32 {
        match self {
            Self::None => -2,
            Self::Device(ordinal) => ordinal.cast_signed(),
            Self::Host | Self::Node(_) => -1,
        }
    }

    /// `CUmemLocationType`.
    pub(crate) fn kind(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Device(_) => 1,
            Self::Host => 2,
            Self::Node(_) => 3,
        }
    }

    /// The number that goes with [`kind`](Self::kind); where a kind has none it is not defined, and here no valid one.
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Device(number) | Self::Node(number) => number.cast_signed(),
            Self::None | Self::Host => i32::MIN,
        }
    }
}

/// What is kept of one page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) read_mostly: bool,
    pub(crate) preferred: MemLocation,
    pub(crate) last_prefetch: MemLocation,
    pub(crate) accessed_by: Vec<MemLocation>,
}

/// The pages of one allocation; none are kept until something is advised.
#[derive(Debug, Default)]
pub(crate) struct Advice {
    pages: Vec<Page>,
}

impl Advice {
    /// The pages that a range touches, in an allocation of `whole` bytes.
    pub(crate) fn pages_mut(&mut self, whole: usize, range: Range<u64>) -> &mut [Page] {
        self.pages.resize((whole as u64).div_ceil(PAGE) as usize, Page::default());
        let range = indices(&range, self.pages.len());
        &mut self.pages[range]
    }

    /// As [`pages_mut`](Self::pages_mut), to be read: empty where nothing was advised yet.
    pub(crate) fn pages(&self, range: Range<u64>) -> &[Page] {
        &self.pages[indices(&range, self.pages.len())]
    }
}

fn indices(range: &Range<u64>, pages: usize) -> Range<usize> {
    let end = (range.end.div_ceil(PAGE) as usize).min(pages);
    ((range.start / PAGE) as usize).min(end)..end
}

/// The place that all pages agree on.
pub(crate) fn common_location(pages: &[Page], which: impl Fn(&Page) -> MemLocation) -> MemLocation {
    let first = pages.first().map(&which).unwrap_or_default();
    if pages.iter().all(|page| which(page) == first) { first } else { MemLocation::None }
}

/// The places that every page is accessed by.
pub(crate) fn accessors(pages: &[Page]) -> Vec<MemLocation> {
    let mut all = pages.first().map(|page| page.accessed_by.clone()).unwrap_or_default();
    all.retain(|location| pages.iter().all(|page| page.accessed_by.contains(location)));
    all
}
