//! Explicit mode: closing a writable slice uploads it, opening a slice downloads what devices wrote.
//!
//! Device memory is therefore current for all work ordered by its buffer: the upload takes the slice's place in that
//! order. The host's copy is current where the state says so.

use std::{ops::Range, thread};

use transload_core::{
    Access, Claims, Error, ErrorKind, Fence, Operation, Queue, RangeGuard, RawBuffer, Result, Timing,
    events::report,
};

use super::{inner::Inner, range_locks::RangeLockId, state::Download};
use crate::ranges::bytes_of;

impl Inner {
    /// Uploads host writes in place of the hold. Does not wait. If the driver refuses, the hold stays, so that no one
    /// reads stale device memory, and the next use of the buffer retries.
    pub(crate) fn upload(&self, hold: RangeGuard) {
        let Some(host) = &self.host else { return };
        if let Err((hold, error)) = self.enqueue_held_upload(host, hold)
            && !transload_core::mutant!("memory/unsent-writes-are-kept")
        {
            report::unified_copy_failed(self.device.id(), hold.buffer().len(), &error);
            self.state.lock().copy.keep_failed_upload(hold);
        }
    }

    /// Retries failed uploads.
    ///
    /// # Errors
    /// The driver's; nothing is lost then.
    pub(crate) fn retry_failed_uploads(&self) -> Result<()> {
        let Some(host) = &self.host else { return Ok(()) };
        let mut outcome = Ok(());
        let failed_uploads = self.state.lock().copy.take_failed_uploads();
        for hold in failed_uploads {
            if let Err((hold, error)) = self.enqueue_held_upload(host, hold) {
                self.state.lock().copy.keep_failed_upload(hold);
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    fn enqueue_held_upload(&self, host: &RawBuffer, hold: RangeGuard) -> Result<(), (RangeGuard, Error)> {
        match self.enqueue_upload(host, hold.buffer()) {
            Ok(Some(fence)) => {
                // SAFETY: the fence completes with the copy, the only use since the hold began.
                unsafe { hold.commit(&fence) };
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => Err((hold, error)),
        }
    }

    /// `dst` is held for writing.
    fn enqueue_upload(&self, host: &RawBuffer, dst: &RawBuffer) -> Result<Option<Fence>> {
        if dst.is_empty() {
            return Ok(None);
        }
        let src = host.slice(bytes_of(dst))?;
        let claims = Claims::acquire(&mut [(&src, Access::Read)])?;
        // SAFETY: the claims protect the source, and the caller's hold the destination, from conflicting use until the
        // fence is committed to both; everything before the hold is complete.
        unsafe { enqueue_claimed(&*self.queue, &Operation::Copy { src: &src, dst }, claims) }.map(Some)
    }

    /// Downloads the stale parts of a range, for the holder of its lock.
    ///
    /// # Errors
    /// `Busy` if `wait` is false and earlier downloads are in flight; the driver's.
    pub(crate) fn download(&self, id: RangeLockId, range: &Range<usize>, wait: bool) -> Result<()> {
        let Some(host) = &self.host else { return Ok(()) };
        loop {
            // Earlier writes were noted when the range was locked, and none has happened since.
            let (missing, downloads) = {
                let state = self.state.lock();
                (state.copy.missing(range), state.copy.downloads(range))
            };
            let mut again = false;
            for download in downloads {
                if !wait && !download.1.is_complete() {
                    return Err(download_in_progress(&download.0));
                }
                again |= !self.finish_download(&download);
            }
            for part in missing {
                again |= !self.download_part(host, part)?;
            }
            if !again {
                let mut state = self.state.lock();
                state.copy.set_valid(range.clone());
                state.locks.set_ready(id);
                return Ok(());
            }
            if !wait {
                return Err(download_in_progress(range));
            }
            thread::yield_now();
        }
    }

    /// Downloads a held range and waits for it. Returns `false` if another slice accesses part of the host's copy: it
    /// downloaded that part itself.
    fn download_part(&self, host: &RawBuffer, range: Range<usize>) -> Result<bool> {
        let (src, dst) = (self.raw.slice(range.clone())?, host.slice(range)?);
        let claims = match Claims::acquire(&mut [(&dst, Access::Write)]) {
            Ok(claims) => claims,
            Err(error) if error.kind() == ErrorKind::Busy => return Ok(false),
            Err(error) => return Err(error),
        };
        // SAFETY: the claims protect the destination from conflicting use until the fence is committed. The caller
        // holds the source, so it is not written until after the wait below.
        let fence =
            unsafe { enqueue_claimed(&*self.queue, &Operation::Copy { src: &src, dst: &dst }, claims) }?;
        fence.wait().map(|()| true)
    }

    /// Starts downloading a range for later slices.
    ///
    /// # Errors
    /// `Busy` if a conflicting slice is open; the queue's.
    pub(crate) fn start_download(
        &self,
        host: &RawBuffer,
        queue: &dyn Queue,
        range: Range<usize>,
    ) -> Result<Fence> {
        let (src, dst) = (self.raw.slice(range.clone())?, host.slice(range.clone())?);
        let operation = Operation::Copy { src: &src, dst: &dst };
        operation.validate()?;
        self.collect_finished_downloads();
        let mut claims = Claims::acquire(&mut operation.uses())?;
        claims.wait_for_foreign_fences(queue);
        let guards = self.state.lock().copy.guards();
        // SAFETY: the claims exclude conflicting use until the fence is committed.
        let fence = claims.inherit(unsafe { queue.enqueue(&operation, claims.after(), Timing::Off) }?);
        let mut state = self.state.lock();
        // The claims exclude writes, except through the address of a guard.
        state.refresh(self.raw.writes(), 0);
        let unchanged = state.copy.guards() == guards;
        let replaced = unchanged.then(|| state.copy.add_download(range, fence.clone()));
        drop(state);
        drop(replaced);
        // SAFETY: a queue's fence completes after the operation, which is ordered after `after`.
        unsafe { claims.commit(&fence) };
        Ok(fence)
    }

    /// Checks completed downloads, so that those which no slice needs are released.
    fn collect_finished_downloads(&self) {
        let over = self.state.lock().copy.finished_downloads();
        for download in over {
            // Known to be complete: does not wait. A failed one is repeated by the next slice.
            self.finish_download(&download);
        }
    }

    /// Waits for a download. Returns whether it succeeded.
    fn finish_download(&self, download: &Download) -> bool {
        let outcome = download.1.wait();
        if let Err(error) = &outcome {
            report::unified_copy_failed(self.device.id(), download.0.len(), error);
        }
        self.state.lock().download_finished(download, outcome.is_ok());
        outcome.is_ok()
    }

    /// Returns a fence that completes after all earlier writes of the range on the device.
    ///
    /// # Errors
    /// The queue's.
    pub(crate) fn order_after_writes(
        &self,
        host: &RawBuffer,
        queue: &dyn Queue,
        range: Range<usize>,
    ) -> Result<Fence> {
        let src = self.raw.slice(range.clone())?;
        let claims = Claims::acquire(&mut [(&src, Access::Read)])?;
        let (nothing, nowhere) = (self.raw.slice(range.start..range.start)?, host.slice(..0)?);
        // SAFETY: it copies no byte.
        unsafe { enqueue_claimed(queue, &Operation::Copy { src: &nothing, dst: &nowhere }, claims) }
    }
}

/// Enqueues an operation after what was claimed, and commits the claims.
///
/// # Safety
/// * The claims, and the caller's holds, exclude conflicting use of the operation's bytes until it is complete.
unsafe fn enqueue_claimed(
    queue: &dyn Queue,
    operation: &Operation<'_>,
    mut claims: Claims<'_>,
) -> Result<Fence> {
    claims.wait_for_foreign_fences(queue);
    // SAFETY: the caller's promise.
    let fence = unsafe { queue.enqueue(operation, claims.after(), Timing::Off) }?;
    // SAFETY: a queue's fence completes after the operation, which is ordered after `after`.
    unsafe { claims.commit(&fence) };
    Ok(fence)
}

fn download_in_progress(range: &Range<usize>) -> Error {
    let text =
        format!("bytes {} to {} are on their way to the host; wait for that first", range.start, range.end);
    Error::new(ErrorKind::Busy, text)
}
