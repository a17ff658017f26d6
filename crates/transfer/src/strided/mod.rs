//! Copies of strided views: rows of two and more dimensions, by one operation where the hardware has one, else by a list of rows.

mod layout;
mod rows;

pub use layout::StridedLayout;
pub(crate) use rows::{MAX_LISTED, Rows};
use transload_core::{DeviceId, Error, ErrorKind, RawBuffer, Result, TransferMethod};

use crate::{
    CopyBuilder, CrossBackendTransferManager, TransferOptions,
    built_in::DRIVER_ROW,
    planning::{
        copied::Copied,
        request::{PlanInput, range},
    },
    task_submission::is_pageable,
};

/// What a strided copy moves: all bytes from one buffer to another, or rows of them.
#[derive(Clone, Debug)]
pub(crate) struct StridedCopy {
    /// From the first byte that is copied to the last.
    pub(crate) src: RawBuffer,
    pub(crate) dst: RawBuffer,
    pub(crate) rows: Option<Rows>,
}

impl CrossBackendTransferManager {
    /// A copy of the runs of bytes of a strided layout over those of another one of the same shape: a part of a matrix, of a stack of
    /// them, or their dimensions in another order. Dimensions that follow each other without gaps on both sides are merged.
    ///
    /// ```
    /// # use transload_backend_cpu::CpuBackend;
    /// # use transload_core::{DeviceId, MemoryKind};
    /// # use transload_transfer::{CrossBackendTransferManager, StridedLayout};
    /// # let manager = CrossBackendTransferManager::new();
    /// # manager.register_backend(CpuBackend::new()?)?;
    /// # let matrix = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 100 * 64)?;
    /// # let packed = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 100 * 8)?;
    /// // Columns 16 to 23 of a matrix of 100 rows of 64 bytes, packed.
    /// let (columns, dense) = (StridedLayout::new(8).at(16).repeat(100, 64), StridedLayout::new(8).repeat(100, 8));
    /// let report = manager.copy_strided((&matrix, &columns), (&packed, &dense))?.wait()?;
    /// assert_eq!(report.bytes, 100 * 8);
    /// # Ok::<(), transload_core::Error>(())
    /// ```
    ///
    /// # How it is copied
    /// What is contiguous on both sides is a plain copy. Rows at one distance, and planes of at least four such rows, are one
    /// operation (a `cuMemcpy2DAsync` for each plane) between pinned, mapped, unified or device memory, within the host, and between
    /// pageable memory and a device if they are shorter than 16 KiB: there the driver copies during the call. All else, such as longer rows of pageable memory, is a list of rows, as for
    /// [`copy_many`](Self::copy_many), of at most a million: it takes some 200 bytes of memory for each row. More are left to the driver,
    /// if they are such planes. Rows that lie between those they are copied to, and rows between two devices, are a list too. The method UnifiedMemory copies
    /// no rows: reports have it as excluded. The predicted time is that of a contiguous copy of as many bytes.
    ///
    /// # What is in use
    /// Of a copy of rows, all bytes from the first row to the last on both sides, with the gaps: other work on these is ordered
    /// before or after it, and gaps keep their bytes. Of a list, only the rows.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for different shapes or 0 bytes; [`ErrorKind::OutOfRange`] for runs that leave their buffer, and for
    /// more than 1,048,576 rows that are no planes, or lie between those they are copied to; [`ErrorKind::Overlap`] for runs of the destination that overlap. The transfer's are those
    /// of [`copy`](Self::copy); [`ErrorKind::Overlap`] also if a run of the destination overlaps one of the source; [`ErrorKind::Unsupported`] also for more rows
    /// than that in planes between two devices.
    pub fn copy_strided<'a>(
        &'a self,
        (src, from): (&'a RawBuffer, &StridedLayout),
        (dst, to): (&'a RawBuffer, &StridedLayout),
    ) -> Result<CopyBuilder<'a>> {
        let counts = |layout: &StridedLayout| -> Vec<usize> {
            layout.dimensions.iter().map(|(count, _)| *count).collect()
        };
        if from.run != to.run || counts(from) != counts(to) {
            let text = format!(
                "the source's shape is {}, the destination's {}; expected equal shapes",
                from.shape(),
                to.shape()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if from.is_empty() {
            let text = format!("a copy of {}; each dimension has at least 1", from.shape());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let (src_span, dst_span) = (span("source", src, from)?, span("destination", dst, to)?);
        let is_apart =
            !src_span.overlaps(&dst_span) || transload_core::mutant!("transfer/strided-interleaved");
        let rows = Rows::reduce(from, to, is_apart)?;
        if let Some(rows) = &rows
            && rows.count() > MAX_LISTED
            && rows.pitched().is_none()
        {
            let text = format!(
                "{} are {} rows that are no planes of rows at one distance, or lie between those they are copied to; copy at most {MAX_LISTED} at once",
                from.shape(),
                rows.count()
            );
            return Err(Error::new(ErrorKind::OutOfRange, text));
        }
        Ok(self.copy(src, dst).strided(StridedCopy { src: src_span, dst: dst_span, rows }))
    }
}

/// Returns the bytes from the first run to the last.
fn span(which: &str, buffer: &RawBuffer, layout: &StridedLayout) -> Result<RawBuffer> {
    let Some(bytes) = layout.span() else {
        let text =
            format!("{} with such strides leave the {which} of {} bytes", layout.shape(), buffer.len());
        return Err(Error::new(ErrorKind::OutOfRange, text));
    };
    range(which, buffer, layout.offset, bytes).map(std::borrow::Cow::into_owned)
}

impl StridedCopy {
    pub(crate) fn bytes(&self) -> u64 {
        self.rows.as_ref().map_or(self.src.len() as u64, Rows::bytes)
    }

    pub(crate) fn copied(&self) -> Copied<'_> {
        Copied::new((&self.src, &self.dst), self.rows.as_ref())
    }

    /// # Errors
    /// As when it is submitted.
    pub(crate) fn input(&self) -> Result<PlanInput> {
        match &self.rows {
            None => PlanInput::of(&self.src, &self.dst),
            Some(rows) => PlanInput::of_rows(&self.src, &self.dst, rows),
        }
    }

    /// Returns the options, without the methods that copy no rows, or not these; `queue` is the device of a given one.
    pub(crate) fn options(
        &self,
        manager: &CrossBackendTransferManager,
        options: &TransferOptions,
        queue: Option<DeviceId>,
    ) -> TransferOptions {
        let Some(rows) = &self.rows else { return *options };
        let options = options.forbid(TransferMethod::UnifiedMemory);
        if rows.count() > MAX_LISTED {
            let by_list = [TransferMethod::HostStaged, TransferMethod::ZeroCopy, TransferMethod::PeerToPeer];
            return by_list.into_iter().fold(options, |options, method| options.forbid(method));
        }
        let is_short = rows.pitched().is_some() && rows.width() < DRIVER_ROW;
        let is_by_driver = || {
            let direct = TransferMethod::ALL
                .into_iter()
                .filter(|method| *method != TransferMethod::DirectCopy)
                .fold(options, |options, method| options.forbid(method));
            options.allows(TransferMethod::DirectCopy)
                && self
                    .input()
                    .is_ok_and(|input| manager.plan_on(&input, &direct, queue, self.copied()).is_ok())
        };
        let is_pageable = is_pageable(self.src.place()) || is_pageable(self.dst.place());
        if is_pageable && is_short && is_by_driver() {
            options.forbid(TransferMethod::HostStaged)
        } else {
            options
        }
    }
}
