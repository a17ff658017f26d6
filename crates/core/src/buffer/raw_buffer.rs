//! Owned, reference-counted bytes of one kind of memory on one device; slices are cheap views.

use std::{
    fmt,
    mem::ManuallyDrop,
    ops::{Bound, Range, RangeBounds},
    ptr::NonNull,
    sync::Arc,
};

use crate::{
    Access, BufferId, DeviceId, Error, ErrorKind, Fence, HostView, HostViewMut, MemoryKind, Place, Reclaimer,
    Recycler, Result, SpareBuffer, Storage, WeakBuffer,
    buffer::use_epoch::UseEpoch,
    hazard::{Hazards, Opening},
};

/// Bytes in some memory. Clones and slices share the allocation, which is freed when the last of them was
/// dropped *and* no operation in flight uses it. Can be used from any thread.
#[derive(Clone)]
pub struct RawBuffer {
    pub(super) allocation: ManuallyDrop<Arc<Allocation>>,
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// Field order and alignment matter: a copy reads the first three cache lines, and driver calls evict most of
/// L1. The storage's properties are cached here, since they never change and the storage is elsewhere in
/// memory.
#[repr(C, align(64))]
pub(crate) struct Allocation {
    pub(super) id: BufferId,
    host_address: Option<NonNull<u8>>,
    /// 0 if it has none.
    device_address: u64,
    has_device_address: bool,
    writable: bool,
    /// Whether `aliased` has the table.
    pub(super) is_alias: bool,
    place: Place,
    hazards: Hazards,
    /// Receives the allocation when its last handle is dropped, for the next buffer.
    recycler: Option<Arc<dyn Recycler>>,
    len: usize,
    /// `None` only while this is dropped.
    pub(super) storage: Option<Box<dyn Storage>>,
    reclaimer: Arc<Reclaimer>,
    use_epoch: UseEpoch,
    /// The allocation whose bytes these are, if this is an alias.
    pub(super) aliased: Option<Arc<Self>>,
}

// SAFETY: the addresses are copies of those of the storage, which is Send.
unsafe impl Send for Allocation {}
// SAFETY: as above; `hazards` orders access to the bytes.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(mut storage) = self.storage.take() else { return };
        let until = self.hazards().outstanding();
        if until.is_empty() || storage.adopt_fences(&until) {
            drop(storage);
        } else {
            self.reclaimer.push(until, storage);
        }
        if let Some(of) = self.aliased.take() {
            drop(RawBuffer::whole(of));
        }
    }
}

impl Allocation {
    pub(super) fn new(
        storage: Box<dyn Storage>,
        reclaimer: &Arc<Reclaimer>,
        behind: &[Fence],
        recycler: Option<Arc<dyn Recycler>>,
    ) -> Self {
        let len = storage.len();
        Self {
            id: BufferId::next(),
            recycler,
            len,
            place: storage.place(),
            host_address: storage.host_address(),
            device_address: storage.device_address().unwrap_or(0),
            has_device_address: storage.device_address().is_some(),
            writable: storage.is_writable(),
            is_alias: false,
            storage: Some(storage),
            hazards: Hazards::with_fences(0..len, behind),
            reclaimer: Arc::clone(reclaimer),
            use_epoch: UseEpoch::default(),
            aliased: None,
        }
    }

    /// Resets the allocation for the next buffer, with a new id and an empty table, if nothing is in flight.
    /// Returns whether it did.
    #[inline]
    pub(crate) fn renew(&mut self) -> bool {
        if !self.hazards.renew() {
            return false;
        }
        self.id = BufferId::next();
        self.use_epoch = UseEpoch::default();
        true
    }

    #[inline]
    pub(crate) fn hazards(&self) -> &Hazards {
        if self.is_alias && !crate::mutant!("core/alias-has-no-table") {
            self.hazards_of_both()
        } else {
            &self.hazards
        }
    }

    #[cold]
    fn hazards_of_both(&self) -> &Hazards {
        self.aliased.as_ref().map_or(&self.hazards, |of| &of.hazards)
    }

