//! A C library for tests: a process that has its own CUDA, such as one with PyTorch, loads it and must not notice.
//!
//! ```c
//! int32_t transload_probe_roundtrip(uint32_t ordinal, uint64_t bytes, uint64_t seed);
//! size_t  transload_probe_last_error(char *text, size_t length);
//! ```
//!
//! What it offers for DLPack is told in the module `dlpack`.

mod dlpack;
mod last_error;
mod roundtrip;

use std::{
    os::raw::c_char,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Went well.
const OK: i32 = 0;
/// A panic was caught.
const PANICKED: i32 = -100;

/// Sends random bytes from pinned memory to the device `cuda:ordinal` and back, and compares all of them. Opens the
/// backend, and leaves nothing of it behind.
///
/// Answers 0, or: -1 for a number of bytes that cannot be right, -2 for no driver or device, -3 for any other error of
/// the library, -4 for bytes that differ, -5 for anything left alive, -100 for a panic. [`transload_probe_last_error`]
/// tells more.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub extern "C" fn transload_probe_roundtrip(ordinal: u32, bytes: u64, seed: u64) -> i32 {
    match catch_unwind(|| roundtrip::roundtrip(ordinal, bytes, seed)) {
        Ok(Ok(())) => OK,
        Ok(Err(failure)) => {
            last_error::set(failure.to_string());
            failure.code()
        }
        Err(_) => {
            last_error::set("a panic inside the library".to_owned());
            PANICKED
        }
    }
}

/// Writes the text of the last error, cut to `length` - 1 bytes and terminated by a 0. Answers how many bytes the whole
/// text has; with a null pointer it writes nothing.
///
/// # Safety
/// * `text` must be null or point to `length` writable bytes.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transload_probe_last_error(text: *mut c_char, length: usize) -> usize {
    let written = catch_unwind(AssertUnwindSafe(|| {
        last_error::with(|error| {
            let Some(room) = length.checked_sub(1).filter(|_| !text.is_null()) else { return error.len() };
            let count = error.len().min(room);
            // SAFETY: `count + 1` bytes are at most `length`, which the caller promises.
            unsafe {
                text.cast::<u8>().copy_from_nonoverlapping(error.as_ptr(), count);
                text.add(count).write(0);
            }
            error.len()
        })
    }));
    written.unwrap_or(0)
}
