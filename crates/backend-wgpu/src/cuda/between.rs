//! Copies between CUDA's memory and that of the same GPU's wgpu device: by memory that both have. No byte passes the host.

use std::sync::Arc;

use parking_lot::Mutex;
use transload_core::{
    DeviceId, Error, ErrorKind, Fence, MemoryKind, Operation, Place, Queue as _, RawBuffer, Result, Timing,
    mutant,
};
use transload_memory::CudaMemoryManager;
use transload_streams::CudaStream;

use super::allocate_shared;
use crate::{
    api::ApiDevice as _,
    vulkan::{BY_COPIER, DeviceState, Interval, Line, Timer, perform},
};

/// Most bytes of the memory in between: by wgpu's queue each part costs the GPU two changes between the APIs.
const MOST: usize = 256 << 20;
/// The largest part of CUDA's memory that it takes.
const PART: u64 = 64;
/// The least, so that short copies of growing length do not allocate each time.
const LEAST: usize = 1 << 20;
/// Multiple of bytes at which each piece begins in it.
const ALIGNED: usize = 16;

type Pairs<'a> = &'a [(RawBuffer, RawBuffer)];
/// Returns the memory of the CUDA device.
pub(crate) type MakeMemory = Box<dyn Fn() -> Result<Arc<CudaMemoryManager>> + Send + Sync>;

/// What copies between a CUDA device and a device of Vulkan that are one GPU.
pub(crate) struct Between {
    cuda: DeviceId,
    memory: MakeMemory,
    used: Mutex<Option<Used>>,
}

/// The memory in between, as each of both has it, and CUDA's stream that copies to or from it.
struct Used {
    memory: Arc<CudaMemoryManager>,
    stream: CudaStream,
    theirs: RawBuffer,
    ours: RawBuffer,
    /// The most bytes that it may have.
    most: usize,
    /// The last submission of Vulkan that reads it.
    read: Option<(Arc<Line>, u64)>,
}

impl Drop for Used {
    fn drop(&mut self) {
        if let Some((line, point)) = &self.read {
            line.queue.block_until(*point);
        }
    }
}

/// One part of a piece: source, destination, and where it lies in between.
type Part = (RawBuffer, RawBuffer, usize);

impl Between {
    pub(crate) fn new(cuda: DeviceId, memory: MakeMemory) -> Self {
        Self { cuda, memory, used: Mutex::new(None) }
    }

    /// Returns the place of CUDA's memory.
    pub(crate) fn place(&self) -> Place {
        Place::new(self.cuda, MemoryKind::Device)
    }

    pub(crate) fn is_theirs(&self, place: Place) -> bool {
        place == self.place()
    }

    /// Returns whether an operation is a copy from or to CUDA's memory.
    pub(crate) fn copies(&self, operation: &Operation<'_>) -> bool {
        let is_theirs = |buffer: &RawBuffer| self.is_theirs(buffer.place());
        match *operation {
            Operation::Copy { src, dst } => is_theirs(src) || is_theirs(dst),
            Operation::CopyBatch { pairs } => pairs.iter().any(|(src, dst)| is_theirs(src) || is_theirs(dst)),
            _ => false,
        }
    }

