//! Owned, reference-counted bytes in one kind of memory on one device; a slice is a cheap view.

use std::{
    fmt,
    mem::ManuallyDrop,
    ops::{Bound, Range, RangeBounds},
    ptr::NonNull,
    sync::{Arc, Weak},
};

use crate::{
    Access, BufferId, DeviceId, Error, ErrorKind, Fence, HostView, HostViewMut, MemoryKind, Place, Reclaimer,
    Recycler, Result, SpareBuffer, Storage, buffer::use_epoch::UseEpoch, hazard::Hazards,
};

/// Bytes somewhere. Clones and slices share the allocation; it is given back when the last of them is gone *and* no
/// operation in flight touches it. Usable from any thread.
#[derive(Clone)]
pub struct RawBuffer {
    allocation: ManuallyDrop<Arc<Allocation>>,
    offset: usize,
    len: usize,
}

/// In this order, and from the beginning of a line of the processor's cache on, what a copy looks at fills three of them: a
/// driver call leaves little of them in the nearest cache, so each counts. The storage's answers are kept, as they never
/// change: the storage lies elsewhere.
#[repr(C, align(64))]
pub(crate) struct Allocation {
    id: BufferId,
    host_address: Option<NonNull<u8>>,
    /// 0 where it has none.
    device_address: u64,
    has_device_address: bool,
    writable: bool,
    place: Place,
    hazards: Hazards,
    /// Takes the allocation when its last handle is dropped, for the next buffer.
    recycler: Option<Arc<dyn Recycler>>,
    len: usize,
    /// Empty only while the block is being dropped.
    storage: Option<Box<dyn Storage>>,
    reclaimer: Arc<Reclaimer>,
    use_epoch: UseEpoch,
}

// SAFETY: the addresses are only copies of what the storage, which is Send, answers.
unsafe impl Send for Allocation {}
// SAFETY: as above; access to the bytes is ordered by `hazards`.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(mut storage) = self.storage.take() else { return };
        let until = self.hazards.outstanding();
        if until.is_empty() || storage.adopt_fences(&until) {
            drop(storage);
        } else {
            self.reclaimer.park(until, storage);
        }
    }
}

impl Allocation {
    /// Ends what the previous buffer left, if nothing of it is in flight: the next one has an identity and a list of uses of
    /// its own. Returns whether that is so.
    #[inline]
    pub(crate) fn renew(&mut self) -> bool {
        if !self.hazards.renew() {
            return false;
        }
        self.id = BufferId::next();
        self.use_epoch = UseEpoch::default();
        true
    }

    pub(crate) fn hazards(&self) -> &Hazards {
        &self.hazards
    }

    pub(crate) fn recycler(&self) -> Option<&Arc<dyn Recycler>> {
        self.recycler.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for RawBuffer {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used afterwards.
        let allocation = unsafe { ManuallyDrop::take(&mut self.allocation) };
        if allocation.recycler.is_some() {
            SpareBuffer::recycle(allocation);
        }
    }
}

impl RawBuffer {
    /// A buffer over a backend's memory; `reclaimer` takes the memory where it is dropped while in use.
    #[must_use]
    pub fn new(storage: Box<dyn Storage>, reclaimer: &Arc<Reclaimer>) -> Self {
        Self::new_after(storage, reclaimer, &[])
    }

    /// As [`new`](Self::new), over memory on which earlier work is still in flight: whoever uses the buffer comes after the
    /// fences, as if that work had written all of it.
    #[must_use]
    pub fn new_after(storage: Box<dyn Storage>, reclaimer: &Arc<Reclaimer>, behind: &[Fence]) -> Self {
        Self::make(storage, reclaimer, behind, None)
    }

