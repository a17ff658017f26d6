//! Lists of pairs that count the references to a few buffers only once.

use std::{fmt, mem::ManuallyDrop, ops::Deref, ptr, slice};

use smallvec::SmallVec;

use crate::{Error, ErrorKind, RawBuffer, Result, runs_by_allocation};

/// Pairs of equal parts of a few buffers, which it keeps alive: a slice of pairs, as for
/// [`Operation::CopyBatch`](crate::Operation::CopyBatch). To make and drop a pair of the same two allocations as the one before takes no
/// atomic operation, unlike two slices.
///
/// ```
/// # use transload_core::{PairList, RawBuffer, Result};
/// # fn blocks(cache: &RawBuffer, batch: &RawBuffer) -> Result<PairList> {
/// let mut pairs = PairList::with_capacity(2);
/// // Bytes 1024..1152 and 256..384 of the cache, one after the other.
/// pairs.add((cache, batch), 128, [(1024, 0), (256, 128)])?;
/// assert_eq!(pairs[1].0.len(), 128);
/// # Ok(pairs)
/// # }
/// ```
#[derive(Default)]
pub struct PairList {
    /// Not counted as references: never dropped, and never moved out.
    pairs: SmallVec<[ManuallyDrop<(RawBuffer, RawBuffer)>; 1]>,
    /// The counted ones: views of the allocations of all pairs.
    kept: SmallVec<[RawBuffer; 2]>,
}

impl PairList {
    /// Returns an empty list with room for so many pairs.
    #[must_use]
    pub fn with_capacity(pairs: usize) -> Self {
        Self { pairs: SmallVec::with_capacity(pairs), kept: SmallVec::new() }
    }

    /// Like [`with_capacity`](Self::with_capacity), but the host may lack the memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`].
    pub fn try_with_capacity(pairs: usize) -> Result<Self> {
        let mut list = Self::default();
        let short = |_| {
            let text = format!("the host has no memory for a list of {pairs} pairs; copy fewer at once");
            Error::new(ErrorKind::OutOfMemory, text)
        };
        list.pairs.try_reserve_exact(pairs).map_err(short)?;
        Ok(list)
    }

    /// Adds pairs of parts of a source and a destination: `bytes` bytes from each pair of first bytes on.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if a part exceeds its buffer; the pairs before it are added.
    pub fn add(
        &mut self,
        (src, dst): (&RawBuffer, &RawBuffer),
        bytes: usize,
        starts: impl IntoIterator<Item = (usize, usize)>,
    ) -> Result<()> {
        self.keep(src, dst);
        for (from, to) in starts {
            if !(is_within(src, from, bytes) && is_within(dst, to, bytes)) {
                return Err(out_of_range((src, from), (dst, to), bytes));
            }
            // SAFETY: `kept` has a view of each allocation, and is dropped after the pairs.
            let pair = unsafe { (uncounted(src, from, bytes), uncounted(dst, to, bytes)) };
            self.pairs.push(ManuallyDrop::new(pair));
        }
        Ok(())
    }

    /// Adds these pairs, whose lengths need not be equal.
    pub fn extend_from_slice(&mut self, pairs: &[(RawBuffer, RawBuffer)]) {
        for run in runs_by_allocation(pairs) {
            if let Some((src, dst)) = run.first() {
                self.keep(src, dst);
            }
            // SAFETY: as in `add`; each part is all of its buffer.
            let pair = |(src, dst): &(RawBuffer, RawBuffer)| unsafe {
                ManuallyDrop::new((uncounted(src, 0, src.len()), uncounted(dst, 0, dst.len())))
            };
            self.pairs.extend(run.iter().map(pair));
        }
    }

    /// Keeps the allocations of the pairs that come next, unless they are those of the last one.
    fn keep(&mut self, src: &RawBuffer, dst: &RawBuffer) {
        let is_kept = |(last_src, last_dst): &(RawBuffer, RawBuffer)| {
            last_src.shares_allocation(src) && last_dst.shares_allocation(dst)
        };
        if !self.last().is_some_and(is_kept) && !crate::mutant!("core/pair-list-keeps") {
            self.kept.extend([src.clone(), dst.clone()]);
        }
    }
}

#[inline]
fn is_within(buffer: &RawBuffer, start: usize, bytes: usize) -> bool {
    buffer.len().checked_sub(bytes).is_some_and(|last| start <= last)
}

#[cold]
fn out_of_range((src, from): (&RawBuffer, usize), (dst, to): (&RawBuffer, usize), bytes: usize) -> Error {
    let (which, start, len) = if is_within(src, from, bytes) {
        ("destination", to, dst.len())
    } else {
        ("source", from, src.len())
    };
    let text = format!("{bytes} bytes from byte {start} on are not in the {which} of {len} bytes");
    Error::new(ErrorKind::OutOfRange, text)
}

/// Returns a part of a buffer that does not count as a reference.
///
/// # Safety
/// * The part lies within the buffer. It is not dropped, and not used after the last counted reference to the allocation.
#[inline]
unsafe fn uncounted(buffer: &RawBuffer, start: usize, bytes: usize) -> RawBuffer {
    // SAFETY: the bits of a live reference, which the caller neither drops nor outlives.
    let allocation = unsafe { ptr::read(&raw const buffer.allocation) };
    RawBuffer { allocation, offset: buffer.offset + start, len: bytes }
}

impl Deref for PairList {
    type Target = [(RawBuffer, RawBuffer)];

    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: `ManuallyDrop` has the layout of what it contains.
        unsafe { slice::from_raw_parts(self.pairs.as_ptr().cast(), self.pairs.len()) }
    }
}

impl Clone for PairList {
    fn clone(&self) -> Self {
        // SAFETY: the clone keeps views of all allocations, too.
        let pair = |(src, dst): &(RawBuffer, RawBuffer)| unsafe {
            ManuallyDrop::new((uncounted(src, 0, src.len()), uncounted(dst, 0, dst.len())))
        };
        Self { pairs: self.iter().map(pair).collect(), kept: self.kept.clone() }
    }
}

impl fmt::Debug for PairList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
