//! A switch that makes the system refuse threads to this process, for tests alone in their process.

use std::{
    ffi::{c_int, c_void},
    mem,
    sync::atomic::{AtomicBool, Ordering},
};

static REFUSED: AtomicBool = AtomicBool::new(false);

/// While this lives, the process can start no thread.
pub(crate) struct NoThreads;

impl NoThreads {
    pub(crate) fn new() -> Self {
        REFUSED.store(true, Ordering::SeqCst);
        Self
    }
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        REFUSED.store(false, Ordering::SeqCst);
    }
}

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

/// Takes the place of the C library's function in this program, since a program's own symbols come first.
///
/// # Safety
///
/// As for the function in the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    if REFUSED.load(Ordering::SeqCst) {
        return libc::EAGAIN;
    }
    // SAFETY: the next definition of this name is the C library's, which has this type; the caller keeps what that one asks for.
    unsafe {
        let create = libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr());
        assert!(!create.is_null(), "the C library has threads");
        mem::transmute::<*mut c_void, Create>(create)(thread, attributes, start, argument)
    }
}
