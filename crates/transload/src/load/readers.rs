//! The threads of a load: each reads chunks of the file into buffers of its own, and submits their transfers.

use std::{
    cell::RefCell,
    collections::VecDeque,
    mem,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use parking_lot::{Condvar, Mutex};
use transload_core::{Error, ErrorKind, MemoryKind, RawBuffer, Result, Transfer, TransferReport};
use transload_executor::{BlockingKey, Executor, Task};
use transload_transfer::{CrossBackendTransferManager, StagingMemory};

use super::{
    hashes::Hashes,
    layout::{Chunk, Cursor, Part},
    options::LoadOptions,
    placement::TensorPlacement,
    shape,
    source::Source,
};
use crate::io::MethodCount;

/// Bytes of a file that are worth a thread.
const WORTH_A_THREAD: u64 = 256 << 10;
/// Shorter parts are read together and then copied: a system call each would cost more.
const MIN_DIRECT_READ: usize = 64 << 10;
const MAX_COALESCED_READ: usize = 256 << 10;

thread_local! {
    /// Buffer for short parts; a spare thread keeps it until it exits.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Returns how many threads to use for a file of `bytes`, at most `wanted`.
pub(super) fn thread_count(wanted: Option<usize>, bytes: u64, executor: &Executor) -> usize {
    /// More threads would only take processors from others.
    const MAX_THREADS: usize = 64;
    let useful = usize::try_from(bytes.div_ceil(WORTH_A_THREAD)).unwrap_or(usize::MAX);
    wanted.unwrap_or_else(|| executor.threads().min(useful)).clamp(1, MAX_THREADS)
}

/// A staging buffer, and the transfer that uses it. Its drop waits for the transfer.
pub(super) struct RingBuffer {
    pub(super) buffer: StagingMemory,
    pub(super) transfer: Option<Transfer>,
}

impl RingBuffer {
    /// Waits for the buffer's transfer, if any.
    pub(super) fn finish(&mut self) -> Result<Option<TransferReport>> {
        self.transfer.take().map(Transfer::wait).transpose()
    }

    fn is_free(&self) -> bool {
        self.transfer.as_ref().is_none_or(Transfer::is_complete)
    }
}

impl Drop for RingBuffer {
    fn drop(&mut self) {
        // After an error, which was returned already.
        let _returned_already = self.finish();
    }
}

/// What the threads of a load share.
pub(super) struct Sending {
    pub(super) manager: CrossBackendTransferManager,
    pub(super) source: Arc<Source>,
    pub(super) placement: Arc<TensorPlacement>,
    pub(super) options: LoadOptions,
    /// Kind of the staging buffers; `None` if chunks are read in place.
    pub(super) staging: Option<MemoryKind>,
    /// Size of a staging buffer, or the most bytes that are read in place at once.
    pub(super) chunk: usize,
    pub(super) readers: usize,
    pub(super) queue: Mutex<ChunkQueue>,
    pub(super) progress: Mutex<Progress>,
    /// Buffers that readers may allocate besides the first of each.
    pub(super) spare_buffers: AtomicUsize,
    /// Threads that allocate a buffer.
    pub(super) allocating: AtomicUsize,
    /// Hashes of the chunks up to a number, if requested.
    pub(super) hashes: Option<Mutex<(u64, Hashes)>>,
    /// Notified when a chunk was hashed, and after an error.
    pub(super) hashed: Condvar,
    /// Notified when the memory of the tensors is there, and after an error; with `progress`.
    pub(super) placed: Condvar,
    /// The first error. Nothing is read after it.
    pub(super) failed: OnceLock<Error>,
}

/// The chunks that no thread has taken yet.
pub(super) struct ChunkQueue {
    pub(super) cursor: Cursor,
    /// Offset in the file, and that of the end of all tensors.
    pub(super) offset: u64,
    pub(super) end: u64,
    /// Number of chunks that were taken.
    pub(super) taken: u64,
}

/// What the readers have done so far.
#[derive(Default)]
pub(super) struct Progress {
    /// Bytes of tensors that were read, and are on their way or in place.
    pub(super) sent: u64,
    /// Chunks in place, by these transfers unless they were read in place.
    pub(super) chunks: u64,
    pub(super) methods: Vec<MethodCount>,
}

/// The threads of a load. The drop stops them and waits for them.
pub(super) struct Readers {
    sending: Arc<Sending>,
    tasks: Vec<Task<Vec<RingBuffer>>>,
    told: Receiver<()>,
}

impl Readers {
    /// Starts the threads, the first one with a buffer if there are any.
    pub(super) fn start(sending: Sending, mut first: Option<RingBuffer>) -> Self {
        let (key, executor) = (BlockingKey::new(sending.readers), sending.manager.executor().clone());
        // One message, while the progress is not read: readers never wait for a callback of the user, which may wait for them in a drain.
        let (tell, told) = sync_channel(1);
        let sending = Arc::new(sending);
        let tasks = (0..sending.readers).map(|_| {
            let (sending, tell) = (Arc::clone(&sending), tell.clone());
            let reader = Reader { sending, tell, ring: first.take().into_iter().collect() };
            executor.spawn_blocking(&key, move || reader.run())
        });
        let tasks = tasks.collect();
        Self { sending, tasks, told }
    }

    /// Waits for progress. Returns the bytes that were sent so far; `None` when all readers have ended.
    pub(super) fn next(&self) -> Option<u64> {
        self.told.recv().ok()?;
        Some(self.sending.progress.lock().sent)
    }

    /// Tells the readers that the memory of the tensors is there, or stops them.
    pub(super) fn placed(&self, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.sending.tell_placed(),
            Err(error) => self.fail(error),
        }
    }

    /// Stops the readers. Unless there was an error before, the load fails with this one.
    pub(super) fn fail(&self, error: Error) {
        self.sending.fail(error);
    }

    /// Waits for the threads. Returns their buffers, what they did, and the hashes.
    ///
    /// # Errors
    /// The first error of any of them. Nothing is in flight afterwards.
    pub(super) fn finish(mut self) -> Result<(Vec<RingBuffer>, Progress, Option<Vec<u64>>)> {
        let buffers = self.join();
        if let Some(error) = self.sending.failed.get() {
            return Err(error.clone());
        }
        let progress = mem::take(&mut *self.sending.progress.lock());
        let hashes = self.sending.hashes.as_ref();
        Ok((
            buffers,
            progress,
            hashes.map(|hashes| mem::replace(&mut hashes.lock().1, Hashes::new(0)).finish()),
        ))
    }

    fn join(&mut self) -> Vec<RingBuffer> {
        let mut buffers = Vec::new();
        for task in self.tasks.drain(..) {
            match task.wait() {
                Ok(more) => buffers.extend(more),
                // The thread panicked, or there is none.
                Err(error) => self.sending.fail(error),
            }
        }
        buffers
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        if !self.tasks.is_empty() {
            self.sending.fail(Error::new(ErrorKind::Interrupted, "the load was interrupted"));
            drop(self.join());
        }
    }
}

impl Sending {
    fn fail(&self, error: Error) {
        let _first_error_counts = self.failed.set(error);
        if let Some(hashes) = &self.hashes {
            // A reader either sees the error or waits already.
            drop(hashes.lock());
            self.hashed.notify_all();
        }
        self.tell_placed();
    }

    fn tell_placed(&self) {
        // A reader either sees the change or waits already.
        drop(self.progress.lock());
        self.placed.notify_all();
    }

    /// Returns the destination of a chunk; waits until it is allocated.
    ///
    /// # Errors
    /// The error that ended the load.
    fn place(&self, chunk: &Chunk) -> Result<RawBuffer> {
        if self.placement.segments().is_empty() {
            let mut progress = self.progress.lock();
            while self.placement.segments().is_empty() {
                self.check()?;
                self.placed.wait(&mut progress);
            }
        }
        self.placement.segment(chunk.segment)?.slice(chunk.offset..chunk.offset + chunk.len)
    }

    /// # Errors
    /// The error that ended the load, or that it was cancelled.
    fn check(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))?;
        self.options.check_cancelled()
    }

    fn is_all_taken(&self) -> bool {
        let queue = self.queue.lock();
        queue.offset == queue.end
    }

    /// Takes the next chunk, its number and its offset in the file.
    fn take(&self) -> Option<(Chunk, u64, u64)> {
        // As many bytes as suit the loads of this moment, unless the user chose.
        let most = match self.options.chunk {
            Some(_) => self.chunk,
            None => self.chunk.min(shape::slot_now(self.readers)),
        };
        let mut queue = self.queue.lock();
        let chunk = queue.cursor.next(&self.placement.layout, most)?;
        let (number, offset) = (queue.taken, queue.offset);
        queue.taken += 1;
        queue.offset += chunk.bytes();
        Some((chunk, number, offset))
    }

    /// Adds a chunk to the hashes, after those before it.
    fn hash(&self, number: u64, chunk: &Chunk, target: &RawBuffer) -> Result<()> {
        let Some(hashes) = &self.hashes else { return Ok(()) };
        let mut hashes = hashes.lock();
        while hashes.0 != number && !transload_core::mutant!("transload/load-hashes-in-order") {
            self.check()?;
            self.hashed.wait(&mut hashes);
        }
        let view = target.read()?;
        for part in &chunk.parts {
            hashes.1.update(part.tensor, view.get(part.at..part.at + part.len).unwrap_or_default());
        }
        hashes.0 += 1;
        self.hashed.notify_all();
        Ok(())
    }

    /// Allocates a staging buffer.
    fn allocate(&self, kind: MemoryKind) -> Result<RingBuffer> {
        self.allocating.fetch_add(1, Ordering::Relaxed);
        let allocated = self.manager.allocate_staging(self.options.place.device, kind, self.chunk);
        self.allocating.fetch_sub(1, Ordering::Relaxed);
        Ok(RingBuffer { buffer: allocated?, transfer: None })
    }
}

