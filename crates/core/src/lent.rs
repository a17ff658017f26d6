//! A range of a buffer lent to another buffer over the same bytes: while that one lives, this one's users keep away.

use std::fmt;

use crate::{Access, Fence, RawBuffer, Result, hazard::Ticket};

/// The right to use a range of a buffer in another way than through it: as another buffer over the same bytes, say, that has
/// a table of uses of its own. Whoever uses the range in conflict through the buffer meanwhile is answered `Busy`.
///
/// Dropped, it gives the range back at once; [`return_behind`](Self::return_behind) puts it behind work in flight.
pub struct Lent {
    buffer: RawBuffer,
    /// Taken when the range goes back.
    ticket: Option<Ticket>,
}

impl RawBuffer {
    /// Lends the buffer's range, to be read, or to be used in any way. Blocks until operations in conflict are over. For
    /// backends; a host view is what programs open.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) where a host view is open on the range in conflict, or it is lent already.
    pub fn lend(&self, access: Access) -> Result<Lent> {
        let ticket = self.hazards().open_view(self.range(), access, true)?;
        Ok(Lent { buffer: self.clone(), ticket: Some(ticket) })
    }

    /// As [`lend`](Self::lend), but answers `Busy` instead of waiting.
    ///
    /// # Errors
    /// As for `lend`.
    pub fn try_lend(&self, access: Access) -> Result<Lent> {
        let ticket = self.hazards().open_view(self.range(), access, false)?;
        Ok(Lent { buffer: self.clone(), ticket: Some(ticket) })
    }
}

impl Lent {
    /// Whose range it is.
    #[must_use]
    pub fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    /// Gives the range back while work is in flight on it: whoever uses it next comes after the fences.
    pub fn return_behind(&mut self, fences: &[Fence]) {
        if let Some(ticket) = self.ticket.take() {
            self.buffer.hazards().close_view_behind(ticket, fences);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.return_behind(&[]);
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({:?})", self.buffer)
    }
}
