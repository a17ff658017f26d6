//! The operations of a queue, and [`submit`], which claims, enqueues and commits them.

use smallvec::SmallVec;

use crate::{
    Access, Claims, DeviceId, Error, ErrorKind, Fence, FloatType, Pattern, Queue, RawBuffer, Recording,
    Result, Timing,
    submit::{
        batch::ranges_of,
        cast::check_cast,
        claim::{WriteMode, can_order, in_stream_order},
    },
};

/// Rows of equal length at regular distances, in one plane or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pitched {
    /// Bytes in a row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// Bytes from the start of one row to the next in the source; at least `width`.
    pub src_pitch: usize,
    /// Bytes from the start of one row to the next in the destination; at least `width`.
    pub dst_pitch: usize,
    /// Number of planes of `height` rows.
    pub planes: usize,
    /// Bytes from the start of one plane to the next in the source.
    pub src_plane: usize,
    /// Bytes from the start of one plane to the next in the destination; no plane reaches into the next.
    pub dst_plane: usize,
}

impl Pitched {
    /// Rows of one plane.
    #[must_use]
    pub const fn new(width: usize, height: usize, src_pitch: usize, dst_pitch: usize) -> Self {
        Self { width, height, src_pitch, dst_pitch, planes: 1, src_plane: 0, dst_plane: 0 }
    }

    /// Repeats the plane: `count` of them, at these distances in bytes.
    #[must_use]
    pub const fn planes(mut self, count: usize, src: usize, dst: usize) -> Self {
        (self.planes, self.src_plane, self.dst_plane) = (count, src, dst);
        self
    }
}

/// Work for a queue.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// Copies all of `src` to `dst`, which has the same length.
    Copy {
        /// Source.
        src: &'a RawBuffer,
        /// Destination.
        dst: &'a RawBuffer,
    },
    /// Copies rows.
    CopyPitched {
        /// Source.
        src: &'a RawBuffer,
        /// Destination.
        dst: &'a RawBuffer,
        /// Size and distance of the rows.
        rows: Pitched,
    },
    /// Copies the first of each pair to the second, in no defined order. Gathers and scatters are batches. Of two devices, as for
    /// [`CopyPeer`](Self::CopyPeer).
    CopyBatch {
        /// Sources and destinations; both of a pair have the same length.
        pairs: &'a [(RawBuffer, RawBuffer)],
    },
    /// Copies from one device's memory to another's, without the host; both have the same length. The queue
    /// belongs to one of the two devices, and peer access between them is enabled.
    CopyPeer {
        /// Source.
        src: &'a RawBuffer,
        /// Destination.
        dst: &'a RawBuffer,
    },
    /// Copies by a kernel that reads or writes host memory, or that of a peer as for [`CopyPeer`](Self::CopyPeer), in place: no copy engine
    /// takes part, so queued copies do not delay it. Both have the same length. On a queue of the host, by its threads, for buffers with
    /// a [mapped address](RawBuffer::mapped_address).
    CopyInPlace {
        /// Source.
        src: &'a RawBuffer,
        /// Destination.
        dst: &'a RawBuffer,
    },
    /// Like [`CopyBatch`](Self::CopyBatch), but by a kernel, as for [`CopyInPlace`](Self::CopyInPlace).
    CopyBatchInPlace {
        /// Sources and destinations; both of a pair have the same length.
        pairs: &'a [(RawBuffer, RawBuffer)],
    },
    /// Casts elements of one type to as many of another.
    Cast {
        /// Source.
        src: &'a RawBuffer,
        /// Type of the source's elements.
        from: FloatType,
        /// Destination.
        dst: &'a RawBuffer,
        /// Type of the destination's elements.
        to: FloatType,
    },
    /// Fills memory with a pattern.
    Fill {
        /// Destination.
        dst: &'a RawBuffer,
        /// The pattern to repeat.
        pattern: Pattern,
    },
    /// Migrates unified memory to the device that will use it; the content is preserved.
    Prefetch {
        /// Memory to migrate.
        buffer: &'a RawBuffer,
        /// Target device.
        to: DeviceId,
    },
    /// Migrates unified memory to one NUMA node of the host; the content is preserved.
    PrefetchToNode {
        /// Memory to migrate.
        buffer: &'a RawBuffer,
        /// The node's number; `None` for the node nearest to the submitting thread.
        node: Option<u32>,
    },
    /// Repeats all operations of a recording; see [`Backend::record`](crate::Backend::record).
    Replay {
        /// The recording.
        recorded: &'a dyn Recording,
    },
}

