//! Checks a transfer's ranges before anything moves.

use std::borrow::Cow;

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, RawBuffer, Result, TransferPath};

use crate::strided::Rows;

/// What planning a transfer depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanInput {
    pub(crate) path: TransferPath,
    pub(crate) bytes: u64,
    /// Whether the host's side has a device address; `true` if there are no buffers to tell.
    pub(crate) device_visible: bool,
}

impl PlanInput {
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0 bytes.
    pub(crate) fn new(path: TransferPath, bytes: u64) -> Result<Self> {
        if bytes == 0 { Err(nothing()) } else { Ok(Self { path, bytes, device_visible: true }) }
    }

    /// A copy of all of `src` to all of `dst`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0 bytes, unequal lengths or a read-only destination,
    /// [`ErrorKind::Overlap`].
    pub(crate) fn of(src: &RawBuffer, dst: &RawBuffer) -> Result<Self> {
        Self::check(src, dst)?;
        Ok(Self { path: path_of(src, dst), ..Self::between(src, dst, src.len() as u64) })
    }

    /// Checks a copy like [`of`](Self::of).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub(crate) fn check(src: &RawBuffer, dst: &RawBuffer) -> Result<()> {
        let overlap = src.overlaps(dst) && !transload_core::mutant!("transfer/overlap-refused");
        let writable = dst.is_writable() || transload_core::mutant!("transfer/read-only-refused");
        if src.is_empty() || src.len() != dst.len() || overlap || !writable {
            return Err(refusal(src, dst));
        }
        Ok(())
    }

    /// A copy of rows of `src` to rows of `dst`. Rows that overlap are found when they are claimed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a read-only destination.
    pub(crate) fn of_rows(src: &RawBuffer, dst: &RawBuffer, rows: &Rows) -> Result<Self> {
        Self::check_rows(dst)?;
        Ok(Self { path: path_of(src, dst), ..Self::between(src, dst, rows.bytes()) })
    }

    /// Checks a copy like [`of_rows`](Self::of_rows).
    ///
    /// # Errors
    /// As there.
    pub(crate) fn check_rows(dst: &RawBuffer) -> Result<()> {
        if dst.is_writable() { Ok(()) } else { Err(read_only()) }
    }

    /// What is planned of a copy that was checked, as if the devices knew all pinned memory: see [`foreign_path`].
    #[inline]
    pub(crate) fn between(src: &RawBuffer, dst: &RawBuffer, bytes: u64) -> Self {
        let visible =
            |buffer: &RawBuffer| !buffer.place().device.is_cpu() || buffer.device_address().is_some();
        let device_visible = visible(src) && visible(dst);
        Self { path: TransferPath::new(src.place(), dst.place()), bytes, device_visible }
    }
}

/// Returns the path of a copy. Pinned and mapped memory that the other side's device does not know is pageable there.
pub(crate) fn path_of(src: &RawBuffer, dst: &RawBuffer) -> TransferPath {
    foreign_path(src, dst).unwrap_or_else(|| TransferPath::new(src.place(), dst.place()))
}

/// Returns the path of a copy, if a side is pinned or mapped memory that the other side's device does not know.
#[cold]
#[inline(never)]
pub(crate) fn foreign_path(src: &RawBuffer, dst: &RawBuffer) -> Option<TransferPath> {
    let is_foreign = |buffer: &RawBuffer, device: DeviceId| {
        matches!(buffer.place().kind, MemoryKind::Pinned | MemoryKind::Mapped)
            && !device.is_cpu()
            && !buffer.is_known_to(device)
            && !transload_core::mutant!("transfer/memory-of-other-drivers")
    };
    let mut path = TransferPath::new(src.place(), dst.place());
    let place = match (is_foreign(src, path.dst.device), is_foreign(dst, path.src.device)) {
        (true, _) => &mut path.src,
        (_, true) => &mut path.dst,
        _ => return None,
    };
    place.kind = MemoryKind::Pageable;
    Some(path)
}

/// Returns why a request is invalid.
#[cold]
fn refusal(src: &RawBuffer, dst: &RawBuffer) -> Error {
    if src.len() != dst.len() {
        let text = format!(
            "source has {} bytes, destination {}; lengths must be equal, slice the longer one",
            src.len(),
            dst.len()
        );
        return Error::new(ErrorKind::InvalidArgument, text);
    }
    if src.is_empty() {
        return nothing();
    }
    if src.overlaps(dst) {
        if src.offset() == dst.offset() {
            let text = format!("source and destination are the same {} bytes of one allocation", src.len());
            return Error::new(ErrorKind::Overlap, text);
        }
        let text = format!(
            "{size} bytes from {} and from {} of one allocation overlap; choose offsets at least {size} apart",
            src.offset(),
            dst.offset(),
            size = src.len(),
        );
        return Error::new(ErrorKind::Overlap, text);
    }
    read_only()
}

fn read_only() -> Error {
    Error::new(ErrorKind::InvalidArgument, "the destination is read-only; it can only be a source")
}

/// Returns ranges of two buffers. A whole buffer is borrowed, which saves two reference counts.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for 0 bytes, [`ErrorKind::OutOfRange`].
#[inline]
pub(crate) fn ranges<'a>(
    (src, src_offset): (&'a RawBuffer, usize),
    (dst, dst_offset): (&'a RawBuffer, usize),
    size: usize,
) -> Result<(Cow<'a, RawBuffer>, Cow<'a, RawBuffer>)> {
    if size == 0 {
        return Err(nothing());
    }
    Ok((range("source", src, src_offset, size)?, range("destination", dst, dst_offset, size)?))
}

fn nothing() -> Error {
    Error::new(ErrorKind::InvalidArgument, "a transfer of 0 bytes; at least 1 is valid")
}

/// Returns a range of a buffer.
///
/// # Errors
/// [`ErrorKind::OutOfRange`].
pub(crate) fn range<'a>(
    which: &str,
    buffer: &'a RawBuffer,
    offset: usize,
    size: usize,
) -> Result<Cow<'a, RawBuffer>> {
    let len = buffer.len();
    if offset == 0 && size == len {
        return Ok(Cow::Borrowed(buffer));
    }
    match offset.checked_add(size) {
        Some(end) if end <= len => buffer.slice(offset..end).map(Cow::Owned),
        _ => {
            let text = match len.checked_sub(offset) {
                Some(rest) if rest > 0 => format!(
                    "{size} bytes from offset {offset} leave the {which} of {len} bytes; from there at most {rest} are valid"
                ),
                _ => format!(
                    "offset {offset} is not within the {which} of {len} bytes; at most {} is valid",
                    len.saturating_sub(1)
                ),
            };
            Err(Error::new(ErrorKind::OutOfRange, text))
        }
    }
}
