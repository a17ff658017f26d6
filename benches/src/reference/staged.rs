//! Hand-written staging between pageable memory and a device: persistent threads, each with two pinned buffers and a stream.

use std::{
    hint::spin_loop,
    ops::Range,
    os::raw::c_void,
    ptr,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use transload_core::MemoryKind;
use transload_cuda_sys::{Context, check, cust::sys::CUevent, cust::sys::CUstream, ffi};

use super::Reference;
use crate::{address::Address, raw_memory::RawMemory};

const THREADS: usize = 8;
const BUFFER_BYTES: usize = 4 << 20;
const SMALLEST: usize = 256 << 10;
/// How long an idle thread spins before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(100);

/// A copy in pieces; each idle thread takes the next one.
#[derive(Debug)]
pub struct Staged {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    Up(*const u8, u64),
    Down(u64, *mut u8),
}

#[derive(Debug)]
struct Shared {
    direction: Direction,
    bytes: usize,
    piece: usize,
    /// Where the next piece begins.
    next: AtomicUsize,
    /// Threads that have not finished this copy.
    busy: AtomicUsize,
    /// Number of copies begun; changed under `asleep`.
    turn: AtomicU64,
    asleep: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
    failure: Mutex<Option<anyhow::Error>>,
}

// SAFETY: the constructor's caller promises memory that nobody else uses during a movement, and pieces do not overlap.
unsafe impl Send for Shared {}
// SAFETY: as above; everything else is atomic or behind a lock.
unsafe impl Sync for Shared {}

impl Staged {
    /// Starts the threads and pins their buffers.
    ///
    /// # Errors
    /// The driver's; two addresses that are not one of the host's and one of a device.
    ///
    /// # Safety
    /// * `bytes` bytes must be readable at `src` and writable at `dst` while the value lives, and nobody else may use them
    ///   while a movement is in flight.
    pub unsafe fn new(context: &Context, src: Address, dst: Address, bytes: usize) -> Result<Self> {
        let direction = match (src, dst) {
            (Address::Host(src), Address::Device(dst)) => Direction::Up(src.as_ptr(), dst),
            (Address::Device(src), Address::Host(dst)) => Direction::Down(src, dst.as_ptr()),
            _ => bail!("staging is between the host and a device"),
        };
        let even = bytes.div_ceil(2 * THREADS).next_multiple_of(64 << 10);
        let shared = Arc::new(Shared {
            direction,
            bytes,
            piece: even.clamp(SMALLEST, BUFFER_BYTES),
            next: AtomicUsize::new(bytes),
            busy: AtomicUsize::new(0),
            turn: AtomicU64::new(0),
            asleep: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        });
        let mut staged = Self { shared: Arc::clone(&shared), threads: Vec::with_capacity(THREADS) };
        let (ready, started) = mpsc::channel();
        for _ in 0..THREADS {
            let (context, shared, ready) = (context.clone(), Arc::clone(&shared), ready.clone());
            let body = move || {
                let bound = context.enter().map_err(anyhow::Error::from);
                let worker = bound.as_ref().map_err(|error| anyhow!("{error}")).and_then(|_| Worker::new());
                match worker {
                    Ok(worker) => {
                        let _nobody_left = ready.send(Ok(()));
                        shared.serve(&worker);
                    }
                    Err(error) => {
                        let _nobody_left = ready.send(Err(error));
                    }
                }
            };
            staged.threads.push(thread::Builder::new().name("staged-by-hand".to_owned()).spawn(body)?);
        }
        for _ in 0..THREADS {
            started.recv().context("a thread of the reference ended")?.context("the reference's buffers")?;
        }
        Ok(staged)
    }
}

impl Reference for Staged {
    fn submit(&mut self) -> Result<()> {
        let shared = &self.shared;
        shared.next.store(0, Ordering::Relaxed);
        shared.busy.store(THREADS, Ordering::Relaxed);
        shared.begin();
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let begun = Instant::now();
        while self.shared.busy.load(Ordering::Acquire) != 0 {
            if begun.elapsed() < SPIN_TIME { spin_loop() } else { thread::yield_now() }
        }
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), |error| Err(error.context("the reference's staging")))
    }

    fn timed(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.begin();
        for thread in self.threads.drain(..) {
            let _told_by_the_channel = thread.join();
        }
    }
}

