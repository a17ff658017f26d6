//! The host's look at a buffer's bytes: while it is open, no operation that conflicts with it can be enqueued.

use std::{
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
};

use crate::{
    Access, DeviceId, RawBuffer, Result,
    hazard::{Opening, Ticket},
    host_access::{self, HostAccess},
    obstacle::Obstacle,
};

/// Readable bytes. Operations that would write them answer `Busy` until it is dropped.
#[derive(Debug)]
pub struct HostView<'a> {
    open: Open<'a>,
}

/// Writable bytes. Operations that would use them answer `Busy` until it is dropped.
#[derive(Debug)]
pub struct HostViewMut<'a> {
    open: Open<'a>,
}

#[derive(Debug)]
struct Open<'a> {
    buffer: &'a RawBuffer,
    address: NonNull<u8>,
    ticket: Ticket,
}

// SAFETY: a view is a reference to bytes of a buffer that is Sync; the ticket keeps others out.
unsafe impl Send for Open<'_> {}
// SAFETY: as above.
unsafe impl Sync for Open<'_> {}

impl<'a> Open<'a> {
    fn new(buffer: &'a RawBuffer, access: Access, wait: bool) -> Result<Self> {
        let (address, ticket) = buffer.open_view(access, wait)?;
        Ok(Self::opened(buffer, access, address, ticket))
    }

    /// Waits by wakers. Until it is open nothing is held, so the future may be dropped at any time.
    async fn when_free(buffer: &'a RawBuffer, access: Access) -> Result<Self> {
        loop {
            let address = buffer.viewable(access)?;
            let in_the_way = match buffer.hazards().try_open_view(buffer.range(), access)? {
                Opening::Open(ticket) => return Ok(Self::opened(buffer, access, address, ticket)),
                Opening::Pending => None,
                Opening::After(fences) => Some(fences),
            };
            match in_the_way {
                None => Obstacle::claim(buffer, access).await,
                Some(fences) => {
                    for fence in &fences {
                        let _reported_by_the_transfer = fence.done().await;
                    }
                    buffer.hazards().forget(&fences);
                }
            }
        }
    }

    fn opened(buffer: &'a RawBuffer, access: Access, address: NonNull<u8>, ticket: Ticket) -> Self {
        let announced = match access {
            Access::Read => HostAccess::Read,
            Access::Write => HostAccess::Write,
        };
        host_access::note(address.as_ptr().addr(), buffer.len(), announced);
        buffer.is_used_by(DeviceId::Cpu);
        Self { buffer, address, ticket }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // A device may have read beside it, and the host again behind that.
        self.buffer.is_used_by(DeviceId::Cpu);
        if !crate::mutant!("core/view-closed") {
            self.buffer.hazards().close_view(self.ticket);
        }
    }
}

impl<'a> HostView<'a> {
    pub(crate) fn open(buffer: &'a RawBuffer, wait: bool) -> Result<Self> {
        Open::new(buffer, Access::Read, wait).map(|open| Self { open })
    }
}

impl<'a> HostViewMut<'a> {
    pub(crate) fn open(buffer: &'a RawBuffer, wait: bool) -> Result<Self> {
        Open::new(buffer, Access::Write, wait).map(|open| Self { open })
    }
}

impl RawBuffer {
    /// As [`read`](Self::read) for a task: waits by wakers, under any executor, and blocks no thread. Dropped before it is
    /// ready, it has opened nothing.
    ///
    /// # Errors
    /// As for `read`.
    pub async fn read_async(&self) -> Result<HostView<'_>> {
        Open::when_free(self, Access::Read).await.map(|open| HostView { open })
    }

    /// As [`write`](Self::write) for a task; see [`read_async`](Self::read_async).
    ///
    /// # Errors
    /// As for `write`.
    pub async fn write_async(&self) -> Result<HostViewMut<'_>> {
        Open::when_free(self, Access::Write).await.map(|open| HostViewMut { open })
    }
}

impl Deref for HostView<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the storage promises initialised memory of this length while the buffer lives, and the view's entry in
        // the hazard table keeps every writer away until the view is dropped.
        unsafe { slice::from_raw_parts(self.open.address.as_ptr(), self.open.buffer.len()) }
    }
}

impl Deref for HostViewMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as for `HostView`; a writable view keeps every other user away.
        unsafe { slice::from_raw_parts(self.open.address.as_ptr(), self.open.buffer.len()) }
    }
}

impl DerefMut for HostViewMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { slice::from_raw_parts_mut(self.open.address.as_ptr(), self.open.buffer.len()) }
    }
}