    /// Like [`new_after`](Self::new_after), but the last handle gives the whole allocation to `recycler`.
    #[must_use]
    pub fn new_recycled(
        storage: Box<dyn Storage>,
        reclaimer: &Arc<Reclaimer>,
        behind: &[Fence],
        recycler: Arc<dyn Recycler>,
    ) -> Self {
        Self::make(storage, reclaimer, behind, Some(recycler))
    }

    fn make(
        storage: Box<dyn Storage>,
        reclaimer: &Arc<Reclaimer>,
        behind: &[Fence],
        recycler: Option<Arc<dyn Recycler>>,
    ) -> Self {
        let len = storage.len();
        let allocation = Allocation {
            id: BufferId::next(),
            recycler,
            len,
            place: storage.place(),
            host_address: storage.host_address(),
            device_address: storage.device_address().unwrap_or(0),
            has_device_address: storage.device_address().is_some(),
            writable: storage.is_writable(),
            storage: Some(storage),
            hazards: Hazards::with_fences(0..len, behind),
            reclaimer: Arc::clone(reclaimer),
            use_epoch: UseEpoch::default(),
        };
        Self::whole(Arc::new(allocation))
    }

    /// All of an allocation.
    #[inline]
    pub(crate) fn whole(allocation: Arc<Allocation>) -> Self {
        let len = allocation.len;
        Self { allocation: ManuallyDrop::new(allocation), offset: 0, len }
    }

    /// Its allocation's identity.
    #[must_use]
    #[inline]
    pub fn id(&self) -> BufferId {
        self.allocation.id
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes from the beginning of the allocation.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Where it is, and what kind of memory.
    #[must_use]
    #[inline]
    pub fn place(&self) -> Place {
        self.allocation.place
    }

    /// Whether bytes may be put there.
    #[must_use]
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.allocation.writable
    }

    /// The backend's memory behind the buffer, for that backend's own use.
    #[must_use]
    pub fn storage(&self) -> Option<&dyn Storage> {
        self.allocation.storage.as_deref()
    }

    /// Address as the device sees it. The buffer must be kept alive while the address is used.
    #[must_use]
    #[inline]
    pub fn device_address(&self) -> Option<u64> {
        self.allocation.has_device_address.then(|| self.allocation.device_address + self.offset as u64)
    }

    /// Address as the host sees it, for interop. Going through it bypasses the buffer's ordering.
    #[must_use]
    #[inline]
    pub fn host_address(&self) -> Option<NonNull<u8>> {
        // SAFETY: a slice's offset lies within the allocation, or at its end.
        self.allocation.host_address.map(|address| unsafe { address.add(self.offset) })
    }

    /// A view of a range of bytes; shares the allocation.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] where the range is reversed or leaves the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let Range { start, end } = range_within(&range, self.len, "bytes")?;
        Ok(Self { allocation: self.allocation.clone(), offset: self.offset + start, len: end - start })
    }

