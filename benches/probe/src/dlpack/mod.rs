//! DLPack for a Python process: buffers of ours as tensors, and tensors as buffers of ours, by their raw pointers.
//!
//! ```c
//! void    *transload_probe_dlpack_open(uint32_t ordinal);                  // UINT32_MAX: the host alone
//! int64_t  transload_probe_dlpack_close(void *session);                    // frees it; -5 where anything is alive
//! int64_t  transload_probe_dlpack_allocate(void *session, uint32_t kind, uint64_t bytes);   // a buffer's number
//! uint64_t transload_probe_dlpack_address(void *session, int64_t buffer);
//! int64_t  transload_probe_dlpack_fill(void *session, int64_t buffer, uint8_t byte);        // on the session's stream
//! int64_t  transload_probe_dlpack_compare(void *session, int64_t buffer, uint8_t byte);     // -4 where a byte differs
//! int64_t  transload_probe_dlpack_drop(void *session, int64_t buffer);
//! int64_t  transload_probe_dlpack_drain(void *session);
//! int64_t  transload_probe_dlpack_imported(void *session);                 // tensors not given back yet
//! int64_t  transload_probe_dlpack_stream(void *session);                   // for a producer's __dlpack__
//! int64_t  transload_probe_dlpack_is_busy(void *session);                  // whether its stream has work
//! void    *transload_probe_dlpack_export(void *session, int64_t buffer, const struct wish *wish);
//! int64_t  transload_probe_dlpack_import(void *session, void *tensor, uint32_t versioned);
//! void     transload_probe_dlpack_python(is_valid, get_pointer);           // `PyCapsule_IsValid`, `PyCapsule_GetPointer`
//! void     transload_probe_dlpack_destroy_versioned(PyObject *capsule);    // for capsules, and `…_unversioned`
//! ```
//!
//! Memory and streams that Python keeps, on Linux and Windows. `release(owner)` is called once, by a thread of the library:
//!
//! ```c
//! int64_t  transload_probe_adopt(void *session, uint64_t address, uint64_t bytes, int64_t stream, release, void *owner);
//! int64_t  transload_probe_adopt_stream(void *session, uint64_t handle, release, void *owner);
//! int64_t  transload_probe_drop_stream(void *session, int64_t stream);
//! int64_t  transload_probe_copy(void *session, int64_t src, int64_t dst, int64_t stream, uint64_t event);   // does not wait
//! uint64_t transload_probe_copy_event(void *session);                      // after the last copy; until the next one
//! int64_t  transload_probe_begin_use(void *session, int64_t buffer, int64_t stream);
//! int64_t  transload_probe_end_use(void *session);
//! ```
//!
//! Negative answers are errors, as of `transload_probe_roundtrip`, and -6 for what is busy, -7 for what is refused; so is a
//! null pointer. `transload_probe_last_error` tells more.

#[cfg(any(target_os = "linux", windows))]
mod adopt;
mod capsule;
mod session;

use std::{
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

use transload_dlpack::{DLManagedTensor, DLManagedTensorVersioned};

use crate::{PANICKED, last_error, roundtrip::Failure};
use session::{Session, Wish};

fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, i64> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(failure)) => {
            last_error::set(failure.to_string());
            Err(failure.code().into())
        }
        Err(_) => {
            last_error::set("a panic inside the library".to_owned());
            Err(PANICKED.into())
        }
    }
}

fn answer(work: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    guarded(work).unwrap_or_else(|code| code)
}

/// A session with a device, or with the host alone for the largest number; null where there is no such device.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn transload_probe_dlpack_open(ordinal: u32) -> *mut Session {
    guarded(|| Session::open(ordinal)).map_or(ptr::null_mut(), |session| Box::into_raw(Box::new(session)))
}

/// Ends a session, and says whether anything of it is still alive.
///
/// # Safety
/// * `session` came from `open` and is not used hereafter.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_close(session: *mut Session) -> i64 {
    // SAFETY: the caller's promise.
    let session = unsafe { Box::from_raw(session) };
    answer(|| session.close().map(|()| 0))
}

