//! Turns operations into commands. Host memory that is not the device's is copied through staging buffers during the call, as CUDA's
//! driver copies pageable memory.

use std::{
    ops::Range,
    ptr::{self, NonNull},
};

use ash::vk;
use smallvec::SmallVec;
use transload_core::{
    Error, ErrorKind, Operation, RawBuffer, Result, catch_panic,
    host_access::{self, HostAccess},
    mutant, runs_by_allocation,
};

use super::{
    BufferHandle, Memory,
    fill::fill,
    pieces::{ALIGNMENT, ENTRY, LISTS, List, MOST_PIECES, Pieces, Shape, entries, shape_of},
    staging::{CAPACITY, Chunk},
    state::{DeviceState, Line},
    storage::{WgpuStorage, memory_of},
    store::store,
    submissions::{Command, Commands, Region, Regions},
    timestamps::Interval,
};

/// Most regions of one submission, which bounds the memory that it takes.
const MOST_REGIONS: usize = MOST_PIECES;

/// One side of a copy.
#[derive(Clone, Copy)]
enum Side {
    /// Memory of the device, device or pinned, and the offset of the first byte.
    Own(Own, u64),
    /// Other host memory.
    Host(NonNull<u8>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Own {
    buffer: BufferHandle,
    /// Whether a shader can copy pieces of it.
    is_bindable: bool,
    is_local: bool,
    /// Whether another API has it between submissions.
    is_exported: bool,
}

impl Own {
    fn new(memory: &Memory) -> Self {
        Self {
            buffer: memory.buffer(),
            is_bindable: memory.is_bindable(),
            is_local: memory.is_local(),
            is_exported: memory.is_exported(),
        }
    }
}

impl Side {
    /// Returns that of another view of the same allocation.
    fn of(self, buffer: &RawBuffer) -> Self {
        match self {
            Self::Own(handle, _) => Self::Own(handle, buffer.offset() as u64),
            Self::Host(address) => Self::Host(buffer.host_address().unwrap_or(address)),
        }
    }

    fn new(device: &DeviceState, buffer: &RawBuffer) -> Result<Self> {
        if let Some(own) = own_memory(device, buffer)? {
            return Ok(Self::Own(own, buffer.offset() as u64));
        }
        match buffer.host_address() {
            Some(address) if buffer.place().device.is_cpu() => Ok(Self::Host(address)),
            _ => {
                let text = format!("a queue of {} does not reach {} memory", device.id(), buffer.place());
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }
}

/// Returns the Vulkan buffer of memory of the device.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if it was a framework's, and is destroyed.
fn own_memory(device: &DeviceState, buffer: &RawBuffer) -> Result<Option<Own>> {
    let memory = memory_of(buffer).filter(|memory| memory.is_of(&device.queue.vulkan));
    if memory.is_some_and(Memory::is_destroyed) {
        let text = format!("{}: wgpu has destroyed the adopted buffer", device.id());
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    Ok(memory.map(Own::new))
}

/// Performs an operation on a queue of the device, after values of semaphores of its other queues, and has its begin and end written into each of
/// these slots. Returns its point. Host memory of others was read or written when it returns.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for an operation that the queue cannot do; the driver's. Nothing touches the buffers then, unless it is partial.
///
/// # Safety
/// * Those of [`Queue::enqueue`](transload_core::Queue::enqueue); everything that comes before is complete, on the same queue, or awaited.
pub(crate) unsafe fn perform(
    device: &DeviceState,
    line: &Line,
    operation: &Operation<'_>,
    (after, measured): (&[(vk::Semaphore, u64)], &[Interval]),
) -> Result<u64> {
    if measured.is_empty() && (after.is_empty() || mutant!("wgpu/store-after-others")) {
        // SAFETY: the caller's promise.
        if let Some(point) = unsafe { store(device, line, operation) }? {
            return Ok(point);
        }
    }
    let mut packer = Packer {
        device,
        line,
        after,
        measured,
        commands: Commands::new(),
        exported: SmallVec::new(),
        regions: 0,
        chunk: None,
        pending: None,
        last: None,
    };
    let is_by_wgpu =
        !ptr::eq(line, &*device.wgpu) && operation.uses().into_iter().any(|(buffer, _)| is_adopted(buffer));
    // A hook of accesses by the host may panic where some of it is in flight.
    let outcome = catch_panic(|| match is_by_wgpu {
        // SAFETY: the caller's promise.
        true => unsafe { packer.perform_by_wgpu(operation) },
        // SAFETY: the caller's promise.
        false => unsafe { packer.pack(operation).and_then(|()| packer.finish()) },
    });
    // Some bytes have changed, and no others will.
    let is_part = packer.last.is_some() && !is_by_wgpu;
    let outcome = outcome.flatten().map_err(|error| if is_part { error.of_part() } else { error });
    if let Some(point) = packer.last.filter(|_| outcome.is_err() && !mutant!("wgpu/refused-copy-waits")) {
        line.queue.block_until(point);
    }
    outcome
}

fn is_adopted(buffer: &RawBuffer) -> bool {
    memory_of(buffer).is_some_and(Memory::is_adopted)
}

/// Collects the copies of an operation, and submits them when a staging buffer is full. They are independent of each other.
struct Packer<'a> {
    device: &'a DeviceState,
    line: &'a Line,
    /// What the first submission waits for.
    after: &'a [(vk::Semaphore, u64)],
    /// Where to write when the operation begins and ends.
    measured: &'a [Interval],
    commands: Commands,
    /// What each submission takes over from another API, and hands back: of a buffer, whole words that have all that the operation uses.
    exported: SmallVec<[(BufferHandle, Range<u64>); 2]>,
    regions: usize,
    chunk: Option<Chunk>,
    /// A submitted chunk with downloads, which the next one overlaps.
    pending: Option<(u64, Chunk)>,
    last: Option<u64>,
}

impl Packer<'_> {
    /// Performs the operation on wgpu's queue, to which the families of adopted buffers belong, between what comes before and after on this
    /// one.
    ///
    /// # Errors
    /// Those of [`perform`].
    ///
    /// # Safety
    /// * Those of [`perform`].
    unsafe fn perform_by_wgpu(&mut self, operation: &Operation<'_>) -> Result<u64> {
        let (queue, wgpu) = (&self.line.queue, &self.device.wgpu);
        // SAFETY: there are no commands but timestamps.
        unsafe { self.submit() }?;
        queue.block_until(queue.enqueued());
        // SAFETY: the caller's promise; what comes before is complete.
        let point = unsafe { perform(self.device, wgpu, operation, (&[], &[])) }?;
        wgpu.queue.block_until(point);
        wgpu.queue.outcome(point)?;
        // SAFETY: as above.
        unsafe { self.finish() }.map_err(Error::of_part)
    }

    /// # Safety
    /// * Those of [`perform`].
    unsafe fn pack(&mut self, operation: &Operation<'_>) -> Result<()> {
        match *operation {
            Operation::Copy { src, dst } => {
                let sides = self.sides(src, dst)?;
                // SAFETY: the caller's promise.
                unsafe { self.add(sides, (0, 0), src.len()) }
            }
            Operation::CopyBatch { pairs } => {
                let runs = || runs_by_allocation(pairs).filter_map(|run| Some((run, run.first()?)));
                // All first: after an error nothing was done.
                let sides = runs().map(|(_, (src, dst))| self.sides(src, dst)).collect::<Result<Vec<_>>>()?;
                for ((run, _), (from, to)) in runs().zip(sides) {
                    for (src, dst) in run {
                        self.note_exported(from, src);
                        self.note_exported(to, dst);
                        // SAFETY: the caller's promise.
                        unsafe { self.add((from.of(src), to.of(dst)), (0, 0), src.len())? };
                    }
                }
                Ok(())
            }
            Operation::CopyPitched { src, dst, rows } => {
                let sides = self.sides(src, dst)?;
                for plane in 0..rows.planes {
                    for row in 0..rows.height {
                        let at = (
                            plane * rows.src_plane + row * rows.src_pitch,
                            plane * rows.dst_plane + row * rows.dst_pitch,
                        );
                        // SAFETY: the caller's promise; the validated rows are within the buffers.
                        unsafe { self.add(sides, at, rows.width)? };
                    }
                }
                Ok(())
            }
            Operation::Fill { dst, pattern } => match own_memory(self.device, dst)? {
                Some(own) => {
                    self.note_exported(Side::Own(own, 0), dst);
                    self.commands = fill(own.buffer, dst.offset() as u64, dst.len() as u64, pattern);
                    Ok(())
                }
                None => Err(self.unsupported(&format!("fill {} memory", dst.place()))),
            },
            _ => Err(self.unsupported("do this operation; it copies and fills")),
        }
    }

    fn unsupported(&self, what: &str) -> Error {
        Error::new(ErrorKind::Unsupported, format!("a queue of {} does not {what}", self.device.id()))
    }

    fn sides(&mut self, src: &RawBuffer, dst: &RawBuffer) -> Result<(Side, Side)> {
        if !self.device.can_copy_alone(src.place(), dst.place()) {
            return Err(self.unsupported(&format!("copy {} to {}", src.place(), dst.place())));
        }
        let sides = (Side::new(self.device, src)?, Side::new(self.device, dst)?);
        self.note_exported(sides.0, src);
        self.note_exported(sides.1, dst);
        Ok(sides)
    }

    fn note_exported(&mut self, side: Side, used: &RawBuffer) {
        let Side::Own(Own { buffer, is_exported: true, .. }, _) = side else { return };
        // A barrier has at least a byte.
        if used.is_empty() {
            return;
        }
        let end = (used.offset() + used.len()) as u64;
        let range = used.offset() as u64 & !3..end.next_multiple_of(4);
        match self.exported.iter_mut().find(|(known, _)| *known == buffer) {
            Some((_, all)) => *all = all.start.min(range.start)..all.end.max(range.end),
            None => self.exported.push((buffer, range)),
        }
    }

    /// Adds the copy of `bytes` at these offsets.
    ///
    /// # Safety
    /// * Those of [`perform`]; the ranges are within the buffers.
    unsafe fn add(
        &mut self,
        sides: (Side, Side),
        (mut from, mut to): (usize, usize),
        mut bytes: usize,
    ) -> Result<()> {
        if let (Side::Own(src, src_offset), Side::Own(dst, dst_offset)) = sides {
            return match bytes {
                0 => Ok(()),
                // SAFETY: the caller's promise.
                _ => unsafe {
                    self.copy((src, src_offset + from as u64), (dst, dst_offset + to as u64), bytes)
                },
            };
        }
        while bytes > 0 {
            if self.chunk.as_ref().is_some_and(|chunk| chunk.used == CAPACITY) {
                // SAFETY: the caller's promise.
                unsafe { self.submit()? };
            }
            let Chunk { buffer, address, used, downloads } = match &mut self.chunk {
                Some(chunk) => chunk,
                empty => {
                    let taken = match (self.line.take_staging(&self.device.counters), self.pending.take()) {
                        // Its own buffer is as good, once it is read.
                        (Err(_), Some(pending)) => {
                            self.line.download(pending)?;
                            self.line.take_staging(&self.device.counters)?
                        }
                        (taken, pending) => {
                            self.pending = pending;
                            taken?
                        }
                    };
                    empty.insert(taken)
                }
            };
            let (at, part) = (*used, bytes.min(CAPACITY - *used));
            *used += part;
            let staging = (Own::new(buffer.memory()), at as u64);
            match sides {
                (Side::Host(src), Side::Own(dst, offset)) => {
                    // SAFETY: the caller keeps the source alive and unchanged; the buffer is as long, and not in use.
                    unsafe { copy_bytes(src.add(from), address.add(at), part) };
                    // SAFETY: the caller's promise.
                    unsafe { self.copy(staging, (dst, offset + to as u64), part)? };
                }
                (Side::Own(src, offset), Side::Host(dst)) => {
                    // SAFETY: the range is within the destination.
                    downloads.push((unsafe { dst.add(to) }, at, part));
                    // SAFETY: the caller's promise.
                    unsafe { self.copy((src, offset + from as u64), staging, part)? };
                }
                _ => return Err(self.unsupported("copy within the host; use a queue of cpu")),
            }
            (from, to, bytes) = (from + part, to + part, bytes - part);
        }
        Ok(())
    }

    /// Adds a region, to the last one if it continues that.
    ///
    /// # Safety
    /// * Those of [`add`](Self::add).
    unsafe fn copy(&mut self, from: (Own, u64), to: (Own, u64), bytes: usize) -> Result<()> {
        if self.regions == MOST_REGIONS && self.chunk.is_none() {
            // SAFETY: the caller's promise.
            unsafe { self.submit()? };
        }
        let region = Region { src_offset: from.1, dst_offset: to.1, size: bytes as u64 };
        let regions = match self.commands.last_mut() {
            Some(Command::Copy { src, dst, regions, .. }) if (*src, *dst) == (from.0.buffer, to.0.buffer) => {
                regions
            }
            _ => {
                self.commands.push(Command::Copy {
                    src: from.0.buffer,
                    dst: to.0.buffer,
                    regions: Regions::new(),
                    is_bindable: from.0.is_bindable && to.0.is_bindable && from.0 != to.0,
                    is_local: from.0.is_local && to.0.is_local,
                });
                match self.commands.last_mut() {
                    Some(Command::Copy { regions, .. }) => regions,
                    _ => return Ok(()),
                }
            }
        };
        match regions.last_mut() {
            Some(last)
                if last.src_offset + last.size == region.src_offset
                    && last.dst_offset + last.size == region.dst_offset =>
            {
                last.size += region.size;
            }
            _ => {
                regions.push(region);
                self.regions += 1;
            }
        }
        Ok(())
    }

    /// Has a shader copy the lists of short pieces, and what is long within a GPU. Returns the buffer in which their tables are, if there are
    /// any.
    fn leave_to_shader(&mut self) -> Option<WgpuStorage> {
        let shape = |command: &Command| match command {
            Command::Copy { regions, is_bindable: true, is_local, .. } => shape_of(regions, *is_local),
            _ => None,
        };
        if !self.commands.iter().any(|command| shape(command).is_some()) || !self.line.queue.copies_lists() {
            return None;
        }
        let (mut table, mut used, mut lists): (Option<WgpuStorage>, _, _) = (None, 0, 0);
        for command in &mut self.commands {
            let Some(shape) = shape(command).filter(|_| lists < LISTS) else { continue };
            let Command::Copy { src, dst, regions, .. } = command else { continue };
            let (unit, pieces) = match shape {
                Shape::Long(unit) => (unit, Pieces::Long(std::mem::take(regions))),
                Shape::List(unit) => {
                    if table.is_none() {
                        table = self.line.staging.try_take(&self.line.queue, &self.device.counters);
                    }
                    // Without a buffer for tables the lists are copied as they are.
                    let Some(of) = &table else { continue };
                    let (end, address) = (used + regions.len() * ENTRY, of.memory().address());
                    let Some(address) = address.filter(|_| end <= CAPACITY) else { continue };
                    for (index, entry) in entries(regions, unit).enumerate() {
                        // SAFETY: the table's end is within the buffer, which no one uses, and whose address is that of whole pages.
                        unsafe { address.add(used).cast::<[u32; 4]>().add(index).write(entry) };
                    }
                    let count = regions.len() as u32 - u32::from(mutant!("wgpu/list-is-whole"));
                    let begin = std::mem::replace(&mut used, end.next_multiple_of(ALIGNMENT)) as u64;
                    (unit, Pieces::Table((of.memory().buffer(), begin), count))
                }
            };
            let (src, dst) = (*src, *dst);
            *command = Command::CopyList(List { src, dst, unit, pieces });
            lists += 1;
        }
        table
    }

    /// Submits what was collected. Copies the chunk before it to its destinations.
    ///
    /// # Safety
    /// * Those of [`perform`].
    unsafe fn submit(&mut self) -> Result<()> {
        if self.last.is_none() {
            let begins = self.measured.iter().filter_map(|(begin, _)| self.line.queue.timestamp(*begin));
            self.commands.insert_many(0, begins);
        }
        let table = self.leave_to_shader();
        if !self.exported.is_empty() {
            let hand_over = |takes| Command::HandOver { ranges: self.exported.clone(), takes };
            self.commands.insert(0, hand_over(true));
            self.commands.push(hand_over(false));
        }
        let after = self.device.with_written_by_others(self.line, self.after);
        // SAFETY: the caller's promise; a staging buffer is kept until its point.
        let submitted = unsafe { self.line.queue.submit(&self.commands, &after) };
        if let Some(table) = table {
            let until = submitted.as_ref().copied().unwrap_or(0);
            self.line.staging.put(&self.line.queue, until, table);
        }
        let chunk = self.chunk.take();
        let point = match submitted {
            Ok(point) => point,
            Err(error) => {
                if let Some(Chunk { buffer, .. }) = chunk {
                    self.line.staging.put(&self.line.queue, 0, buffer);
                }
                return Err(error);
            }
        };
        self.last = Some(point);
        self.commands.clear();
        self.regions = 0;
        match chunk {
            None => Ok(()),
            Some(chunk) if chunk.downloads.is_empty() => {
                self.line.staging.put(&self.line.queue, point, chunk.buffer);
                Ok(())
            }
            Some(chunk) => {
                let before = self.pending.replace((point, chunk));
                before.map_or(Ok(()), |before| self.line.download(before))
            }
        }
    }

    /// Submits the rest, and returns the operation's point.
    ///
    /// # Safety
    /// * Those of [`perform`].
    unsafe fn finish(&mut self) -> Result<u64> {
        let is_measured = !self.measured.is_empty();
        if !self.commands.is_empty() || self.last.is_none() || is_measured {
            self.commands.extend(self.measured.iter().filter_map(|(_, end)| self.line.queue.timestamp(*end)));
            // SAFETY: the caller's promise.
            unsafe { self.submit()? };
        }
        if let Some(pending) = self.pending.take() {
            self.line.download(pending)?;
        }
        Ok(self.last.unwrap_or(0))
    }
}

/// Copies between host memory and memory of the device that the host sees.
///
/// # Safety
/// * Both ranges are valid, do not overlap, and are used by no other thread or device meanwhile.
pub(super) unsafe fn copy_bytes(src: NonNull<u8>, dst: NonNull<u8>, bytes: usize) {
    host_access::note(src.as_ptr().addr(), bytes, HostAccess::Read);
    host_access::note(dst.as_ptr().addr(), bytes, HostAccess::Write);
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(src.as_ptr(), dst.as_ptr(), bytes) };
}

#[cfg(test)]
#[path = "../../tests/unit/refused.rs"]
mod tests;

#[cfg(all(test, feature = "cuda", target_os = "linux"))]
#[path = "../../tests/unit/handed_over.rs"]
mod handed_over;