    /// Returns the queues that measure such a copy: Vulkan's part is by one of them, and the begin or the end of CUDA's is written by a queue
    /// that only copies, for which the GPU does not change between the APIs. Also returns whether that has nothing else to do: otherwise
    /// nothing is measured, since what it does would count.
    pub(crate) fn timer<'a>(
        &self,
        device: &'a DeviceState,
        line: &'a Line,
        operation: &Operation<'_>,
    ) -> (Timer<'a>, bool) {
        let (bytes, from) = match *operation {
            Operation::Copy { src, .. } => (bytes_of([src]), Some(src)),
            Operation::CopyBatch { pairs } => {
                (bytes_of(pairs.iter().map(|(src, _)| src)), pairs.first().map(|(src, _)| src))
            }
            _ => (0, None),
        };
        let beside = device.copiers.first().map_or(line, |copier| copier);
        let by = if bytes <= BY_COPIER { beside } else { line };
        let is_up = from.is_some_and(|src| self.is_theirs(src.place()));
        // What its own line does before is waited for.
        let is_idle = beside.index == line.index || beside.queue.outstanding() == 0;
        let (begin, end) = if is_up { (beside, by) } else { (by, beside) };
        (Timer { begin, end }, is_idle)
    }

    /// Performs such a copy, and returns its point of the line's queue. Blocks until CUDA's part is complete, and by a copier's
    /// queue until all is. Its [timer](Self::timer) writes the begin and the end into each of these slots; says whether that was submitted.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if one of both sides of a pair is not CUDA's memory, and the other the device's; [`ErrorKind::Busy`] in a callback of wgpu;
    /// [`ErrorKind::OutOfMemory`]; the drivers'. Nothing was copied to a destination then, unless it is partial.
    ///
    /// # Safety
    /// * Those of [`Queue::enqueue`](transload_core::Queue::enqueue); everything that comes before is complete or on the line's queue.
    pub(crate) unsafe fn copy(
        &self,
        device: &DeviceState,
        line: &Arc<Line>,
        operation: &Operation<'_>,
        (timer, measured): (Timer<'_>, &[Interval]),
    ) -> Result<(u64, bool)> {
        // It would wait for a point that only its own thread can submit.
        device.queue.refuse_callback()?;
        let single;
        let pairs: Pairs<'_> = match *operation {
            Operation::Copy { src, dst } => {
                single = [(src.clone(), dst.clone())];
                &single
            }
            Operation::CopyBatch { pairs } => pairs,
            _ => &[],
        };
        let here = Place::new(device.id(), MemoryKind::Device);
        let sides = |src: &RawBuffer, dst: &RawBuffer| match (src.place(), dst.place()) {
            (src, dst) if self.is_theirs(src) && dst == here => Some(true),
            (src, dst) if src == here && self.is_theirs(dst) => Some(false),
            _ => None,
        };
        let mut all = pairs.iter().map(|(src, dst)| sides(src, dst));
        let first = all.next().flatten();
        let Some(is_up) = first.filter(|_| all.all(|one| one == first)) else {
            let text =
                format!("a queue of {here} copies to or from memory of {}, one way at once", self.cuda);
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        let bytes = bytes_of(pairs.iter().map(|(src, _)| src));
        let copier = device.copiers.first().filter(|_| bytes <= BY_COPIER);
        let is_shared =
            |(src, dst): &(RawBuffer, RawBuffer)| device.shared.find(if is_up { src } else { dst }).is_some();
        let is_elsewhere = copier.is_some() || !measured.is_empty();
        let comes_after = !mutant!("wgpu/between-comes-after");
        if comes_after && (is_elsewhere || pairs.iter().any(is_shared)) {
            // Neither the copier's queue nor CUDA comes after what the line's queue does with the buffers before. Nor is a wait for that
            // a part of what is measured.
            line.queue.block_until(line.queue.enqueued());
        }
        let is_frameworks = line.index == device.wgpu.index && device.queue.vulkan.is_shared;
        if comes_after && is_elsewhere && is_frameworks {
            // Nor after what a framework has submitted, of which the line knows nothing. A refusal is none of the copy.
            // SAFETY: there are no commands.
            let point = unsafe { line.queue.submit(&[], &[]) };
            point.into_iter().for_each(|point| line.queue.block_until(point));
        }
        let by = copier.unwrap_or(line);
        let mut last = None;
        let mut used = self.used.lock();
        let used = self.ready(&mut used, device, bytes)?;
        let begun = if mutant!("wgpu/between-is-timed") { Ok(true) } else { timer.begin(measured) }?;
        let measured = if begun { measured } else { &[] };
        // SAFETY: the caller's promise.
        let copied = unsafe { used.copy(device, by, is_up, pairs, &mut last) };
        let ended = copied.and_then(|()| timer.end(measured));
        let is_measured = begun && ended.as_ref().is_ok_and(|end| end.is_some());
        if copier.is_none()
            && let Ok(end) = ended
        {
            let own = end.filter(|_| is_up);
            end.filter(|_| !is_up).into_iter().for_each(|end| timer.end.queue.block_until(end));
            return own.or(last).map_or_else(|| own_point(line), Ok).map(|point| (point, is_measured));
        }
        if ended.is_err() && !mutant!("wgpu/between-failed-waits") {
            // Also what comes before, whose place a mark takes.
            line.queue.block_until(line.queue.enqueued());
        }
        // It comes last, on the same queue.
        let until = ended.as_ref().ok().copied().flatten().or(last);
        until.into_iter().for_each(|point| by.queue.block_until(point));
        let copied = ended.and_then(|_| until.map_or(Ok(()), |point| by.queue.outcome(point)));
        let lost = |error: Error| match error.kind() {
            // CUDA's memory is not lost.
            ErrorKind::DeviceLost if !is_up => Error::caused_by(
                ErrorKind::Device,
                format!("the copy uses {}, which is lost", device.id()),
                error,
            ),
            _ => error,
        };
        let has_written = last.is_some() && !mutant!("wgpu/between-failure-marks");
        let failed = |error: Error| if has_written { lost(error).of_part() } else { error };
        copied.and_then(|()| own_point(line)).map(|point| (point, is_measured)).map_err(failed)
    }

    /// Returns the memory in between, of as many bytes as a copy of so many uses.
    fn ready<'a>(
        &self,
        kept: &'a mut Option<Used>,
        device: &DeviceState,
        bytes: usize,
    ) -> Result<&'a mut Used> {
        let wanted = bytes.min(MOST).next_power_of_two().max(LEAST);
        if kept.as_ref().is_none_or(|used| used.ours.len() < wanted.min(used.most)) {
            drop(kept.take());
            let made = match self.make(device, wanted) {
                // Until it is released, no more is tried.
                Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                    self.make(device, LEAST).map(|mut used| {
                        used.most = LEAST;
                        used
                    })
                }
                made => made,
            };
            let is_ours =
                |error: Error| device.queue.check_usable().err().unwrap_or_else(|| of_cuda(self.cuda, error));
            *kept = Some(made.map_err(is_ours)?);
        }
        kept.as_mut().ok_or_else(|| Error::new(ErrorKind::Interrupted, "there is no memory in between"))
    }

    fn make(&self, device: &DeviceState, bytes: usize) -> Result<Used> {
        let memory = (self.memory)()?;
        if memory.device().id() != self.cuda {
            let text = format!("the memory is of {}, and {} is connected", memory.device().id(), self.cuda);
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let part = usize::try_from(memory.info()?.total / PART).unwrap_or(MOST);
        let most = 1 << part.clamp(LEAST, MOST).ilog2();
        let theirs = allocate_shared(device, &memory, None, bytes.min(most))?;
        let lost = || Error::new(ErrorKind::Interrupted, "memory in between has no alias");
        let ours = device.alias(&theirs).ok_or_else(lost)??;
        Ok(Used { stream: CudaStream::new(memory.device())?, memory, theirs, ours, most, read: None })
    }

    /// Frees the memory in between soon, unless a copy uses it now. Returns CUDA's, if there was any.
    pub(crate) fn release(&self) -> Option<Arc<CudaMemoryManager>> {
        let used = self.used.try_lock()?.take()?;
        Some(Arc::clone(&used.memory))
    }

    /// Frees the memory in between.
    ///
    /// # Errors
    /// The first of CUDA's work that failed.
    pub(crate) fn drain(&self) -> Result<()> {
        // CUDA's own drain may have come before.
        self.release().map_or(Ok(()), |memory| memory.drain()).map_err(|error| of_cuda(self.cuda, error))
    }
}