/// One thread of a load.
struct Reader {
    sending: Arc<Sending>,
    tell: SyncSender<()>,
    /// Its buffers, the one used longest ago first.
    ring: VecDeque<RingBuffer>,
}

/// Fails the load if a reader panics, so that none waits for it.
struct FailOnPanic(Arc<Sending>);

impl Drop for FailOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail(Error::new(ErrorKind::Interrupted, "a thread that read the file panicked"));
        }
    }
}

impl Reader {
    /// Reads and sends chunks until none is left. Returns the buffers, which are free.
    fn run(mut self) -> Vec<RingBuffer> {
        let _panics = FailOnPanic(Arc::clone(&self.sending));
        if let Err(error) = self.send_all() {
            self.sending.fail(error);
        }
        Vec::from(mem::take(&mut self.ring))
    }

    fn send_all(&mut self) -> Result<()> {
        let sending = Arc::clone(&self.sending);
        loop {
            sending.check()?;
            if sending.is_all_taken() {
                break;
            }
            let slot = match sending.staging {
                Some(kind) => match self.free_buffer(kind)? {
                    Some(slot) => Some(slot),
                    None => break,
                },
                None => None,
            };
            let Some((chunk, number, offset)) = sending.take() else {
                self.ring.extend(slot);
                break;
            };
            let target = match &slot {
                Some(slot) => slot.buffer.slice(..chunk.len)?,
                None => sending.place(&chunk)?,
            };
            fill(&sending.source, &target, &chunk.parts, offset)?;
            sending.hash(number, &chunk, &target)?;
            match slot {
                Some(mut slot) => {
                    let place = sending.place(&chunk)?;
                    let copy = sending.manager.copy(&target, &place).options(sending.options.transfer);
                    slot.transfer = Some(copy.submit());
                    self.ring.push_back(slot);
                }
                None => sending.progress.lock().chunks += 1,
            }
            sending.progress.lock().sent += chunk.bytes();
            // If an earlier message was not read, the loading thread reads this progress, too.
            let _told_already = self.tell.try_send(());
        }
        for index in 0..self.ring.len() {
            self.finish(index)?;
        }
        Ok(())
    }