/// The buffers of an operation and its access to each.
pub type Uses<'a> = SmallVec<[(&'a RawBuffer, Access); 4]>;

impl<'a> Operation<'a> {
    /// Returns a [`Copy`](Self::Copy) between buffers of any type.
    pub fn copy(src: &'a impl AsRef<RawBuffer>, dst: &'a impl AsRef<RawBuffer>) -> Self {
        Self::Copy { src: src.as_ref(), dst: dst.as_ref() }
    }

    /// Returns a [`Fill`](Self::Fill) of a buffer of any type.
    pub fn fill(dst: &'a impl AsRef<RawBuffer>, pattern: Pattern) -> Self {
        Self::Fill { dst: dst.as_ref(), pattern }
    }

    /// Records the target device as a user of prefetched unified memory, whichever queue prefetches. Called
    /// after the operation is enqueued and before its claims are committed, so that no conflicting use comes
    /// in between.
    #[inline]
    pub(crate) fn record_prefetch_target(&self) {
        match *self {
            Self::Prefetch { buffer, to } => buffer.record_use_by(to),
            Self::PrefetchToNode { buffer, .. } => buffer.record_use_by(DeviceId::Cpu),
            Self::Replay { recorded } if !recorded.stays_on_device() => {
                recorded.uses().iter().for_each(|(buffer, _)| buffer.record_unknown_use());
            }
            _ => {}
        }
    }

    /// Returns what happens to the bytes that the operation claims for writing.
    #[inline]
    pub(crate) fn write_mode(&self) -> WriteMode {
        match self {
            Self::Prefetch { .. } | Self::PrefetchToNode { .. } | Self::CopyPitched { .. } => WriteMode::Keep,
            Self::Replay { recorded } if recorded.keeps_bytes() => WriteMode::Keep,
            // An operation of a recording may read what another one wrote.
            Self::Replay { .. } => WriteMode::Update,
            _ => WriteMode::Replace,
        }
    }

