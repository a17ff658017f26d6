//! What a queue can be asked to do, and the one way of asking: claim, enqueue, commit.

use smallvec::SmallVec;

use crate::{
    Access, Claims, DeviceId, Error, ErrorKind, Fence, Pattern, Queue, RawBuffer, Recording, Result, Timing,
    submit::claim::WriteMode,
};

/// Rows of equal length at regular distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pitched {
    /// Bytes of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Bytes from one row's beginning to the next in the source; at least `width`.
    pub src_pitch: usize,
    /// Likewise in the destination.
    pub dst_pitch: usize,
}

/// Work for a queue.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// Copies all of `src` over all of `dst`; both of one length.
    Copy {
        /// From here.
        src: &'a RawBuffer,
        /// To here.
        dst: &'a RawBuffer,
    },
    /// Copies rows.
    CopyPitched {
        /// From here.
        src: &'a RawBuffer,
        /// To here.
        dst: &'a RawBuffer,
        /// Which rows.
        rows: Pitched,
    },
    /// Copies each pair's first over its second; the order among them is not defined. Gathers and scatters are batches.
    CopyBatch {
        /// Sources and destinations, each pair of one length.
        pairs: &'a [(RawBuffer, RawBuffer)],
    },
    /// Copies from one device's memory to another's, without the host; both of one length. The queue belongs to one of
    /// the two, and access between them is enabled.
    CopyPeer {
        /// From here.
        src: &'a RawBuffer,
        /// To here.
        dst: &'a RawBuffer,
    },
    /// Copies by the device's processors, which read or write host memory in place: no copy engine takes part, so a queue
    /// of copies does not hold it up. Both of one length.
    CopyInPlace {
        /// From here.
        src: &'a RawBuffer,
        /// To here.
        dst: &'a RawBuffer,
    },
    /// Fills memory with a pattern.
    Fill {
        /// What to fill.
        dst: &'a RawBuffer,
        /// With what.
        pattern: Pattern,
    },
    /// Moves unified memory to where it will be used; its content stays.
    Prefetch {
        /// What to move.
        buffer: &'a RawBuffer,
        /// Where to.
        to: DeviceId,
    },
    /// Moves unified memory to the memory of one NUMA node of the host; its content stays.
    PrefetchToNode {
        /// What to move.
        buffer: &'a RawBuffer,
        /// The node's number; `None` is the one nearest to the thread that submits.
        node: Option<u32>,
    },
    /// Does again everything that was recorded; see [`Backend::record`](crate::Backend::record).
    Replay {
        /// What.
        recorded: &'a dyn Recording,
    },
}

/// The buffers of an operation and what it does to each.
pub type Uses<'a> = SmallVec<[(&'a RawBuffer, Access); 4]>;

impl<'a> Operation<'a> {
    /// Unified memory that is sent somewhere counts as used there, whosever queue sends it. To be called between the work's
    /// being enqueued and the commit of its claims: nobody else's use of the ranges in conflict comes in between.
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

    /// Returns what happens to the bytes that it claims for writing.
    #[inline]
    pub(crate) fn write_mode(&self) -> WriteMode {
        match self {
            Self::Prefetch { .. } | Self::PrefetchToNode { .. } | Self::CopyPitched { .. } => WriteMode::Keep,
            // What one operation of a recording wrote another one may read.
            Self::Replay { .. } => WriteMode::Update,
            _ => WriteMode::Replace,
        }
    }