    /// Returns a buffer to read into; `None` if this reader has none and memory is short.
    fn free_buffer(&mut self, kind: MemoryKind) -> Result<Option<RingBuffer>> {
        let sending = Arc::clone(&self.sending);
        let is_first = self.ring.is_empty();
        // A driver pins for one thread at a time: rather wait for a copy in flight than for another thread's buffer.
        let may_allocate = is_first
            || (!self.ring.iter().any(RingBuffer::is_free)
                && sending.allocating.load(Ordering::Relaxed) == 0
                && take_one(&sending.spare_buffers));
        if may_allocate {
            match sending.allocate(kind) {
                Ok(buffer) => return Ok(Some(buffer)),
                Err(error)
                    if error.kind() == ErrorKind::OutOfMemory
                        && !transload_core::mutant!("transload/load-with-fewer-buffers") =>
                {
                    sending.spare_buffers.store(0, Ordering::Relaxed);
                    if is_first {
                        // A pageable one, unless the user chose the kind. The loading thread allocated the first of all, so without
                        // one another reader goes on.
                        let may_differ = sending.options.staging.is_none() && kind != MemoryKind::Pageable;
                        let own = may_differ.then(|| sending.allocate(MemoryKind::Pageable));
                        return Ok(own.and_then(Result::ok));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let free = self.ring.iter().position(RingBuffer::is_free).unwrap_or(0);
        self.finish(free)?;
        Ok(self.ring.remove(free))
    }

    /// Waits for the transfer of a buffer, if any, and counts it.
    fn finish(&mut self, index: usize) -> Result<()> {
        let Some(slot) = self.ring.get_mut(index) else { return Ok(()) };
        if let Some(report) = slot.finish()? {
            let mut progress = self.sending.progress.lock();
            progress.chunks += 1;
            MethodCount::add(&mut progress.methods, &report);
        }
        Ok(())
    }
}

/// Takes one of a count; returns whether any was left.
fn take_one(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok()
}

/// Reads the bytes from `offset` on into the parts of a chunk, and zeroes the gaps.
fn fill(source: &Source, target: &RawBuffer, parts: &[Part], offset: u64) -> Result<()> {
    SCRATCH.with_borrow_mut(|scratch| fill_with(source, target, parts, offset, scratch))
}

fn fill_with(
    source: &Source,
    target: &RawBuffer,
    parts: &[Part],
    offset: u64,
    scratch: &mut Vec<u8>,
) -> Result<()> {
    let mut view = target.write()?;
    let mut end = 0;
    for run in parts {
        view.get_mut(end..run.at).unwrap_or_default().fill(0);
        end = run.at + run.len;
    }
    let (mut offset, mut rest) = (offset, parts);
    while let [first, others @ ..] = rest {
        if first.len >= MIN_DIRECT_READ || others.is_empty() {
            source.read_exact_at(offset, view.get_mut(first.at..first.at + first.len).unwrap_or_default())?;
            offset += first.len as u64;
            rest = others;
            continue;
        }
        let mut bytes = 0;
        let few = rest.iter().take_while(|run| {
            bytes += run.len;
            run.len < MIN_DIRECT_READ && bytes <= MAX_COALESCED_READ
        });
        let (together, others) = rest.split_at(few.count());
        let bytes: usize = together.iter().map(|run| run.len).sum();
        if scratch.len() < bytes {
            scratch.resize(MAX_COALESCED_READ, 0);
        }
        let read = scratch.get_mut(..bytes).unwrap_or_default();
        source.read_exact_at(offset, read)?;
        let mut from = 0;
        for run in together {
            let place = view.get_mut(run.at..run.at + run.len).unwrap_or_default();
            place.copy_from_slice(read.get(from..from + run.len).unwrap_or_default());
            from += run.len;
        }
        offset += bytes as u64;
        rest = others;
    }
    Ok(())
}

#[cfg(test)]
#[path = "../../tests/unit/readers.rs"]
mod tests;
