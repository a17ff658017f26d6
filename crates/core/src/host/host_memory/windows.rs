//! Available memory on Windows.

use crate::MemoryInfo;

/// `MEMORYSTATUSEX` of the Windows headers.
#[repr(C)]
#[derive(Default)]
struct Status {
    length: u32,
    load: u32,
    total: u64,
    available: u64,
    // Page file and address space.
    others: [u64; 5],
}

#[link(name = "kernel32")]
unsafe extern "system" {
    fn GlobalMemoryStatusEx(status: *mut Status) -> i32;
}

/// Returns available and total bytes of main memory; `None` if the call fails.
pub(crate) fn memory() -> Option<MemoryInfo> {
    let mut status = Status { length: size_of::<Status>() as u32, ..Status::default() };
    // SAFETY: the structure has the system's layout, contains its own size, and is valid for the call.
    let known = unsafe { GlobalMemoryStatusEx(&raw mut status) } != 0;
    known.then_some(MemoryInfo { free: status.available, total: status.total })
}

#[cfg(test)]
#[path = "../../../tests/unit/windows.rs"]
mod tests;
