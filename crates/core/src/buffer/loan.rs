//! Loans: bytes lent to a user whose work is not tracked, such as another library, or another buffer over the
//! same bytes.

use std::fmt;

use crate::{
    Access, Claims, Fence, RawBuffer, Result,
    hazard::{Dependencies, Ticket, WakeList},
};

/// Bytes of a buffer lent to an external user, until this is dropped. Meanwhile, conflicting operations and
/// host views get [`Busy`](crate::ErrorKind::Busy), on all clones and slices of the allocation; reads are
/// allowed during a loan for reading. Keeps the memory alive. May be dropped on any thread, and never waits.
pub struct Loan {
    buffer: RawBuffer,
    /// Taken when the loan ends.
    ticket: Option<Ticket>,
    after: Dependencies,
}

impl RawBuffer {
    /// Lends the buffer's bytes to an external user. Does not wait for work in flight: see [`Loan::after`].
    /// With [`Access::Write`] the loan is exclusive, even if the memory is not [writable](Self::is_writable).
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) if a conflicting host view or loan is open;
    /// [`SourceFailed`](crate::ErrorKind::SourceFailed) if bytes may be damaged, also for writing, like
    /// [`write`](Self::write): a borrower that replaces them all needs [`assume_written`](Self::assume_written).
    pub fn lend(&self, access: Access) -> Result<Loan> {
        let (ticket, after) = Claims::acquire(&mut [(self, access)])?.into_loan();
        self.record_unknown_use();
        let loan = Loan { buffer: self.clone(), ticket, after };
        loan.check_sources()?;
        Ok(loan)
    }
}

impl Loan {
    /// Returns the lent buffer.
    #[must_use]
    pub fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    /// Returns the fences of earlier conflicting work: the borrower must wait for them before it uses the
    /// memory, and then [check the sources](Self::check_sources).
    #[must_use]
    pub fn after(&self) -> &[Fence] {
        &self.after
    }

    /// Blocks until the work before the loan is complete.
    ///
    /// # Errors
    /// Like [`check_sources`](Self::check_sources). Other errors are reported by the work's own transfers.
    pub fn wait_for_earlier_work(&self) -> Result<()> {
        if self.after.is_empty() {
            // Checked when it was lent.
            return Ok(());
        }
        for fence in self.after.iter() {
            let _reported_by_the_transfer = fence.wait();
        }
        self.check_sources()
    }

    /// Checks whether work before the loan that wrote the bytes is known to have failed. Does not wait: call it when
    /// that work is complete, also if a device waited for it.
    ///
    /// # Errors
    /// [`SourceFailed`](crate::ErrorKind::SourceFailed) if it did, so that bytes may be damaged.
    pub fn check_sources(&self) -> Result<()> {
        if crate::mutant!("core/loan-refuses-damage") {
            return Ok(());
        }
        self.buffer.hazards().check_sources(&self.buffer.range())
    }

    /// Ends the loan with the borrower's work still in flight: later uses of the bytes wait for the fences, and
    /// for the work before the loan. The memory lives until then. Later calls do nothing.
    pub fn end_after(&mut self, fences: &[Fence]) {
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
