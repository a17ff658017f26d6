//! Hand-written staging between pageable memory and a device: persistent threads, each with two pinned buffers and a stream.

use std::{
    os::raw::c_void,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Result, bail, ensure};
use transload_core::MemoryKind;
use transload_cuda_sys::{Context, check, cust::sys::CUevent, cust::sys::CUstream, ffi};

use super::{Reference, threads::ReferenceThreads};
use crate::{address::Address, raw_memory::RawMemory};

const THREADS: usize = 8;
const BUFFER_BYTES: usize = 4 << 20;
const SMALLEST: usize = 256 << 10;

/// Threads that stage, and how they do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StagedForm {
    /// Number of threads.
    pub threads: usize,
    /// Bytes of a buffer, at most.
    pub bytes: usize,
    /// Whether threads that wait sleep, as they should where processors are few.
    pub sleeps: bool,
}

/// Copies in pieces; each idle thread takes the next one.
#[derive(Debug)]
pub struct Staged {
    shared: Arc<Shared>,
    threads: ReferenceThreads,
}

#[derive(Debug)]
struct Shared {
    up: bool,
    sleeps: bool,
    pieces: Vec<Piece>,
    /// The next piece.
    next: AtomicUsize,
}

/// Bytes of the host and of the device, at most as many as a buffer has.
#[derive(Debug)]
struct Piece {
    host: *mut u8,
    device: u64,
    bytes: usize,
}

// SAFETY: the constructor's caller promises memory that nobody else uses during a movement, and pieces do not overlap.
unsafe impl Send for Piece {}
// SAFETY: as above; a thread takes a piece by a counter.
unsafe impl Sync for Piece {}

impl Staged {
    /// Starts the threads and pins their buffers, for copies of so many bytes from one address to another, all one way.
    ///
    /// # Errors
    /// The driver's; two addresses that are not one of the host's and one of a device.
    ///
    /// # Safety
    /// * The bytes of each copy must be readable at its source and writable at its destination while the value lives, the
    ///   destinations must not overlap, and nobody else may use them while a movement is in flight.
    pub unsafe fn new(context: &Context, copies: &[(Address, Address, usize)]) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            Self::with(context, copies, StagedForm { threads: THREADS, bytes: BUFFER_BYTES, sleeps: false })
        }
    }

    /// Like [`new`](Self::new), in a given form.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// * As there.
    pub unsafe fn with(
        context: &Context,
        copies: &[(Address, Address, usize)],
        StagedForm { threads, bytes: most, sleeps }: StagedForm,
    ) -> Result<Self> {
        let total: usize = copies.iter().map(|(.., bytes)| bytes).sum();
        let most = most.max(SMALLEST);
        let even = total.div_ceil(2 * threads).next_multiple_of(64 << 10);
        let longest = even.clamp(SMALLEST, most);
        let is_up = |(src, _, _): &(Address, Address, usize)| matches!(src, Address::Host(_));
        let up = copies.first().is_some_and(is_up);
        let mut pieces = Vec::new();
        for copy @ (src, dst, bytes) in copies {
            let (Address::Host(host), Address::Device(device)) =
                (if up { (*src, *dst) } else { (*dst, *src) })
            else {
                bail!("staging is between the host and a device");
            };
            ensure!(is_up(copy) == up, "all copies must go the same way");
            for start in (0..*bytes).step_by(longest) {
                // SAFETY: within the memory that the caller promises.
                let host = unsafe { host.add(start) }.as_ptr();
                pieces.push(Piece { host, device: device + start as u64, bytes: longest.min(bytes - start) });
            }
        }
        let shared = Arc::new(Shared { up, sleeps, next: AtomicUsize::new(pieces.len()), pieces });
        let (context, own) = (context.clone(), Arc::clone(&shared));
        let threads = ReferenceThreads::start("staged-by-hand", threads, move |runs| {
            let _bound = context.enter()?;
            let worker = Worker::new(most, sleeps)?;
            runs.serve(|| if own.up { own.up(&worker) } else { own.down(&worker) });
            Ok(())
        })?;
        Ok(Self { shared, threads })
    }
}

impl Reference for Staged {
    fn submit(&mut self) -> Result<()> {
        self.shared.next.store(0, Ordering::Relaxed);
        self.threads.begin();
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if self.shared.sleeps { self.threads.finish_asleep() } else { self.threads.finish() }
    }

    fn timed(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }
}