/// The device of the call is well if CUDA's is lost.
fn of_cuda(cuda: DeviceId, error: Error) -> Error {
    match error.kind() {
        ErrorKind::DeviceLost => {
            Error::caused_by(ErrorKind::Device, format!("the copy uses {cuda}, which is lost"), error)
        }
        _ => error,
    }
}

impl Used {
    /// Copies all pairs in parts. `last` becomes the point of the last part that may have changed a destination.
    ///
    /// # Safety
    /// * Those of [`Between::copy`].
    unsafe fn copy(
        &mut self,
        device: &DeviceState,
        line: &Arc<Line>,
        is_up: bool,
        pairs: Pairs<'_>,
        last: &mut Option<u64>,
    ) -> Result<()> {
        let (mut part, mut at, room) = (Vec::new(), 0, self.ours.len());
        for (src, dst) in pairs {
            let mut from = 0;
            while from < src.len() {
                if at == room {
                    // SAFETY: the caller's promise.
                    unsafe { self.copy_part(device, line, is_up, &part, last) }?;
                    at = 0;
                    part.clear();
                }
                let bytes = (src.len() - from).min(room - at);
                let range = from..from + bytes;
                part.push((src.slice(range.clone())?, dst.slice(range)?, at));
                (from, at) = (from + bytes, (at + bytes).next_multiple_of(ALIGNED));
            }
        }
        // SAFETY: the caller's promise.
        if part.is_empty() { Ok(()) } else { unsafe { self.copy_part(device, line, is_up, &part, last) } }
    }