    /// Its buffers, and what it does to each.
    #[must_use]
    pub fn uses(&self) -> Uses<'a> {
        let mut uses = Uses::new();
        match *self {
            Self::Copy { src, dst }
            | Self::CopyPeer { src, dst }
            | Self::CopyInPlace { src, dst }
            | Self::CopyPitched { src, dst, .. } => {
                uses.push((src, Access::Read));
                uses.push((dst, Access::Write));
            }
            Self::CopyBatch { pairs } => {
                for (src, dst) in pairs {
                    uses.push((src, Access::Read));
                    uses.push((dst, Access::Write));
                }
            }
            Self::Fill { dst, .. } => uses.push((dst, Access::Write)),
            // Migration must not run beside another user of the pages.
            Self::Prefetch { buffer, .. } | Self::PrefetchToNode { buffer, .. } => {
                uses.push((buffer, Access::Write));
            }
            Self::Replay { recorded } => {
                uses.extend(recorded.uses().iter().map(|(buffer, access)| (buffer, *access)));
            }
        }
        uses
    }

    /// Checks what holds for any queue: equal lengths, no overlap, a writable destination, whole patterns.
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

    fn validate_slow(&self) -> Result<()> {
        match *self {
            Self::Copy { src, dst } | Self::CopyPeer { src, dst } | Self::CopyInPlace { src, dst } => {
                check_pair(src, dst)
            }
            Self::CopyPitched { src, dst, rows } => {
                check_rows("source", src.len(), rows.src_pitch, rows)?;
                check_rows("destination", dst.len(), rows.dst_pitch, rows)?;
                check_disjoint(src, dst)
            }
            Self::CopyBatch { pairs } => {
                pairs.iter().try_for_each(|(src, dst)| check_pair(src, dst))?;
                check_batch(pairs)
            }
            Self::Fill { dst, pattern } => {
                if !dst.len().is_multiple_of(pattern.width()) {
                    let text =
                        format!("{} bytes are no whole number of patterns of {}", dst.len(), pattern.width());
                    return Err(Error::new(ErrorKind::InvalidArgument, text));
                }
                if !dst.offset().is_multiple_of(pattern.width()) {
                    let text =
                        format!("byte {} is no multiple of the pattern's {}", dst.offset(), pattern.width());
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
    Error::new(ErrorKind::InvalidArgument, "the destination wraps memory that may not be written")
}

#[inline]
fn check_pair(src: &RawBuffer, dst: &RawBuffer) -> Result<()> {
    if src.len() == dst.len() { check_disjoint(src, dst) } else { Err(unequal(src, dst)) }
}

#[cold]
fn unequal(src: &RawBuffer, dst: &RawBuffer) -> Error {
    let text = format!("source has {} bytes, destination {}; both must agree", src.len(), dst.len());
    Error::new(ErrorKind::InvalidArgument, text)
}

#[inline]
fn check_disjoint(src: &RawBuffer, dst: &RawBuffer) -> Result<()> {
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

/// No destination of a batch may touch any other range of it, since the order among the pairs is not defined.
fn check_batch(pairs: &[(RawBuffer, RawBuffer)]) -> Result<()> {
    let mut ranges: Vec<_> = pairs
        .iter()
        .flat_map(|(src, dst)| [(src.id(), src.range(), false), (dst.id(), dst.range(), true)])
        .filter(|(_, range, _)| !range.is_empty())
        .collect();
    ranges.sort_by_key(|(id, range, _)| (*id, range.start, range.end));
    let mut furthest: Option<(crate::BufferId, usize, usize)> = None;
    for (id, range, write_mode) in ranges {
        // Ends of all ranges so far, and of the written ones among them.
        let (any, by_write) = match furthest {
            Some((last, any, by_write)) if last == id => (any, by_write),
            _ => (0, 0),
        };
        let is_touched = range.start < by_write || (write_mode && range.start < any);
        if is_touched && !crate::mutant!("core/batch-apart") {
            let text = format!("two pairs of the batch touch byte {} of one allocation", range.start);
            return Err(Error::new(ErrorKind::Overlap, text));
        }
        let by_write = if write_mode { by_write.max(range.end) } else { by_write };
        furthest = Some((id, any.max(range.end), by_write));
    }
    Ok(())
}

fn check_rows(which: &str, len: usize, pitch: usize, rows: Pitched) -> Result<()> {
    let end = rows
        .height
        .checked_sub(1)
        .and_then(|gaps| gaps.checked_mul(pitch))
        .and_then(|start| start.checked_add(rows.width));
    match end {
        Some(end) if end <= len && pitch >= rows.width && rows.width > 0 => Ok(()),
        _ => Err(Error::new(
            ErrorKind::OutOfRange,
            format!(
                "{} rows of {} bytes every {pitch} bytes do not fit the {which} of {len} bytes",
                rows.height, rows.width
            ),
        )),
    }
}

/// Enqueues an operation in the order that its buffers ask for: after every conflicting use enqueued before, before
/// every one enqueued later, whatever queues those are on. The buffers' memory stays alive until it is done.
///
/// Does not wait for the operation. It waits for earlier work only where the queue cannot do so itself: when that work
/// belongs to another backend; and after it has overtaken a waiter for one of the ranges 16 times, until that waiter had its
/// turn.
///
/// # Errors
/// Those of [`Operation::validate`]; [`ErrorKind::Busy`] where a host view is open on a range; [`ErrorKind::SourceFailed`]
/// where bytes that it would read may be damaged; the queue's own. On an error nothing was enqueued.
pub fn submit(queue: &dyn Queue, operation: &Operation<'_>, timing: Timing) -> Result<Fence> {
    submit_on(queue, operation, timing)
}

/// As [`submit`], with the queue's own type where that is known: it saves the calls by table, which a short copy notices.
///
/// # Errors
/// As for `submit`.
#[inline]
pub fn submit_on<Q: Queue + ?Sized>(queue: &Q, operation: &Operation<'_>, timing: Timing) -> Result<Fence> {
    operation.validate()?;
    let mut claims = Claims::none(operation.write_mode());
    match *operation {
        // Without the list of uses, whose length the compiler does not know.
        Operation::Copy { src, dst } => {
            claims.add(&mut [(src, Access::Read), (dst, Access::Write)], Some(queue.timeline()))
        }
        _ => claims.add(&mut operation.uses(), Some(queue.timeline())),
    }?;
    claims.wait_for_foreign_fences(queue);
    claims.enqueue(queue, operation, timing)
}
