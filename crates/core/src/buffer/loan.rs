//! Bytes lent to someone whose work their buffer does not see: another library, or another buffer over the same bytes.

use std::fmt;

use crate::{
    Access, Claims, Fence, RawBuffer, Result,
    hazard::{Dependencies, Retained, Ticket, WakeList},
    submit::claim::follows_other_device,
};

/// A buffer's bytes in the hands of someone outside, until this is dropped. Meanwhile operations and host views in conflict
/// with the loan's access answer [`Busy`](crate::ErrorKind::Busy), on all clones and slices of the allocation; beside a loan
/// for reading, others read. The memory stays alive. May be dropped on any thread, and waits for nothing.
pub struct Loan {
    buffer: RawBuffer,
    /// Taken when the loan ends.
    ticket: Option<Ticket>,
    after: Dependencies,
}

impl RawBuffer {
    /// Lends the buffer's bytes to someone outside. Does not wait for work in flight: see [`Loan::after`]. With
    /// [`Access::Write`] nobody else uses them meanwhile, whether or not they may be [written](Self::is_writable).
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) where a host view or another loan is open in conflict.
    pub fn lend(&self, access: Access) -> Result<Loan> {
        let (ticket, after) = Claims::acquire(&mut [(self, access)])?.into_loan();
        self.record_unknown_use();
        Ok(Loan { buffer: self.clone(), ticket, after })
    }
}

impl Loan {
    /// What was lent.
    #[must_use]
    pub fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    /// The work enqueued earlier that is in conflict with the loan: whoever uses the memory comes after it.
    #[must_use]
    pub fn after(&self) -> &[Fence] {
        &self.after
    }

    /// Blocks until the work before the loan is over. Its errors are told to who awaits it.
    pub fn wait_for_earlier_work(&self) {
        for fence in self.after.iter() {
            let _reported_by_the_transfer = fence.wait();
        }
    }

    /// Ends the loan with work still in flight: later uses of the bytes come after `fence`, and the memory lives until then.
    ///
    /// # Safety
    /// * `fence` is over only when everything that was done on the loan is over, and everything in [`after`](Self::after).
    pub unsafe fn end_after(mut self, fence: &Fence) {
        if let Some(ticket) = self.ticket.take() {
            self.buffer.record_unknown_use();
            let claims = [(&self.buffer.range(), &ticket)];
            let retained = Retained { damage: false, cross_device: follows_other_device(&self.after, fence) };
            self.buffer.hazards().commit(claims, fence, retained, &mut WakeList::default());
        }
    }

    /// Ends the loan with work still in flight that nothing else knows of: whoever uses the bytes next comes after the fences
    /// besides what was there before the loan. Later calls do nothing.
    pub fn return_after(&mut self, fences: &[Fence]) {
        if let Some(ticket) = self.ticket.take() {
            self.buffer.record_unknown_use();
            let fences = if crate::mutant!("core/loan-fences") { &[] } else { fences };
            self.buffer.hazards().close_after(&self.buffer.range(), ticket, fences);
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && !crate::mutant!("core/loan-ended")
        {
            self.buffer.record_unknown_use();
            self.buffer.hazards().withdraw(&self.buffer.range(), ticket, &mut WakeList::default());
        }
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("buffer", &self.buffer).field("after", &self.after()).finish()
    }
}