impl Shared {
    fn take(&self) -> Option<&Piece> {
        self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn up(&self, worker: &Worker) -> Result<()> {
        for buffer in worker.buffers.iter().cycle() {
            let Some(piece) = self.take() else { break };
            // SAFETY: the piece lies within the memory promised to `new` and fits a buffer, and is this thread's alone; the
            // buffer's last copy is over.
            unsafe {
                check("cuEventSynchronize", ffi::cuEventSynchronize(buffer.free))?;
                ptr::copy_nonoverlapping(piece.host, buffer.address, piece.bytes);
                let from: *const c_void = buffer.address.cast();
                let code = ffi::cuMemcpyHtoDAsync_v2(piece.device, from, piece.bytes, worker.stream);
                check("cuMemcpyHtoDAsync", code)?;
                check("cuEventRecord", ffi::cuEventRecord(buffer.free, worker.stream))?;
            }
        }
        if self.sleeps {
            for buffer in &worker.buffers {
                // SAFETY: the event is the worker's. A wait for it sleeps, and one for the stream would not.
                check("cuEventSynchronize", unsafe { ffi::cuEventSynchronize(buffer.free) })?;
            }
            return Ok(());
        }
        // SAFETY: the stream is the worker's.
        Ok(check("cuStreamSynchronize", unsafe { ffi::cuStreamSynchronize(worker.stream) })?)
    }

    fn down(&self, worker: &Worker) -> Result<()> {
        let mut arriving: Option<(&StagingBuffer, &Piece)> = None;
        for buffer in worker.buffers.iter().cycle() {
            let piece = self.take();
            if let Some(piece) = piece {
                let to: *mut c_void = buffer.address.cast();
                // SAFETY: as in `up`; the buffer's last piece was taken out by this thread.
                unsafe {
                    let code = ffi::cuMemcpyDtoHAsync_v2(to, piece.device, piece.bytes, worker.stream);
                    check("cuMemcpyDtoHAsync", code)?;
                    check("cuEventRecord", ffi::cuEventRecord(buffer.free, worker.stream))?;
                }
            }
            if let Some((buffer, piece)) = arriving.take() {
                // SAFETY: as above; the event says that the piece has arrived.
                unsafe {
                    check("cuEventSynchronize", ffi::cuEventSynchronize(buffer.free))?;
                    ptr::copy_nonoverlapping(buffer.address, piece.host, piece.bytes);
                }
            }
            let Some(piece) = piece else { break };
            arriving = Some((buffer, piece));
        }
        Ok(())
    }
}

/// What a thread has for itself.
struct Worker {
    stream: CUstream,
    buffers: Vec<StagingBuffer>,
}

struct StagingBuffer {
    address: *mut u8,
    /// Recorded behind the buffer's last copy.
    free: CUevent,
    _memory: RawMemory,
}

impl Worker {
    /// In the current context, with buffers of so many bytes.
    fn new(bytes: usize, sleeps: bool) -> Result<Self> {
        const NON_BLOCKING: u32 = 1;
        const BLOCKING_SYNC: u32 = 1;
        const WITHOUT_TIMING: u32 = 2;
        let mut worker = Self { stream: ptr::null_mut(), buffers: Vec::new() };
        // SAFETY: the out pointer is valid and a context is current.
        check("cuStreamCreate", unsafe { ffi::cuStreamCreate(&mut worker.stream, NON_BLOCKING) })?;
        let flags = if sleeps { WITHOUT_TIMING | BLOCKING_SYNC } else { WITHOUT_TIMING };
        for _ in 0..2 {
            let memory = RawMemory::new(MemoryKind::Pinned, bytes)?;
            let Address::Host(address) = memory.address() else { bail!("pinned memory is the host's") };
            let mut free = ptr::null_mut();
            // SAFETY: the out pointer is valid and a context is current.
            check("cuEventCreate", unsafe { ffi::cuEventCreate(&mut free, flags) })?;
            worker.buffers.push(StagingBuffer { address: address.as_ptr(), free, _memory: memory });
        }
        Ok(worker)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: the handles are owned and go here, before the buffers' memory. Errors cannot be handled in a drop.
        unsafe {
            if !self.stream.is_null() {
                ffi::cuStreamSynchronize(self.stream);
                ffi::cuStreamDestroy_v2(self.stream);
            }
            for buffer in &self.buffers {
                ffi::cuEventDestroy_v2(buffer.free);
            }
        }
    }
}
