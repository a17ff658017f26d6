//! Host access to a range, which excludes conflicting device work and guards.

use std::{fmt, ops::Range, ptr::NonNull};

use transload_core::{
    Access, Error, ErrorKind, RangeGuard, RawBuffer, Result, TryLockResult,
    host_access::{self, HostAccess},
};

use super::{
    inner::Inner,
    range_locks::{RangeLockId, Side},
};

/// Bytes that the host may read or write until this is dropped.
pub(crate) struct HostAccessGuard<'a> {
    inner: &'a Inner,
    id: RangeLockId,
    range: Range<usize>,
    access: Access,
    address: NonNull<u8>,
    /// Whether the host's bytes are current: only then are writes uploaded on close.
    ready: bool,
    /// RangeGuard on the memory that devices use.
    hold: Option<RangeGuard>,
    /// RangeGuard on the host's copy, in the explicit mode.
    copy: Option<RangeGuard>,
}

// SAFETY: it acts as a reference to bytes of `Sync` buffers; the holds exclude other users.
unsafe impl Send for HostAccessGuard<'_> {}
// SAFETY: as above; writing needs `&mut`.
unsafe impl Sync for HostAccessGuard<'_> {}

impl Inner {
    /// Opens a range for the host. Waits for conflicting device work, or returns `Busy` if `wait` is false; downloads
    /// device writes in both cases.
    ///
    /// # Errors
    /// `Busy` if a conflicting slice or guard is open; the driver's.
    pub(crate) fn open(
        &self,
        range: Range<usize>,
        access: Access,
        wait: bool,
    ) -> Result<HostAccessGuard<'_>> {
        self.retry_failed_uploads()?;
        let theirs = self.raw.slice(range.clone())?;
        let mut open = loop {
            let mut state = self.state.lock();
            state.locks.check(&range, Side::Host, access)?;
            state.place.refresh(&self.raw);
            match theirs.try_lock_range(access)? {
                TryLockResult::Locked(hold) => {
                    if self.host.is_some() {
                        // Both under the lock, so that other writes are not counted as this one.
                        state.refresh(self.raw.writes(), u64::from(access == Access::Write));
                    }
                    let id = state.locks.add(range.clone(), Side::Host, access);
                    state.place.host_accessed(&self.raw, &range);
                    let address = NonNull::dangling();
                    let hold = Some(hold);
                    break HostAccessGuard {
                        inner: self,
                        id,
                        range,
                        access,
                        address,
                        ready: false,
                        hold,
                        copy: None,
                    };
                }
                TryLockResult::Blocked(blocked) => {
                    drop(state);
                    if wait { blocked.wait()? } else { blocked.check()? }
                }
            }
        };
        let ours = match &self.host {
            Some(host) => {
                let copy = host.slice(open.range.clone())?;
                self.download(open.id, &open.range, wait)?;
                open.copy = Some(hold_range(&copy, access, wait)?);
                copy
            }
            None => theirs,
        };
        open.address = ours.host_address().ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("the host cannot address {} memory", ours.place()))
        })?;
        let announced = match access {
            Access::Read => HostAccess::Read,
            Access::Write => HostAccess::Write,
        };
        host_access::note(open.address.as_ptr().addr(), open.range.len(), announced);
        open.ready = true;
        Ok(open)
    }
}

fn hold_range(buffer: &RawBuffer, access: Access, wait: bool) -> Result<RangeGuard> {
    loop {
        match buffer.try_lock_range(access)? {
            TryLockResult::Locked(hold) => return Ok(hold),
            TryLockResult::Blocked(blocked) if wait => blocked.wait()?,
            TryLockResult::Blocked(blocked) => blocked.check()?,
        }
    }
}

impl HostAccessGuard<'_> {
    /// Returns the address of the first byte: readable for [`len`](Self::len) bytes while this lives, and writable if
    /// opened for that.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }
}

impl Drop for HostAccessGuard<'_> {
    fn drop(&mut self) {
        // Do this first: once the hold ends, a device may write the range.
        self.inner.state.lock().locks.remove(self.id);
        drop(self.copy.take());
        if let Some(hold) = self.hold.take()
            && self.ready
            && self.access == Access::Write
        {
            self.inner.upload(hold);
        }
    }
}

impl fmt::Debug for HostAccessGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostAccessGuard")
            .field("bytes", &self.range)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
