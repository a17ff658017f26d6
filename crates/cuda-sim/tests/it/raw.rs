//! Owned raw memory and random content for tests.

use std::ptr;

use transload_cuda_sim::harness::{EndCheck, TestDevice};
use transload_cuda_sys::{AsStream, Context, Device, DriverError, Result, Stream, StreamOptions, check, ffi};

pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const INVALID_HANDLE: u32 = 400;
pub(crate) const NOT_READY: u32 = 600;

/// A device's context, current on this thread, with a stream.
pub(crate) struct Bench {
    pub(crate) device: TestDevice,
    pub(crate) context: Context,
    /// Dropped last: checks that nothing is alive and nothing raced.
    pub(crate) end: Option<EndCheck>,
}

impl Bench {
    pub(crate) fn new(device: TestDevice) -> Self {
        let end = Some(device.end_check());
        Self { end, ..Self::unchecked(device) }
    }

    /// For a test that leaks or races on purpose.
    pub(crate) fn unchecked(device: TestDevice) -> Self {
        let context = Context::primary(Device::new(device.ordinal()).expect("device")).expect("context");
        Self { device, context, end: None }
    }

    pub(crate) fn stream(&self) -> Stream {
        Stream::new(&self.context, StreamOptions::default()).expect("stream")
    }

    pub(crate) fn blocking_stream(&self) -> Stream {
        Stream::new(&self.context, StreamOptions { blocking: true, priority: 0 }).expect("stream")
    }

    pub(crate) fn memory(&self, bytes: usize) -> DeviceMemory {
        let _bound = self.context.enter().expect("enter");
        let mut address = 0;
        // SAFETY: the out pointer is valid.
        check("cuMemAlloc", unsafe { ffi::cuMemAlloc_v2(&mut address, bytes) }).expect("device memory");
        DeviceMemory { context: self.context.clone(), address, bytes }
    }

    pub(crate) fn pinned(&self, bytes: usize) -> Pinned {
        let _bound = self.context.enter().expect("enter");
        let mut start = ptr::null_mut();
        // SAFETY: the out pointer is valid.
        check("cuMemHostAlloc", unsafe { ffi::cuMemHostAlloc(&mut start, bytes, 2) }).expect("pinned memory");
        let mut pinned = Pinned { context: self.context.clone(), start: start.cast(), bytes };
        pinned.bytes_mut().fill(0);
        pinned
    }
}

/// Device memory, freed on drop.
pub(crate) struct DeviceMemory {
    context: Context,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.enter() {
            // SAFETY: the memory is owned.
            let _ = unsafe { ffi::cuMemFree_v2(self.address) };
        }
    }
}

/// Pinned memory, freed on drop.
pub(crate) struct Pinned {
    context: Context,
    start: *mut u8,
    pub(crate) bytes: usize,
}

// SAFETY: the memory is owned and not tied to a thread.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(crate) fn address(&self) -> usize {
        self.start.addr()
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        self.start
    }

    /// Returns the current content. Simulated work changes it only inside driver calls.
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        let mut seen = vec![0; self.bytes];
        // SAFETY: the memory is owned and initialised, and as long as the vector.
        unsafe { std::ptr::copy_nonoverlapping(self.start, seen.as_mut_ptr(), self.bytes) };
        seen
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is owned, and callers have waited for work that uses it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }

    pub(crate) fn set(&mut self, content: &[u8]) {
        self.bytes_mut()[..content.len()].copy_from_slice(content);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.enter() {
            // SAFETY: the memory is owned.
            let _ = unsafe { ffi::cuMemFreeHost(self.start.cast()) };
        }
    }
}

pub(crate) fn upload(stream: &Stream, to: u64, from: &Pinned, offset: usize, bytes: usize) -> Result<()> {
    let _bound = stream.context().enter()?;
    // SAFETY: tests keep the pinned memory until the stream is done.
    check("cuMemcpyHtoDAsync", unsafe {
        ffi::cuMemcpyHtoDAsync_v2(to, from.pointer().add(offset).cast(), bytes, stream.as_raw())
    })
}

pub(crate) fn download(stream: &Stream, to: &Pinned, offset: usize, from: u64, bytes: usize) -> Result<()> {
    let _bound = stream.context().enter()?;
    // SAFETY: as above.
    check("cuMemcpyDtoHAsync", unsafe {
        ffi::cuMemcpyDtoHAsync_v2(to.pointer().add(offset).cast(), from, bytes, stream.as_raw())
    })
}

pub(crate) fn fill(stream: &Stream, to: u64, value: u8, bytes: usize) -> Result<()> {
    let _bound = stream.context().enter()?;
    // SAFETY: tests own the memory.
    check("cuMemsetD8Async", unsafe { ffi::cuMemsetD8Async(to, value, bytes, stream.as_raw()) })
}

/// Returns the content of device memory, read by a synchronous copy after a context synchronisation.
pub(crate) fn contents(bench: &Bench, address: u64, bytes: usize) -> Vec<u8> {
    bench.context.synchronize().expect("healthy");
    let _bound = bench.context.enter().expect("enter");
    let mut out = vec![0; bytes];
    // SAFETY: the vector has `bytes` bytes.
    check("cuMemcpyDtoH", unsafe { ffi::cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), address, bytes) })
        .expect("read");
    out
}

/// Returns the driver's error code.
#[track_caller]
pub(crate) fn code<T: std::fmt::Debug>(result: Result<T>) -> u32 {
    match result {
        Err(DriverError::Call { code, .. }) => code,
        other => panic!("expected a driver's code, got {other:?}"),
    }
}
