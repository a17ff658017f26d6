//! Host views: access to a buffer's bytes for the host. While one is open, no conflicting operation can be
//! enqueued.

use std::{
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
};

use crate::{
    Access, DeviceId, RawBuffer, Result,
    hazard::{Attempt, Opening, Ticket, WakeList, in_flight},
    host::host_access::{self, HostAccess},
    submit::unblocked::{Turns, Unblocked},
};

/// Readable bytes. Until it is dropped, operations that would write them get `Busy`.
#[derive(Debug)]
pub struct HostView<'a> {
    open: OpenView<'a>,
}

/// Writable bytes. Until it is dropped, operations that would use them get `Busy`.
#[derive(Debug)]
pub struct HostViewMut<'a> {
    open: OpenView<'a>,
}

#[derive(Debug)]
struct OpenView<'a> {
    buffer: &'a RawBuffer,
    address: NonNull<u8>,
    ticket: Ticket,
}

// SAFETY: a view is a reference to bytes of a buffer that is Sync; the ticket excludes conflicting users.
unsafe impl Send for OpenView<'_> {}
// SAFETY: as above.
unsafe impl Sync for OpenView<'_> {}

impl<'a> OpenView<'a> {
    fn new(buffer: &'a RawBuffer, access: Access, opening: Opening, wait: bool) -> Result<Self> {
        let turns = Turns::default();
        loop {
            let obstacle = match Self::attempt(buffer, access, opening, wait.then_some(&turns))? {
                Ok(open) => return Ok(open),
                Err(obstacle) => obstacle,
            };
            if wait {
                obstacle.block(&turns);
            } else if !obstacle.is_resolved() {
                return Err(in_flight(&buffer.range()));
            }
            buffer.hazards().forget(&buffer.range(), obstacle.until());
        }
    }

    /// Waits by wakers. Holds nothing until the view is open, so the future may be dropped at any time.
    async fn open_when_free(buffer: &'a RawBuffer, access: Access) -> Result<Self> {
        let turns = Turns::default();
        loop {
            match Self::attempt(buffer, access, Opening::View, Some(&turns))? {
                Ok(open) => return Ok(open),
                Err(obstacle) => {
                    let until = obstacle.until().to_vec();
                    obstacle.await;
                    buffer.hazards().forget(&buffer.range(), &until);
                }
            }
        }
    }

    /// Opens a view, or returns what blocks it.
    fn attempt(
        buffer: &'a RawBuffer,
        access: Access,
        opening: Opening,
        turns: Option<&Turns>,
    ) -> Result<Result<Self, Unblocked>> {
        let address = buffer.view_address(access)?;
        let (range, turn) = (buffer.range(), turns.and_then(|turns| turns.of(buffer)));
        Ok(match buffer.hazards().try_open(&range, access, turn, opening)? {
            Attempt::Held(ticket) => Ok(Self::opened(buffer, access, address, ticket)),
            Attempt::Blocked(before) => Err(Unblocked::before(buffer, range, access, before, turns)),
        })
    }

    fn opened(buffer: &'a RawBuffer, access: Access, address: NonNull<u8>, ticket: Ticket) -> Self {
        let announced = match access {
            Access::Read => HostAccess::Read,
            Access::Write => HostAccess::Write,
        };
        // Closed also if the hook panics.
        let open = Self { buffer, address, ticket };
        host_access::note(address.as_ptr().addr(), buffer.len(), announced);
        buffer.record_use_by(DeviceId::Cpu);
        open
    }
}

impl Drop for OpenView<'_> {
    fn drop(&mut self) {
        // A device may have read concurrently, after which the host used it again.
        self.buffer.record_use_by(DeviceId::Cpu);
        if !crate::mutant!("core/view-closed") {
            self.buffer.hazards().withdraw(&self.buffer.range(), self.ticket, &mut WakeList::default());
        }
    }
}

impl<'a> HostView<'a> {
    pub(crate) fn open(buffer: &'a RawBuffer, wait: bool) -> Result<Self> {
        OpenView::new(buffer, Access::Read, Opening::View, wait).map(|open| Self { open })
    }
}

impl<'a> HostViewMut<'a> {
    pub(crate) fn open(buffer: &'a RawBuffer, opening: Opening, wait: bool) -> Result<Self> {
        OpenView::new(buffer, Access::Write, opening, wait).map(|open| Self { open })
    }
}

impl RawBuffer {
    /// Like [`read`](Self::read), but for tasks: waits by wakers, under any executor, and blocks no thread.
    /// If the future is dropped before it completes, nothing was opened.
    ///
    /// # Errors
    /// Like `read`.
    pub async fn read_async(&self) -> Result<HostView<'_>> {
        OpenView::open_when_free(self, Access::Read).await.map(|open| HostView { open })
    }

    /// Like [`write`](Self::write), but for tasks; see [`read_async`](Self::read_async).
    ///
    /// # Errors
    /// Like `write`.
    pub async fn write_async(&self) -> Result<HostViewMut<'_>> {
        OpenView::open_when_free(self, Access::Write).await.map(|open| HostViewMut { open })
    }
}

impl Deref for HostView<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the storage promises initialised memory of this length while the buffer lives, and the
        // view's entry in the hazard table excludes every writer until the view is dropped.
        unsafe { slice::from_raw_parts(self.open.address.as_ptr(), self.open.buffer.len()) }
    }
}

impl Deref for HostViewMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as for `HostView`; a writable view excludes every other user.
        unsafe { slice::from_raw_parts(self.open.address.as_ptr(), self.open.buffer.len()) }
    }
}

impl DerefMut for HostViewMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { slice::from_raw_parts_mut(self.open.address.as_ptr(), self.open.buffer.len()) }
    }
}