    /// Returns the operation's buffers and its access to each.
    #[must_use]
    pub fn uses(&self) -> Uses<'a> {
        let mut uses = Uses::new();
        match *self {
            Self::Copy { src, dst }
            | Self::CopyPeer { src, dst }
            | Self::CopyInPlace { src, dst }
            | Self::CopyPitched { src, dst, .. }
            | Self::Cast { src, dst, .. } => {
                uses.push((src, Access::Read));
                uses.push((dst, Access::Write));
            }
            Self::CopyBatch { pairs } | Self::CopyBatchInPlace { pairs } => {
                for (src, dst) in pairs {
                    uses.push((src, Access::Read));
                    uses.push((dst, Access::Write));
                }
            }
            Self::Fill { dst, .. } => uses.push((dst, Access::Write)),
            // Migration must not run concurrently with another user of the pages.
            Self::Prefetch { buffer, .. } | Self::PrefetchToNode { buffer, .. } => {
                uses.push((buffer, Access::Write));
            }
            Self::Replay { recorded } => {
                uses.extend(recorded.uses().iter().map(|(buffer, access)| (buffer, *access)));
            }
        }
        uses
    }

    /// Checks what any queue requires: equal lengths, no overlap, a writable destination, whole patterns.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::OutOfRange`] or [`ErrorKind::Overlap`].
    #[inline]
    pub fn validate(&self) -> Result<()> {
        match *self {
            Self::Copy { src, dst } => check_pair(src, dst),
            _ => self.validate_slow(),
        }
    }

    /// Sets up what the queue needs for the operation: see [`Queue::prepare_batch`].
    pub fn prepare<Q: Queue + ?Sized>(&self, queue: &Q) {
        if let Self::CopyBatchInPlace { pairs } = *self {
            let bytes = pairs.iter().fold(0_u64, |sum, (src, _)| sum.saturating_add(src.len() as u64));
            queue.prepare_batch(pairs.len(), bytes);
        }
    }

    fn validate_slow(&self) -> Result<()> {
        match *self {
            Self::Copy { src, dst } | Self::CopyPeer { src, dst } | Self::CopyInPlace { src, dst } => {
                check_pair(src, dst)
            }
            Self::CopyPitched { src, dst, rows } => {
                check_rows("source", src.len(), (rows.src_pitch, rows.src_plane), rows)?;
                let plane = check_rows("destination", dst.len(), (rows.dst_pitch, rows.dst_plane), rows)?;
                if rows.planes > 1 && rows.dst_plane < plane && !crate::mutant!("core/planes-apart") {
                    let text = format!(
                        "planes of {plane} bytes every {} bytes of the destination overlap",
                        rows.dst_plane
                    );
                    return Err(Error::new(ErrorKind::Overlap, text));
                }
                check_disjoint(src, dst)
            }
            Self::CopyBatch { pairs } | Self::CopyBatchInPlace { pairs } => ranges_of(pairs).map(drop),
            Self::Cast { src, from, dst, to } => check_cast((src, from), (dst, to)),
            Self::Fill { dst, pattern } => {
                if !dst.len().is_multiple_of(pattern.width()) {
                    let text = format!(
                        "{} bytes are not a whole number of patterns of {} bytes",
                        dst.len(),
                        pattern.width()
                    );
                    return Err(Error::new(ErrorKind::InvalidArgument, text));
                }
                if !dst.offset().is_multiple_of(pattern.width()) {
                    let text = format!(
                        "offset {} is not a multiple of the pattern's {} bytes",
                        dst.offset(),
                        pattern.width()
                    );
                    return Err(Error::new(ErrorKind::InvalidArgument, text));
                }
                check_writable(dst)
            }
            Self::Prefetch { buffer, .. } | Self::PrefetchToNode { buffer, .. } if buffer.is_empty() => {
                Err(Error::new(ErrorKind::InvalidArgument, "a prefetch needs at least 1 byte"))
            }
            Self::Prefetch { .. } | Self::PrefetchToNode { .. } | Self::Replay { .. } => Ok(()),
        }
    }
}

#[inline]
fn check_writable(dst: &RawBuffer) -> Result<()> {
    if dst.is_writable() { Ok(()) } else { Err(not_writable()) }
}

#[cold]
fn not_writable() -> Error {
    Error::new(ErrorKind::InvalidArgument, "the destination's memory is not writable")
}

#[inline]
pub(super) fn check_pair(src: &RawBuffer, dst: &RawBuffer) -> Result<()> {
    if src.len() == dst.len() { check_disjoint(src, dst) } else { Err(unequal(src, dst)) }
}

#[cold]
fn unequal(src: &RawBuffer, dst: &RawBuffer) -> Error {
    let text = format!("source has {} bytes, destination {}; expected equal lengths", src.len(), dst.len());
    Error::new(ErrorKind::InvalidArgument, text)
}

#[inline]
pub(super) fn check_disjoint(src: &RawBuffer, dst: &RawBuffer) -> Result<()> {
    let is_refused = src.overlaps(dst) && !crate::mutant!("core/overlap-refused");
    if is_refused { Err(overlapping(src, dst)) } else { check_writable(dst) }
}