    /// A view of both where one begins at the byte at which the other ends, in one allocation; else `None`.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Option<Self> {
        let (ours, theirs) = (self.range(), other.range());
        let adjacent = ours.end == theirs.start || theirs.end == ours.start;
        (self.id() == other.id() && adjacent)
            .then(|| self.of_allocation(ours.start.min(theirs.start), ours.end.max(theirs.end)))
    }

    /// Whether both touch a common byte of one allocation.
    #[must_use]
    #[inline]
    pub fn overlaps(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.range(), other.range());
        self.id() == other.id() && ours.start.max(theirs.start) < ours.end.min(theirs.end)
    }

    /// Reads from the host: blocks until operations that write the range are done.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for memory that the host cannot address, [`ErrorKind::Busy`] where a writable view is
    /// open on the range, [`ErrorKind::SourceFailed`] where an operation that wrote some of the bytes failed: they may be
    /// damaged, until they are written again or [assumed](Self::assume_written) to be.
    pub fn read(&self) -> Result<HostView<'_>> {
        HostView::open(self, true)
    }

    /// As [`read`](Self::read), but answers [`ErrorKind::Busy`] instead of waiting.
    ///
    /// # Errors
    /// As for `read`.
    pub fn try_read(&self) -> Result<HostView<'_>> {
        HostView::open(self, false)
    }

    /// Writes from the host: blocks until operations that use the range are done.
    ///
    /// # Errors
    /// As for [`read`](Self::read), [`ErrorKind::Busy`] for any open view; [`ErrorKind::InvalidArgument`] for memory that
    /// may not be written.
    pub fn write(&self) -> Result<HostViewMut<'_>> {
        HostViewMut::open(self, true)
    }

    /// As [`write`](Self::write), but answers [`ErrorKind::Busy`] instead of waiting.
    ///
    /// # Errors
    /// As for `write`.
    pub fn try_write(&self) -> Result<HostViewMut<'_>> {
        HostViewMut::open(self, false)
    }

    /// Like [`write`](Self::write), for callers that replace every byte: damage by earlier work that failed is no error, and
    /// is [assumed](Self::assume_written) to be repaired.
    ///
    /// # Errors
    /// As for `write`, but for [`ErrorKind::SourceFailed`].
    pub fn overwrite(&self) -> Result<HostViewMut<'_>> {
        loop {
            match self.write() {
                Err(error) if error.kind() == ErrorKind::SourceFailed => self.assume_written(..)?,
                opened => return opened,
            }
        }
    }

    /// Says that the bytes of a range are as they should be, although an operation that wrote them failed: they were written
    /// around this library, or do not matter. Reading them is no error from here on. Waits for nothing; says nothing of work
    /// in flight.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] where the range is reversed or leaves the buffer.
    pub fn assume_written(&self, range: impl RangeBounds<usize>) -> Result<()> {
        let part = self.slice(range)?;
        part.hazards().assume_written(&part.range());
        Ok(())
    }

    /// Blocks until no operation enqueued so far on the allocation is in flight: on the whole of it, also for a slice.
    ///
    /// # Errors
    /// The first error of one that failed; all are over by then.
    pub fn wait_idle(&self) -> Result<()> {
        let mut outcome = Ok(());
        for fence in self.allocation.hazards.outstanding() {
            outcome = outcome.and(fence.wait());
        }
        outcome
    }

    /// The fences of what was enqueued so far on these bytes and is not known to be over; does not wait. `None` while another
    /// thread just enqueues something. Host views and loans do not count.
    #[must_use]
    pub fn in_flight(&self) -> Option<Vec<Fence>> {
        Some(self.hazards().in_flight(&self.range())?.into_vec())
    }

    /// How often the allocation was used so far: by operations that were claimed, and by host views. Where it is unchanged
    /// nobody used the allocation in between, except around this library.
    #[must_use]
    pub fn uses(&self) -> u64 {
        self.hazards().uses()
    }

    /// How often unified memory went from one user to another, the next use by `device` counted: where the number is as it was
    /// at an earlier use by that device, nobody elsewhere used the allocation in between, or had it prefetched, except around
    /// this library. Host views and loans count as uses elsewhere, as they begin and as they end: devices may read meanwhile.
    /// Takes no lock; of memory of other kinds it says nothing.
    ///
    /// What others are about to enqueue meanwhile may be counted or not: decide by it what costs time at most.
    #[must_use]
    #[inline]
    pub fn use_epoch_for(&self, device: DeviceId) -> u64 {
        self.allocation.use_epoch.use_epoch_for(device)
    }

    /// Tells of a use by a device, or by the host, that is enqueued around this library: a launch through a raw handle, say. It
    /// counts for [`use_epoch_for`](Self::use_epoch_for), and orders nothing.
    #[inline]
    pub fn record_external_use(&self, device: DeviceId) {
        self.record_use_by(device);
    }

    /// Work of a device, or of the host, uses it.
    #[inline]
    pub(crate) fn record_use_by(&self, device: DeviceId) {
        if self.allocation.place.kind == MemoryKind::Unified {
            self.allocation.use_epoch.record_use_by(device);
        }
    }

    /// As [`record_use_by`](Self::record_use_by) the device of a fence's timeline, which is asked for unified memory only.
    #[inline]
    pub(crate) fn record_use_by_fence(&self, fence: &Fence) {
        if self.allocation.place.kind == MemoryKind::Unified {
            self.allocation.use_epoch.record_use_by(fence.timeline().device());
        }
    }

    /// Somebody uses it who may do so anywhere.
    pub(crate) fn record_unknown_use(&self) {
        if self.allocation.place.kind == MemoryKind::Unified {
            self.allocation.use_epoch.record_unknown_use();
        }
    }

    /// Who takes the allocation where it is dropped while in use.
    pub(crate) fn reclaimer(&self) -> &Arc<Reclaimer> {
        &self.allocation.reclaimer
    }

    /// How many of those [`uses`](Self::uses) were for writing, on whatever range. Where it is unchanged the bytes are, too,
    /// except for what was enqueued before.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.hazards().writes()
    }

    /// The allocation's length, which for a slice is more than its own.
    #[must_use]
    pub fn allocation_len(&self) -> usize {
        self.allocation.len
    }

    /// A handle that does not keep the allocation alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakBuffer {
        WeakBuffer { allocation: Arc::downgrade(&self.allocation) }
    }

    #[inline]
    pub(crate) fn hazards(&self) -> &Hazards {
        &self.allocation.hazards
    }

    #[inline]
    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// The allocation's bytes `from..to`, which some view of it reaches.
    pub(crate) fn of_allocation(&self, from: usize, to: usize) -> Self {
        Self { allocation: self.allocation.clone(), offset: from, len: to - from }
    }

    /// Where a view would find the bytes.
    pub(crate) fn view_address(&self, access: Access) -> Result<NonNull<u8>> {
        let Some(address) = self.host_address() else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("the host cannot address {} memory; transfer it to a host buffer", self.place()),
            ));
        };
        if access == Access::Write && !self.is_writable() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "this buffer wraps memory that may not be written",
            ));
        }
        Ok(address)
    }
}

