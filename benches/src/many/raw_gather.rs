//! Pageable pieces by hand: persistent threads gather them into mapped buffers, or scatter them from there, and a kernel over a list
//! copies between these and the device.

use std::{
    ops::Range,
    os::raw::c_void,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context as _, Result};
use transload_core::{MemoryKind, RawBuffer};

use super::{Fixture, pieces::Pieces};
use crate::reference::{RawEvent, RawKernel, RawQueue, ReferenceThreads};

const THREADS: usize = 8;
/// Bytes that a thread gathers for one launch, at most, unless a piece is longer.
const CHUNK: usize = 1 << 20;
/// Destination, source and length in bytes.
type Entry = [u64; 3];

pub(super) struct RawGather {
    shared: Arc<Shared>,
    threads: ReferenceThreads,
}

struct Shared {
    kernel: RawKernel,
    up: bool,
    /// Addresses at the host and at the device.
    pieces: Vec<(u64, u64)>,
    /// Length of a piece in bytes.
    bytes: usize,
    /// Pieces of a launch.
    chunk: usize,
    /// The first piece that no thread has taken.
    next: AtomicUsize,
}

/// What a thread has for itself.
struct Worker {
    queue: RawQueue,
    slots: [Slot; 2],
}

/// Room for one launch.
struct Slot {
    staged: RawBuffer,
    list: RawBuffer,
    /// Recorded behind the last launch.
    used: RawEvent,
}

impl RawGather {
    /// Starts the threads.
    pub(super) fn new(fixture: &Fixture<'_>, pieces: &Pieces, up: bool) -> Result<Self> {
        let (host, device) = if up {
            (&pieces.sources, &pieces.destinations)
        } else {
            (&pieces.destinations, &pieces.sources)
        };
        let bytes = pieces.sizes.first().copied().context("no pieces")?;
        let chunk = (CHUNK / bytes).min(host.len().div_ceil(2 * THREADS)).max(1);
        let shared = Arc::new(Shared {
            kernel: RawKernel::load(include_str!("../ptx/copy_list.ptx"), c"transload_copy_list")?,
            up,
            pieces: host.iter().copied().zip(device.iter().copied()).collect(),
            bytes,
            chunk,
            next: AtomicUsize::new(0),
        });
        let (own, context, memory) =
            (Arc::clone(&shared), fixture.context()?.clone(), Arc::clone(&fixture.memory));
        let threads = ReferenceThreads::start("gather-by-hand", THREADS, move |runs| {
            let _bound = context.enter()?;
            let slot = || -> Result<Slot> {
                Ok(Slot {
                    staged: memory.allocate(MemoryKind::Mapped, chunk * bytes)?,
                    list: memory.allocate(MemoryKind::Mapped, chunk * size_of::<Entry>())?,
                    used: RawEvent::ordering()?,
                })
            };
            let worker = Worker { queue: RawQueue::new(0)?, slots: [slot()?, slot()?] };
            runs.serve(|| if own.up { own.up(&worker) } else { own.down(&worker) });
            Ok(())
        })?;
        Ok(Self { shared, threads })
    }

    /// Copies all pieces, and waits.
    pub(super) fn run(&self) -> Result<()> {
        self.shared.next.store(0, Ordering::Relaxed);
        self.threads.begin();
        self.threads.finish()
    }
}

impl Shared {
    fn take(&self) -> Option<Range<usize>> {
        let start = self.next.fetch_add(self.chunk, Ordering::Relaxed);
        (start < self.pieces.len()).then(|| start..(start + self.chunk).min(self.pieces.len()))
    }

    fn up(&self, worker: &Worker) -> Result<()> {
        for slot in worker.slots.iter().cycle() {
            let Some(taken) = self.take() else { break };
            slot.used.finish()?;
            self.copy_on_host(slot, &taken)?;
            self.launch(worker, slot, &taken)?;
        }
        worker.queue.finish()
    }

    fn down(&self, worker: &Worker) -> Result<()> {
        let mut arriving: Option<(&Slot, Range<usize>)> = None;
        for slot in worker.slots.iter().cycle() {
            let taken = self.take();
            if let Some(taken) = &taken {
                self.launch(worker, slot, taken)?;
            }
            if let Some((slot, taken)) = arriving.take() {
                slot.used.finish()?;
                self.copy_on_host(slot, &taken)?;
            }
            let Some(taken) = taken else { break };
            arriving = Some((slot, taken));
        }
        Ok(())
    }

    fn copy_on_host(&self, slot: &Slot, taken: &Range<usize>) -> Result<()> {
        let staged = slot.staged.host_address().context("mapped memory without a host address")?.as_ptr();
        for (index, (host, _)) in self.pieces.get(taken.clone()).unwrap_or_default().iter().enumerate() {
            let host: *mut u8 = ptr::with_exposed_provenance_mut(*host as usize);
            // SAFETY: the piece is this thread's until it takes another, and the slot's launch is over.
            unsafe {
                let staged = staged.add(index * self.bytes);
                let (from, to) = if self.up { (host, staged) } else { (staged, host) };
                ptr::copy_nonoverlapping(from, to, self.bytes);
            }
        }
        Ok(())
    }

    fn launch(&self, worker: &Worker, slot: &Slot, taken: &Range<usize>) -> Result<()> {
        let start = slot.list.host_address().context("mapped memory without a host address")?.cast::<Entry>();
        let address = |of: &RawBuffer| of.device_address().context("mapped memory without a device address");
        let (staged, list, count) = (address(&slot.staged)?, address(&slot.list)?, taken.len() as u64);
        for (index, (_, device)) in self.pieces.get(taken.clone()).unwrap_or_default().iter().enumerate() {
            let staged = staged + (index * self.bytes) as u64;
            let (from, to) = if self.up { (staged, *device) } else { (*device, staged) };
            // SAFETY: the list has room for all pieces, is aligned, and no kernel reads it now.
            unsafe { start.add(index).write([to, from, self.bytes as u64]) };
        }
        let more = 0_u32;
        let mut parameters: [*mut c_void; 3] = [
            (&raw const list).cast_mut().cast(),
            (&raw const count).cast_mut().cast(),
            (&raw const more).cast_mut().cast(),
        ];
        // SAFETY: the kernel takes these parameters; list, buffer and pieces live on, and nothing else uses them.
        unsafe { self.kernel.launch(worker.queue.raw(), (taken.len() as u32, 256), &mut parameters) }?;
        worker.queue.record(&slot.used)
    }
}
