//! Memory that llvmpipe exported, for CUDA's software driver. The benchmark's tests use this file, too.

use std::{ffi::c_void, ptr::NonNull};

/// Maps memory that llvmpipe exported. A header is before it, with the bytes of the file and where the memory begins in it.
pub(crate) fn open(fd: i32, bytes: u64) -> Option<NonNull<u8>> {
    let mut header = [0_usize; 2];
    let length = size_of_val(&header);
    // SAFETY: the header has so many bytes.
    let read = unsafe { libc::pread(fd, header.as_mut_ptr().cast::<c_void>(), length, 0) };
    let [whole, offset] = header;
    if read != length as isize || offset as u64 + bytes > whole as u64 {
        return None;
    }
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping, which stays for the rest of the process.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), whole, access, flags, fd, 0) };
    // SAFETY: the descriptor is this function's now.
    unsafe { libc::close(fd) };
    (mapped != libc::MAP_FAILED).then(|| NonNull::new(mapped.cast::<u8>()))?.map(|start| {
        // SAFETY: the offset is within the mapping.
        unsafe { start.add(offset) }
    })
}