/// Returns a range as start and end, for types that offer ranges of `len` units such as `bytes`.
///
/// # Errors
/// [`ErrorKind::OutOfRange`] where it is reversed or leaves `0..len`.
pub fn range_within(range: &impl RangeBounds<usize>, len: usize, unit: &str) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len.max(start),
    };
    if start <= end && end <= len {
        return Ok(start..end);
    }
    // As it would be written in Rust.
    let from = match range.start_bound() {
        Bound::Excluded(before) => format!("(after {before})"),
        Bound::Included(start) => start.to_string(),
        Bound::Unbounded => String::new(),
    };
    let to = match range.end_bound() {
        Bound::Included(last) => format!("={last}"),
        Bound::Excluded(end) => end.to_string(),
        Bound::Unbounded => String::new(),
    };
    let text =
        format!("{unit} {from}..{to} are not within this buffer of {len} {unit}; use a range in 0..{len}");
    Err(Error::new(ErrorKind::OutOfRange, text))
}

/// An allocation that lives as long as somebody else has a [`RawBuffer`] of it.
#[derive(Clone)]
pub struct WeakBuffer {
    allocation: Weak<Allocation>,
}

impl WeakBuffer {
    /// The whole allocation, where it is still alive.
    #[must_use]
    pub fn upgrade(&self) -> Option<RawBuffer> {
        self.allocation.upgrade().map(RawBuffer::whole)
    }
}

impl fmt::Debug for WeakBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.allocation.strong_count() == 0 { "WeakBuffer(gone)" } else { "WeakBuffer" })
    }
}

impl fmt::Debug for RawBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawBuffer(#{} {} [{}..+{}])", self.allocation.id.0, self.place(), self.offset, self.len)
    }
}