    pub(crate) fn recycler(&self) -> Option<&Arc<dyn Recycler>> {
        self.recycler.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// So that functions take this and typed buffers alike.
impl AsRef<Self> for RawBuffer {
    fn as_ref(&self) -> &Self {
        self
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
    /// Creates a buffer over a backend's memory. `reclaimer` receives the memory if it is dropped while in
    /// use.
    #[must_use]
    pub fn new(storage: Box<dyn Storage>, reclaimer: &Arc<Reclaimer>) -> Self {
        Self::new_after(storage, reclaimer, &[])
    }

    /// Like [`new`](Self::new), but over memory with earlier work in flight: users of the buffer wait for the
    /// fences, as if that work had written all of it.
    #[must_use]
    pub fn new_after(storage: Box<dyn Storage>, reclaimer: &Arc<Reclaimer>, behind: &[Fence]) -> Self {
        Self::whole(Arc::new(Allocation::new(storage, reclaimer, behind, None)))
    }

    /// Like [`new_after`](Self::new_after), but when the last handle is dropped, `recycler` receives the
    /// whole allocation; if two threads drop the last two handles at once, the memory may be freed instead.
    #[must_use]
    pub fn new_recycled(
        storage: Box<dyn Storage>,
        reclaimer: &Arc<Reclaimer>,
        behind: &[Fence],
        recycler: Arc<dyn Recycler>,
    ) -> Self {
        Self::whole(Arc::new(Allocation::new(storage, reclaimer, behind, Some(recycler))))
    }

    /// Returns a view of the whole allocation.
    #[inline]
    pub(crate) fn whole(allocation: Arc<Allocation>) -> Self {
        let len = allocation.len;
        Self { allocation: ManuallyDrop::new(allocation), offset: 0, len }
    }

    /// Returns its allocation's id.
    #[must_use]
    #[inline]
    pub fn id(&self) -> BufferId {
        self.allocation.id
    }

    /// Returns its length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns its offset in the allocation, in bytes.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns its device and kind of memory.
    #[must_use]
    #[inline]
    pub fn place(&self) -> Place {
        self.allocation.place
    }

    /// Returns whether the memory is writable.
    #[must_use]
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.allocation.writable
    }

    /// Returns the backend's memory, for that backend's own use.
    #[must_use]
    pub fn storage(&self) -> Option<&dyn Storage> {
        self.allocation.storage.as_deref()
    }

    /// Returns its address for the device. Keep the buffer alive while the address is used.
    #[must_use]
    #[inline]
    pub fn device_address(&self) -> Option<u64> {
        self.allocation.has_device_address.then(|| self.allocation.device_address + self.offset as u64)
    }

    /// Returns its address for the host, for interop. Access through it bypasses the buffer's ordering.
    #[must_use]
    #[inline]
    pub fn host_address(&self) -> Option<NonNull<u8>> {
        // SAFETY: a slice's offset lies within the allocation, or at its end.
        self.allocation.host_address.map(|address| unsafe { address.add(self.offset) })
    }

    /// Returns a view of a range of bytes, which shares the allocation.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if the range is reversed or exceeds the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let Range { start, end } = range_within(&range, self.len, "bytes")?;
        Ok(Self { allocation: self.allocation.clone(), offset: self.offset + start, len: end - start })
    }

    /// Returns whether both share a byte of one allocation.
    #[must_use]
    #[inline]
    pub fn overlaps(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.range(), other.range());
        self.id() == other.id() && ours.start.max(theirs.start) < ours.end.min(theirs.end)
    }