    /// Copies a part of the operation.
    ///
    /// # Safety
    /// * Those of [`Between::copy`].
    unsafe fn copy_part(
        &mut self,
        device: &DeviceState,
        line: &Arc<Line>,
        is_up: bool,
        part: &[Part],
        last: &mut Option<u64>,
    ) -> Result<()> {
        let pairs_with = |memory: &RawBuffer, is_source: bool| -> Result<Vec<(RawBuffer, RawBuffer)>> {
            let of = |(src, dst, at): &Part| {
                let between = memory.slice(*at..*at + src.len())?;
                Ok(if is_source { (between, dst.clone()) } else { (src.clone(), between) })
            };
            part.iter().map(of).collect()
        };
        let (theirs, ours) = (pairs_with(&self.theirs, !is_up)?, pairs_with(&self.ours, is_up)?);
        if let Some((line, point)) = self.read.take()
            && !mutant!("wgpu/between-is-read")
        {
            line.queue.block_until(point);
        }
        let of_cuda = |error| of_cuda(self.memory.device().id(), error);
        // SAFETY: the caller's promise for its own buffers; nothing else uses what is in between.
        let by_cuda = || unsafe { enqueue(&self.stream, &theirs) }.map_err(of_cuda);
        let wait = |fence: Fence| match mutant!("wgpu/cuda-part-waits") {
            true => Ok(()),
            false => fence.wait().map_err(of_cuda),
        };
        if is_up {
            wait(by_cuda()?)?;
        }
        // SAFETY: as above; what comes before is on the queue, or complete.
        let point = unsafe { perform(device, line, &operation_of(&ours), (&[], &[])) }?;
        if is_up {
            *last = Some(point);
            self.read = Some((Arc::clone(line), point));
            return Ok(());
        }
        line.queue.block_until(point);
        line.queue.outcome(point)?;
        let fence = by_cuda()?;
        *last = Some(point);
        wait(fence)
    }
}

/// Returns how many bytes a copy from these uses in between.
fn bytes_of<'a>(sources: impl IntoIterator<Item = &'a RawBuffer>) -> usize {
    sources.into_iter().map(|src| src.len().next_multiple_of(ALIGNED)).fold(0, usize::saturating_add)
}

/// Returns a point of its own, which is reached if the queue is idle.
fn own_point(line: &Line) -> Result<u64> {
    match line.queue.run_idle(|| ())? {
        Some(point) => Ok(point),
        // SAFETY: there are no commands.
        None => unsafe { line.queue.submit(&[], &[]) },
    }
}

fn operation_of(pairs: Pairs<'_>) -> Operation<'_> {
    match pairs {
        [(src, dst)] => Operation::Copy { src, dst },
        pairs => Operation::CopyBatch { pairs },
    }
}

/// Has CUDA copy within its device; many pieces by a kernel, if the driver takes it.
///
/// # Safety
/// * Those of [`Queue::enqueue`](transload_core::Queue::enqueue).
unsafe fn enqueue(stream: &CudaStream, pairs: Pairs<'_>) -> Result<Fence> {
    if pairs.len() > 1 {
        // SAFETY: the caller's promise.
        match unsafe { stream.enqueue(&Operation::CopyBatchInPlace { pairs }, &[], Timing::Off) } {
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            enqueued => return enqueued,
        }
    }
    // SAFETY: the caller's promise.
    unsafe { stream.enqueue(&operation_of(pairs), &[], Timing::Off) }
}

#[cfg(all(test, target_os = "linux"))]
#[path = "../../tests/unit/refused_between.rs"]
mod tests;