impl Shared {
    fn begin(&self) {
        let asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.turn.fetch_add(1, Ordering::Release);
        drop(asleep);
        self.wake.notify_all();
    }

    fn serve(&self, worker: &Worker) {
        let mut seen = 0;
        loop {
            seen = self.wait(seen);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let outcome = match self.direction {
                Direction::Up(src, dst) => self.up(worker, src, dst),
                Direction::Down(src, dst) => self.down(worker, src, dst),
            };
            if let Err(error) = outcome {
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
            self.busy.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The turn after `seen`.
    fn wait(&self, seen: u64) -> u64 {
        let turn = || Some(self.turn.load(Ordering::Acquire)).filter(|turn| *turn != seen);
        let begun = Instant::now();
        while begun.elapsed() < SPIN_TIME {
            if let Some(turn) = turn() {
                return turn;
            }
            spin_loop();
        }
        let mut asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(turn) = turn() {
                return turn;
            }
            asleep = self.wake.wait(asleep).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn take(&self) -> Option<Range<usize>> {
        let start = self.next.fetch_add(self.piece, Ordering::Relaxed);
        (start < self.bytes).then(|| start..(start + self.piece).min(self.bytes))
    }

    fn up(&self, worker: &Worker, src: *const u8, dst: u64) -> Result<()> {
        for buffer in worker.buffers.iter().cycle() {
            let Some(piece) = self.take() else { break };
            // SAFETY: the piece lies within the memory promised to `new` and within a buffer, and is this thread's alone; the
            // buffer's last copy is over.
            unsafe {
                check("cuEventSynchronize", ffi::cuEventSynchronize(buffer.free))?;
                ptr::copy_nonoverlapping(src.add(piece.start), buffer.address, piece.len());
                let to = dst + piece.start as u64;
                let code = ffi::cuMemcpyHtoDAsync_v2(to, buffer.address.cast(), piece.len(), worker.stream);
                check("cuMemcpyHtoDAsync", code)?;
                check("cuEventRecord", ffi::cuEventRecord(buffer.free, worker.stream))?;
            }
        }
        // SAFETY: the stream is the worker's.
        Ok(check("cuStreamSynchronize", unsafe { ffi::cuStreamSynchronize(worker.stream) })?)
    }

    fn down(&self, worker: &Worker, src: u64, dst: *mut u8) -> Result<()> {
        let mut arriving: Option<(&StagingBuffer, Range<usize>)> = None;
        for buffer in worker.buffers.iter().cycle() {
            let piece = self.take();
            if let Some(piece) = &piece {
                let from = src + piece.start as u64;
                let to: *mut c_void = buffer.address.cast();
                // SAFETY: as in `up`; the buffer's last piece was taken out by this thread.
                unsafe {
                    let code = ffi::cuMemcpyDtoHAsync_v2(to, from, piece.len(), worker.stream);
                    check("cuMemcpyDtoHAsync", code)?;
                    check("cuEventRecord", ffi::cuEventRecord(buffer.free, worker.stream))?;
                }
            }
            if let Some((buffer, piece)) = arriving.take() {
                // SAFETY: as above; the event says that the piece has arrived.
                unsafe {
                    check("cuEventSynchronize", ffi::cuEventSynchronize(buffer.free))?;
                    ptr::copy_nonoverlapping(buffer.address, dst.add(piece.start), piece.len());
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
    /// In the current context.
    fn new() -> Result<Self> {
        const NON_BLOCKING: u32 = 1;
        const WITHOUT_TIMING: u32 = 2;
        let mut worker = Self { stream: ptr::null_mut(), buffers: Vec::new() };
        // SAFETY: the out pointer is valid and a context is current.
        check("cuStreamCreate", unsafe { ffi::cuStreamCreate(&mut worker.stream, NON_BLOCKING) })?;
        for _ in 0..2 {
            let memory = RawMemory::new(MemoryKind::Pinned, BUFFER_BYTES)?;
            let Address::Host(address) = memory.address() else { bail!("pinned memory is the host's") };
            let mut free = ptr::null_mut();
            // SAFETY: the out pointer is valid and a context is current.
            check("cuEventCreate", unsafe { ffi::cuEventCreate(&mut free, WITHOUT_TIMING) })?;
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