/// Allocates; kinds are numbered from 0: pageable, pinned, mapped, device, unified. Answers the buffer's number.
///
/// # Safety
/// * `session` is open.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_allocate(
    session: *const Session,
    kind: u32,
    bytes: u64,
) -> i64 {
    // SAFETY: the caller's promise.
    answer(|| unsafe { &*session }.allocate(kind, bytes))
}

/// Where a buffer is: for the device where it sees it, else for the host. 0 for none.
///
/// # Safety
/// * `session` is open.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_address(session: *const Session, buffer: i64) -> u64 {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { &*session }.address(buffer)).unwrap_or(0)
}

/// Fills a buffer: device and unified memory on the session's stream, which is not waited for.
///
/// # Safety
/// * `session` is open.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_fill(
    session: *const Session,
    buffer: i64,
    byte: u8,
) -> i64 {
    // SAFETY: the caller's promise.
    answer(|| unsafe { &*session }.fill(buffer, byte).map(|()| 0))
}

/// Waits for a buffer's content, and compares all of it.
///
/// # Safety
/// * `session` is open.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_compare(
    session: *const Session,
    buffer: i64,
    byte: u8,
) -> i64 {
    // SAFETY: the caller's promise.
    answer(|| unsafe { &*session }.compare(buffer, byte).map(|()| 0))
}

/// Drops the session's handle of a buffer; does not wait.
///
/// # Safety
/// * `session` is open.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_drop(session: *const Session, buffer: i64) -> i64 {
    // SAFETY: the caller's promise.
    answer(|| unsafe { &*session }.drop_buffer(buffer).map(|()| 0))
}

/// Waits for work on what was dropped, and gives it back.
///
/// # Safety
/// * `session` is open.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_drain(session: *const Session) -> i64 {
    // SAFETY: the caller's promise.
    answer(|| unsafe { &*session }.drain().map(|()| 0))
}

/// How many imported tensors are alive.
///
/// # Safety
/// * `session` is open.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_imported(session: *const Session) -> i64 {
    // SAFETY: the caller's promise.
    answer(|| Ok(unsafe { &*session }.imported()))
}

/// What to pass as `stream` to a producer of CUDA memory.
///
/// # Safety
/// * `session` is open.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_stream(session: *const Session) -> i64 {
    // SAFETY: the caller's promise.
    answer(|| unsafe { &*session }.protocol_stream())
}

/// 1 while the session's stream has work, else 0.
///
/// # Safety
/// * `session` is open.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_is_busy(session: *const Session) -> i64 {
    // SAFETY: the caller's promise.
    answer(|| unsafe { &*session }.is_busy().map(i64::from))
}

/// Exports a buffer; the tensor is the caller's then.
///
/// # Safety
/// * `session` is open, `wish` is valid, and its shape has `ndim` numbers.
/// * A stream that the wish names lives until the tensor's deleter has returned and the memory was used again or freed.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_export(
    session: *const Session,
    buffer: i64,
    wish: *const Wish,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { (*session).export(buffer, &*wish) }).unwrap_or(ptr::null_mut())
}

/// Imports a tensor, which stays the caller's where this fails. Answers the buffer's number. A CUDA tensor's producer was
/// given the session's stream.
///
/// # Safety
/// * `session` is open; `tensor` is a valid tensor of the form that `versioned` says, which the caller owns, and nobody uses
///   its memory in conflict with the buffer.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_import(
    session: *const Session,
    tensor: *mut c_void,
    versioned: u32,
) -> i64 {
    // SAFETY: the caller's promise.
    answer(|| unsafe {
        match versioned {
            0 => (*session).import::<DLManagedTensor>(tensor.cast()),
            _ => (*session).import::<DLManagedTensorVersioned>(tensor.cast()),
        }
    })
}
