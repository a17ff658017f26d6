//! Hand-written staging by threads that wait for work, each with a stream and two pinned slots: files to a device, and from a device
//! into host memory that was never touched.

use std::{
    fs::File,
    os::{raw::c_void, unix::fs::FileExt as _},
    slice,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, anyhow, bail};
use transload_core::MemoryKind;
use transload_cuda_sys::Context;

use crate::{
    address::Address,
    raw_memory::RawMemory,
    reference::{RawEvent, RawQueue},
};

/// What to move.
pub(super) enum Work {
    /// A file to an address of a device.
    Up(File, u64),
    /// Memory of a device to an address of the host.
    Down(u64, usize),
}

/// Bytes that idle threads move piece by piece.
pub(super) struct Job {
    work: Work,
    bytes: usize,
    piece: usize,
    next: AtomicUsize,
}

/// The threads. They end when this is dropped.
pub(super) struct Threads {
    jobs: Vec<Sender<Arc<Job>>>,
    threads: Vec<JoinHandle<()>>,
    ended: Receiver<Result<()>>,
    slot: usize,
}

impl Threads {
    /// Starts `count` threads with slots of `slot` bytes in a context.
    pub(super) fn start(context: &Context, count: usize, slot: usize) -> Result<Self> {
        let (tell, ended) = channel();
        let mut threads = Self { jobs: Vec::new(), threads: Vec::new(), ended, slot };
        for _ in 0..count {
            let (context, tell, (give, jobs)) = (context.clone(), tell.clone(), channel::<Arc<Job>>());
            let body = move || {
                let bound = context.enter().map_err(anyhow::Error::from);
                let worker =
                    bound.as_ref().map_err(|error| anyhow!("{error}")).and_then(|_| Worker::new(slot));
                for job in jobs {
                    let outcome = worker.as_ref().map_err(|error| anyhow!("{error:#}"));
                    let _nobody_left = tell.send(outcome.and_then(|worker| worker.run(&job)));
                }
            };
            threads.jobs.push(give);
            threads.threads.push(thread::Builder::new().spawn(body)?);
        }
        Ok(threads)
    }

    /// Begins to move all bytes, in pieces of at most a slot.
    ///
    /// # Safety
    /// * The memory of the work has `bytes` bytes, and nothing else uses it until [`finish`](Self::finish) returns.
    pub(super) unsafe fn begin(&self, work: Work, bytes: usize, piece: usize) -> Result<()> {
        let job = Arc::new(Job { work, bytes, piece: piece.min(self.slot), next: AtomicUsize::new(0) });
        for give in &self.jobs {
            give.send(Arc::clone(&job)).map_err(|_| anyhow!("a thread of the reference ended"))?;
        }
        Ok(())
    }

    /// Waits until all bytes are in place.
    pub(super) fn finish(&self) -> Result<()> {
        let mut outcome = Ok(());
        for _ in &self.threads {
            outcome = outcome.and(self.ended.recv().context("a thread of the reference ended")?);
        }
        outcome
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.jobs.clear();
        for thread in self.threads.drain(..) {
            let _told_by_the_channel = thread.join();
        }
    }
}

struct Worker {
    queue: RawQueue,
    slots: Vec<(RawMemory, RawEvent)>,
}

impl Worker {
    fn new(slot: usize) -> Result<Self> {
        let slots = (0..2).map(|_| Ok((RawMemory::new(MemoryKind::Pinned, slot)?, RawEvent::ordering()?)));
        Ok(Self { queue: RawQueue::new(0)?, slots: slots.collect::<Result<_>>()? })
    }

    fn run(&self, job: &Job) -> Result<()> {
        let take = || {
            let from = job.next.fetch_add(job.piece, Ordering::Relaxed);
            (from < job.bytes).then(|| (from, job.piece.min(job.bytes - from)))
        };
        match &job.work {
            Work::Up(file, dst) => {
                for (memory, event) in self.slots.iter().cycle() {
                    let Some((from, len)) = take() else { break };
                    let slot = address(memory)?;
                    event.finish()?;
                    // SAFETY: the slot has `len` bytes, and its last copy is complete; the destination was promised to `begin`.
                    unsafe {
                        file.read_exact_at(slice::from_raw_parts_mut(slot, len), from as u64)?;
                        self.queue.copy_up(dst + from as u64, slot.cast(), len)?;
                    }
                    self.queue.record(event)?;
                }
                self.queue.finish()
            }
            Work::Down(src, dst) => {
                let mut arriving = None;
                for (memory, event) in self.slots.iter().cycle() {
                    let piece = take();
                    let slot = address(memory)?;
                    if let Some((from, len)) = piece {
                        // SAFETY: this thread took the slot's last piece out; the source was promised to `begin`.
                        unsafe { self.queue.copy_down(slot.cast::<c_void>(), src + from as u64, len) }?;
                        self.queue.record(event)?;
                    }
                    if let Some((slot, event, from, len)) =
                        std::mem::replace(&mut arriving, piece.map(|(from, len)| (slot, event, from, len)))
                    {
                        let event: &RawEvent = event;
                        event.finish()?;
                        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(dst + from);
                        // SAFETY: the piece has arrived; its part of the destination is this thread's.
                        unsafe { std::ptr::copy_nonoverlapping(slot, to, len) };
                    } else if piece.is_none() {
                        break;
                    }
                }
                Ok(())
            }
        }
    }
}

fn address(memory: &RawMemory) -> Result<*mut u8> {
    let Address::Host(address) = memory.address() else { bail!("pinned memory is the host's") };
    Ok(address.as_ptr())
}
