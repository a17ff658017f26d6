//! Memory, streams and events of the other side, and ours for it: by their raw addresses and handles.

use std::{
    ffi::c_void,
    sync::{Mutex, PoisonError},
};

use transload::{
    Error, Transfer, TransferState,
    backend::executor::block_on,
    cuda::{Access, CudaStream, FenceEvent, streams::StreamUse},
};

use super::{
    answer, guarded,
    session::{Numbered, Session, refused},
};
use crate::roundtrip::Failure;

/// What a session keeps of the other side's.
#[derive(Default)]
pub(super) struct Adopted {
    streams: Numbered<CudaStream>,
    /// The last copy, and the event that was handed out for it.
    copy: Mutex<(Option<Transfer>, Option<FenceEvent>)>,
    using: Mutex<Option<StreamUse>>,
}

impl Adopted {
    /// Drops the last copy, which keeps its stream.
    pub(super) fn forget(&self) {
        *self.copy.lock().unwrap_or_else(PoisonError::into_inner) = (None, None);
    }
}

type Release = unsafe extern "C" fn(*mut c_void);

/// Called with the owner once it is not needed any more.
struct Owner {
    release: Option<Release>,
    owner: *mut c_void,
}

// SAFETY: the other side promises that its function may be called by any thread.
unsafe impl Send for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the other side's promise; it is called once.
            unsafe { release(self.owner) }
        }
    }
}

impl Session {
    /// # Safety
    /// * As for `transload_probe_adopt`.
    unsafe fn adopt(&self, address: u64, bytes: u64, stream: i64, owner: Owner) -> Result<i64, Failure> {
        let device = self.device()?;
        let bytes = usize::try_from(bytes).map_err(|_| Failure::Bytes(bytes))?;
        let after = match stream {
            -1 => Vec::new(),
            stream => vec![device.adopted.streams.get(stream)?.fence()?],
        };
        // SAFETY: the caller's promise.
        let array = unsafe { device.gpu.adopt_after::<u8>(address, bytes, owner, &after) }?;
        Ok(self.keep(array.into_raw()))
    }

    /// # Safety
    /// * As for `transload_probe_adopt_stream`.
    unsafe fn adopt_stream(&self, handle: u64, owner: Owner) -> Result<i64, Failure> {
        let device = self.device()?;
        let handle = usize::try_from(handle).map_err(|_| refused("no handle of a stream"))?;
        // SAFETY: the caller's promise.
        let stream = unsafe { device.gpu.adopt_stream(handle, owner) }?;
        Ok(device.adopted.streams.keep(stream))
    }

    /// # Safety
    /// * As for `transload_probe_copy`.
    unsafe fn copy(&self, src: i64, dst: i64, stream: i64, event: u64) -> Result<(), Failure> {
        let device = self.device()?;
        let (src, dst) = (self.buffer(src)?, self.buffer(dst)?);
        let mut copy = device.rt.manager().copy(&src, &dst);
        if event != 0 {
            let event = usize::try_from(event).map_err(|_| refused("no handle of an event"))?;
            // SAFETY: the caller's promise.
            copy = copy.after(&unsafe { device.gpu.fence_of_event(event) }?);
        }
        let on = if stream == -1 { None } else { Some(device.adopted.streams.get(stream)?) };
        if let Some(on) = &on {
            copy = copy.on(on);
        }
        let transfer = copy.submit();
        if transfer.state() == TransferState::Refused {
            return transfer.wait().map(drop).map_err(Error::into);
        }
        *device.adopted.copy.lock().unwrap_or_else(PoisonError::into_inner) = (Some(transfer), None);
        Ok(())
    }

    fn copy_event(&self) -> Result<u64, Failure> {
        let mut last = self.device()?.adopted.copy.lock().unwrap_or_else(PoisonError::into_inner);
        let transfer = last.0.as_ref().ok_or_else(|| refused("there was no copy"))?;
        let fence = block_on(transfer.enqueued())??.ok_or_else(|| refused("the copy needs no event"))?;
        let event = last.1.insert(FenceEvent::of(&fence)?);
        Ok(event.as_raw().addr() as u64)
    }

    fn begin_use(&self, buffer: i64, stream: i64) -> Result<(), Failure> {
        let adopted = &self.device()?.adopted;
        let begun = adopted.streams.get(stream)?.use_buffer(&self.buffer(buffer)?, Access::Write)?;
        *adopted.using.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
        Ok(())
    }

    fn end_use(&self) -> Result<(), Failure> {
        let begun = self.device()?.adopted.using.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(begun.ok_or_else(|| refused("no use began"))?.end()?)
    }
}

/// Takes in memory of the device, without a copy. Answers the buffer's number, and calls `release` also where it fails.
///
/// # Safety
/// * `session` is open. `release` is null or may be called by any thread.
/// * The memory stays until `release` is called. Work on it in flight is on the adopted stream, if any; later work is ordered with
///   the buffer's.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_adopt(
    session: *const Session,
    address: u64,
    bytes: u64,
    stream: i64,
    release: Option<Release>,
    owner: *mut c_void,
) -> i64 {
    let owner = Owner { release, owner };
    // SAFETY: the caller's promise.
    answer(|| unsafe { (*session).adopt(address, bytes, stream, owner) })
}

/// Takes in a stream. Answers its number, and calls `release` also where it fails.
///
/// # Safety
/// * `session` is open. `release` is null or may be called by any thread.
/// * `handle` is a stream of the device that lives until `release` is called, and is not captured; or that of a default stream.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_adopt_stream(
    session: *const Session,
    handle: u64,
    release: Option<Release>,
    owner: *mut c_void,
) -> i64 {
    let owner = Owner { release, owner };
    // SAFETY: the caller's promise.
    answer(|| unsafe { (*session).adopt_stream(handle, owner) })
}

/// Drops the session's handle of an adopted stream; does not wait.
///
/// # Safety
/// * `session` is open.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_drop_stream(session: *const Session, stream: i64) -> i64 {
    // SAFETY: the caller's promise.
    answer(|| unsafe { (*session).device()?.adopted.streams.drop(stream) }.map(|()| 0))
}

/// Copies a buffer over another: on an adopted stream, or for -1 on one of the library's, and after an event unless that is 0. Does
/// not wait.
///
/// # Safety
/// * `session` is open, and `event` alive.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_copy(
    session: *const Session,
    src: i64,
    dst: i64,
    stream: i64,
    event: u64,
) -> i64 {
    // SAFETY: the caller's promise.
    answer(|| unsafe { (*session).copy(src, dst, stream, event) }.map(|()| 0))
}

/// An event of the driver that is complete when the last copy is, valid until the next copy or drain; 0 for none.
///
/// # Safety
/// * `session` is open.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_copy_event(session: *const Session) -> u64 {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { (*session).copy_event() }).unwrap_or(0)
}

/// Begins a use of a buffer by work that the caller enqueues on an adopted stream. One at a time.
///
/// # Safety
/// * `session` is open.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_begin_use(
    session: *const Session,
    buffer: i64,
    stream: i64,
) -> i64 {
    // SAFETY: the caller's promise.
    answer(|| unsafe { (*session).begin_use(buffer, stream) }.map(|()| 0))
}

/// Ends the use: later work on the buffer comes after what was enqueued on the stream.
///
/// # Safety
/// * `session` is open.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_end_use(session: *const Session) -> i64 {
    // SAFETY: the caller's promise.
    answer(|| unsafe { (*session).end_use() }.map(|()| 0))
}
