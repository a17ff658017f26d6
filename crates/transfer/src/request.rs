//! What is asked for: the ranges of a transfer, checked before anything moves.

use std::borrow::Cow;

use transload_core::{Error, ErrorKind, RawBuffer, Result, TransferPath};

/// A transfer as the planner sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) path: TransferPath,
    pub(crate) bytes: u64,
    /// Whether a device sees the host's side in place, as far as is known without the buffers.
    pub(crate) device_visible: bool,
}

/// The bytes of a transfer: borrowed where a whole buffer is meant, which saves two reference counts.
#[derive(Debug)]
pub(crate) struct Ranges<'a> {
    pub(crate) src: Cow<'a, RawBuffer>,
    pub(crate) dst: Cow<'a, RawBuffer>,
}

impl Request {
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0 bytes.
    pub(crate) fn new(path: TransferPath, bytes: u64) -> Result<Self> {
        if bytes == 0 { Err(nothing()) } else { Ok(Self { path, bytes, device_visible: true }) }
    }
}

impl<'a> Ranges<'a> {
    /// Two whole buffers.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] where their lengths differ, and as for [`checked`](Self::checked).
    pub(crate) fn whole(src: &'a RawBuffer, dst: &'a RawBuffer) -> Result<Self> {
        if src.len() != dst.len() {
            let text = format!(
                "the source has {} bytes, the destination {}; a whole transfer needs equal lengths, transfer_buffer takes ranges",
                src.len(),
                dst.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Self::checked(src, dst, 0, 0, src.len())
    }

    /// A range of each buffer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0 bytes or a destination that may not be written, [`ErrorKind::OutOfRange`],
    /// [`ErrorKind::Overlap`].
    pub(crate) fn checked(
        src: &'a RawBuffer,
        dst: &'a RawBuffer,
        src_offset: usize,
        dst_offset: usize,
        size: usize,
    ) -> Result<Self> {
        if size == 0 {
            return Err(nothing());
        }
        let ranges = Self {
            src: range("source", src, src_offset, size)?,
            dst: range("destination", dst, dst_offset, size)?,
        };
        if ranges.src.overlaps(&ranges.dst) && !transload_core::mutant!("transfer/overlap-refused") {
            let text = format!(
                "{size} bytes from {} and from {} of one allocation overlap; choose offsets at least {size} apart",
                ranges.src.offset(),
                ranges.dst.offset(),
            );
            return Err(Error::new(ErrorKind::Overlap, text));
        }
        if !dst.is_writable() && !transload_core::mutant!("transfer/read-only-refused") {
            let text = "the destination wraps memory that may not be written; only its source side is valid";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(ranges)
    }

    pub(crate) fn request(&self) -> Request {
        let path = TransferPath::new(self.src.place(), self.dst.place());
        let visible =
            |buffer: &RawBuffer| !buffer.place().device.is_cpu() || buffer.device_address().is_some();
        let device_visible = visible(&self.src) && visible(&self.dst);
        Request { path, bytes: self.src.len() as u64, device_visible }
    }
}

fn nothing() -> Error {
    Error::new(ErrorKind::InvalidArgument, "a transfer of 0 bytes; at least 1 is valid")
}

fn range<'a>(which: &str, buffer: &'a RawBuffer, offset: usize, size: usize) -> Result<Cow<'a, RawBuffer>> {
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