#[cold]
fn overlapping(src: &RawBuffer, dst: &RawBuffer) -> Error {
    let text = format!(
        "source bytes {:?} and destination bytes {:?} of one allocation overlap; choose disjoint ranges",
        src.range(),
        dst.range()
    );
    Error::new(ErrorKind::Overlap, text)
}

/// Returns the bytes from the beginning of a plane to its end.
fn check_rows(which: &str, len: usize, (pitch, plane): (usize, usize), rows: Pitched) -> Result<usize> {
    let span = |count: usize, stride: usize, last: usize| {
        count.checked_sub(1)?.checked_mul(stride)?.checked_add(last)
    };
    let bytes = span(rows.height, pitch, rows.width);
    let end = bytes.and_then(|bytes| span(rows.planes, plane, bytes));
    match (bytes, end) {
        (Some(bytes), Some(end)) if end <= len && pitch >= rows.width && rows.width > 0 => Ok(bytes),
        _ => Err(Error::new(
            ErrorKind::OutOfRange,
            format!(
                "{} planes every {plane} bytes of {} rows of {} bytes every {pitch} bytes do not fit the {which} of {len} bytes",
                rows.planes, rows.height, rows.width
            ),
        )),
    }
}

/// Enqueues an operation in the order that its buffers require: after all conflicting uses enqueued before
/// it, on whatever queue, and before all enqueued later. Keeps the buffers' memory alive until it is
/// complete.
///
/// Does not wait for the operation. Waits for earlier work only if the queue cannot, since the work belongs
/// to another backend; and, after overtaking a waiter for one of the ranges 16 times, until that waiter had
/// its turn.
///
/// # Errors
/// Those of [`Operation::validate`]; [`ErrorKind::Busy`] if a host view is open on a range;
/// [`ErrorKind::SourceFailed`] if bytes that it would read may be damaged; the queue's own. Unless the error
/// [is partial](Error::is_partial), nothing was enqueued then; else a part of the operation, or all of it, was done, and is over.
pub fn submit(queue: &dyn Queue, operation: &Operation<'_>, timing: Timing) -> Result<Fence> {
    submit_on(queue, operation, timing)
}

/// Like [`submit`], but the operation also takes effect after the fences in `after`, whether their work succeeds or fails. Blocks
/// the calling thread until those are complete that the queue cannot wait for; nothing is claimed meanwhile.
///
/// # Errors
/// As for `submit`.
pub fn submit_after(
    queue: &dyn Queue,
    operation: &Operation<'_>,
    after: &[Fence],
    timing: Timing,
) -> Result<Fence> {
    if after.is_empty() {
        return submit_on(queue, operation, timing);
    }
    operation.validate()?;
    let mut uses = operation.uses();
    let in_order = || in_stream_order(uses.iter().map(|(buffer, _)| *buffer));
    for fence in after.iter().filter(|fence| !can_order(queue, fence, in_order)) {
        let _order_only = fence.wait();
    }
    operation.prepare(queue);
    let mut claims = Claims::none(operation.write_mode());
    claims.add(&mut uses, Some(queue.timeline()))?;
    claims.wait_also(after);
    claims.wait_for_foreign_fences(queue);
    claims.enqueue(queue, operation, timing)
}

/// Like [`submit`], but generic over the queue's type, which saves virtual calls; short copies are noticeably
/// faster.
///
/// # Errors
/// Like `submit`.
#[inline]
pub fn submit_on<Q: Queue + ?Sized>(queue: &Q, operation: &Operation<'_>, timing: Timing) -> Result<Fence> {
    let mut claims = Claims::none(operation.write_mode());
    match *operation {
        // An array instead of `uses()`, so that the compiler knows the length.
        Operation::Copy { src, dst } => {
            check_pair(src, dst)?;
            claims.add(&mut [(src, Access::Read), (dst, Access::Write)], Some(queue.timeline()))
        }
        _ => {
            operation.prepare(queue);
            claims.add_checked(operation, queue.timeline())
        }
    }?;
    claims.wait_for_foreign_fences(queue);
    claims.enqueue(queue, operation, timing)
}