    /// Opens a host view for reading: blocks until operations that write the range are complete.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for memory that the host cannot address, [`ErrorKind::Busy`] if a writable
    /// view is open on the range, [`ErrorKind::SourceFailed`] if an operation that wrote some of the bytes
    /// failed: they may be damaged, until they are written again or [assumed](Self::assume_written) to be.
    pub fn read(&self) -> Result<HostView<'_>> {
        HostView::open(self, true)
    }

    /// Like [`read`](Self::read), but returns [`ErrorKind::Busy`] instead of waiting.
    ///
    /// # Errors
    /// Like `read`.
    pub fn try_read(&self) -> Result<HostView<'_>> {
        HostView::open(self, false)
    }

    /// Opens a host view for writing: blocks until operations that use the range are complete.
    ///
    /// # Errors
    /// Like [`read`](Self::read); [`ErrorKind::Busy`] for any open view; [`ErrorKind::InvalidArgument`] for
    /// memory that is not writable.
    pub fn write(&self) -> Result<HostViewMut<'_>> {
        HostViewMut::open(self, Opening::View, true)
    }

    /// Like [`write`](Self::write), but returns [`ErrorKind::Busy`] instead of waiting.
    ///
    /// # Errors
    /// Like `write`.
    pub fn try_write(&self) -> Result<HostViewMut<'_>> {
        HostViewMut::open(self, Opening::View, false)
    }

    /// Like [`write`](Self::write), but for callers that replace every byte: damage by earlier failed work is
    /// no error, and is [assumed](Self::assume_written) to be repaired once the view is open.
    ///
    /// # Errors
    /// Like `write`, except [`ErrorKind::SourceFailed`].
    pub fn overwrite(&self) -> Result<HostViewMut<'_>> {
        HostViewMut::open(self, Opening::Overwrite, true)
    }

    /// Declares the bytes of a range valid although an operation that wrote them failed: they were written
    /// outside of this library, or do not matter. Reading them is no error from now on. Does not wait, and
    /// has no effect on work in flight.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if the range is reversed or exceeds the buffer.
    pub fn assume_written(&self, range: impl RangeBounds<usize>) -> Result<()> {
        let part = self.slice(range)?;
        part.hazards().assume_written(&part.range());
        Ok(())
    }

    /// Blocks until all operations enqueued so far on the allocation are complete; on the whole allocation,
    /// even for a slice.
    ///
    /// # Errors
    /// The first error of a failed operation; all are complete by then.
    pub fn wait_idle(&self) -> Result<()> {
        let mut outcome = Ok(());
        for fence in self.hazards().outstanding() {
            outcome = outcome.and(fence.wait());
        }
        outcome
    }

    /// Returns the fences of operations on these bytes that are not known to be complete; does not wait.
    /// `None` while another thread is enqueueing one. Host views and loans do not count.
    #[must_use]
    pub fn in_flight(&self) -> Option<Vec<Fence>> {
        Some(self.hazards().in_flight(&self.range())?.into_vec())
    }

    /// Returns how often the allocation was used so far, by claimed operations and by host views. An
    /// unchanged number means no use in between, except outside this library.
    #[must_use]
    pub fn uses(&self) -> u64 {
        self.hazards().uses()
    }

    /// Returns whether an operation that is not known to be complete, a host view or a loan uses some of the allocation.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.hazards().are_in_use()
    }

    /// Returns the number of user changes of unified memory, counting a use by `device` now. If equal to the
    /// value at its last use, neither the host nor another device used or prefetched the allocation since,
    /// except outside this library. Host views and loans count as uses by the host or an unknown user, both
    /// at their beginning and at their end, since devices may read meanwhile. Takes no lock; meaningless for
    /// other kinds of memory.
    ///
    /// Work that other threads are enqueueing may or may not be counted, so use this only for decisions that
    /// affect performance.
    #[must_use]
    #[inline]
    pub fn use_epoch_for(&self, device: DeviceId) -> u64 {
        self.allocation.use_epoch.use_epoch_for(device)
    }

    /// Records a use by a device, or by the host, that is enqueued outside this library, such as a launch
    /// through a raw handle. It counts for [`use_epoch_for`](Self::use_epoch_for), and orders nothing.
    #[inline]
    pub fn record_external_use(&self, device: DeviceId) {
        self.record_use_by(device);
    }

    /// Records a use by a device, or by the host.
    #[inline]
    pub(crate) fn record_use_by(&self, device: DeviceId) {
        if self.allocation.place.kind == MemoryKind::Unified {
            self.allocation.use_epoch.record_use_by(device);
        }
    }

    /// Like [`record_use_by`](Self::record_use_by) for the device of a fence's timeline. Only unified memory
    /// queries the timeline.
    #[inline]
    pub(crate) fn record_use_by_fence(&self, fence: &Fence) {
        if self.allocation.place.kind == MemoryKind::Unified {
            self.allocation.use_epoch.record_use_by(fence.timeline().device());
        }
    }

    /// Records a use by an unknown user.
    pub(crate) fn record_unknown_use(&self) {
        if self.allocation.place.kind == MemoryKind::Unified {
            self.allocation.use_epoch.record_unknown_use();
        }
    }

    /// Returns the receiver of the memory if it is dropped while in use.
    pub(crate) fn reclaimer(&self) -> &Arc<Reclaimer> {
        &self.allocation.reclaimer
    }

    /// Returns how many of the [`uses`](Self::uses) were for writing, on any range. An unchanged number means
    /// unchanged bytes, except by operations enqueued before.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.hazards().writes()
    }

    /// Returns the allocation's length in bytes, which may be more than that of this slice.
    #[must_use]
    pub fn allocation_len(&self) -> usize {
        self.allocation.len
    }

    /// Returns a handle that does not keep the allocation alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakBuffer {
        WeakBuffer { allocation: Arc::downgrade(&self.allocation) }
    }

    #[inline]
    pub(crate) fn hazards(&self) -> &Hazards {
        self.allocation.hazards()
    }

    #[inline]
    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// Returns a view of the allocation's bytes `from..to`, which must be in range.
    pub(crate) fn of_allocation(&self, from: usize, to: usize) -> Self {
        Self { allocation: self.allocation.clone(), offset: from, len: to - from }
    }

    /// Returns the host address for a view with this access.
    pub(crate) fn view_address(&self, access: Access) -> Result<NonNull<u8>> {
        let Some(address) = self.host_address() else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("the host cannot address {} memory; transfer it to a host buffer", self.place()),
            ));
        };
        if access == Access::Write && !self.is_writable() {
            return Err(Error::new(ErrorKind::InvalidArgument, "the buffer's memory is not writable"));
        }
        Ok(address)
    }
}

/// Converts a range to start and end, for types with ranges of `len` units such as `bytes`.
///
/// # Errors
/// [`ErrorKind::OutOfRange`] if it is reversed or exceeds `0..len`.
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
    // Format it as written in Rust.
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

impl fmt::Debug for RawBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawBuffer(#{} {} [{}..+{}])", self.allocation.id.0, self.place(), self.offset, self.len)
    }
}
