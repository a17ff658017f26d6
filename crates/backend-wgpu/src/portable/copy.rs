//! Turns operations into commands of wgpu. Host memory is copied through staging buffers during the call.

use std::{ptr::NonNull, slice};

use transload_core::{
    Error, ErrorKind, Operation, Pattern, RawBuffer, Result,
    host_access::{self, HostAccess},
};

use super::{
    DeviceState,
    kernel::Jobs,
    staging::{CAPACITY, Download, Upload},
    storage::PortableStorage,
};

/// Most commands of one submission, which bounds the memory that it takes.
const MOST_COMMANDS: usize = 1 << 14;

/// One side of a copy.
#[derive(Clone, Copy)]
enum Side<'a> {
    /// Memory of the device: its buffer, and the offset of the first byte.
    Device(&'a PortableStorage, u64),
    Host(NonNull<u8>),
}

/// Performs an operation on the device's queue. Returns its point. Host memory was read or written when it returns.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for an operation that the queue cannot do; wgpu's. Nothing touches the buffers then, unless it is partial.
///
/// # Safety
/// * Those of [`Queue::enqueue`](transload_core::Queue::enqueue); everything that comes before is complete or on the same queue.
pub(super) unsafe fn perform(device: &DeviceState, operation: &Operation<'_>) -> Result<u64> {
    let mut packer = Packer {
        device,
        encoder: None,
        commands: 0,
        jobs: Jobs::default(),
        upload: None,
        download: None,
        pending: None,
        last: None,
    };
    // SAFETY: the caller's promise.
    let outcome = unsafe { packer.pack(operation) }.and_then(|()| packer.finish());
    match (outcome, packer.last) {
        (Err(error), Some(point)) => {
            device.queue.block_until(point);
            Err(error.of_part())
        }
        (outcome, _) => outcome,
    }
}

/// A staging buffer that the device writes, with the host memory to copy to: address, offset in the buffer, bytes.
struct Downloads {
    buffer: Download,
    used: usize,
    parts: Vec<(NonNull<u8>, usize, usize)>,
}

/// Collects the copies of an operation, and submits them when a staging buffer is full. They are independent of each other.
struct Packer<'a> {
    device: &'a DeviceState,
    encoder: Option<wgpu::CommandEncoder>,
    commands: usize,
    jobs: Jobs,
    /// A staging buffer that is being filled, and how far it is.
    upload: Option<(Upload, usize)>,
    download: Option<Downloads>,
    /// Submitted downloads, which the next ones overlap.
    pending: Option<Downloads>,
    last: Option<u64>,
}

impl<'a> Packer<'a> {
    /// # Safety
    /// * Those of [`perform`].
    unsafe fn pack(&mut self, operation: &Operation<'a>) -> Result<()> {
        match *operation {
            Operation::Copy { src, dst } => {
                let sides = self.sides(src, dst)?;
                self.check_kernel(sides, src.len())?;
                // SAFETY: the caller's promise.
                unsafe { self.add(sides, (0, 0), src.len()) }
            }
            Operation::CopyBatch { pairs } => {
                // All first: after an error nothing was done.
                let sides = pairs.iter().map(|(src, dst)| {
                    let sides = self.sides(src, dst)?;
                    self.check_kernel(sides, src.len()).map(|()| sides)
                });
                let sides = sides.collect::<Result<Vec<_>>>()?;
                // SAFETY: the caller's promise.
                sides
                    .into_iter()
                    .zip(pairs)
                    .try_for_each(|(sides, (src, _))| unsafe { self.add(sides, (0, 0), src.len()) })
            }
            Operation::CopyPitched { src, dst, rows } => {
                let sides = self.sides(src, dst)?;
                let is_aligned = |pitch: usize, plane: usize| {
                    (rows.height < 2 || pitch.is_multiple_of(4))
                        && (rows.planes < 2 || plane.is_multiple_of(4))
                };
                let are_alike = is_aligned(rows.dst_pitch, rows.dst_plane)
                    && (matches!(sides.0, Side::Host(_)) || is_aligned(rows.src_pitch, rows.src_plane));
                match sides.1 {
                    // Some row begins within a word.
                    Side::Device(dst, _) if !are_alike => self.device.kernel(dst).map(drop)?,
                    _ => self.check_kernel(sides, rows.width)?,
                }
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
            Operation::Fill { dst, pattern } => match self.device.storage(dst) {
                Some(storage) => self.fill(storage, dst, pattern),
                None => Err(self.unsupported(&format!("fill {} memory", dst.place()))),
            },
            _ => Err(self.unsupported("do this operation; it copies and fills")),
        }
    }

    fn unsupported(&self, what: &str) -> Error {
        Error::new(ErrorKind::Unsupported, format!("a queue of {} does not {what}", self.device.id()))
    }

    fn sides(&self, src: &'a RawBuffer, dst: &'a RawBuffer) -> Result<(Side<'a>, Side<'a>)> {
        if !self.device.can_copy(src.place(), dst.place()) {
            return Err(self.unsupported(&format!("copy {} to {}", src.place(), dst.place())));
        }
        let side = |buffer: &'a RawBuffer| match (self.device.storage(buffer), buffer.host_address()) {
            (Some(storage), _) => Ok(Side::Device(storage, buffer.offset() as u64)),
            (None, Some(address)) if buffer.place().device.is_cpu() => Ok(Side::Host(address)),
            _ => Err(self.unsupported(&format!("reach this {} memory, of another device", buffer.place()))),
        };
        Ok((side(src)?, side(dst)?))
    }

    /// Makes the kernel ready if a copy needs it, so that nothing is submitted if it is not to be had.
    fn check_kernel(&self, (src, dst): (Side<'_>, Side<'_>), bytes: usize) -> Result<()> {
        let own = |side| match side {
            Side::Device(storage, at) => Some((storage, at)),
            Side::Host(_) => None,
        };
        match own(dst) {
            Some(dst) if needs_kernel(own(src), dst, bytes as u64) => self.device.kernel(dst.0).map(drop),
            _ => Ok(()),
        }
    }

    fn fill(&mut self, storage: &PortableStorage, dst: &RawBuffer, pattern: Pattern) -> Result<()> {
        let kernel = self.device.kernel(storage)?;
        let (mut begin, all) = (dst.offset() as u64, dst.len() as u64);
        let end = begin + all;
        while begin < end {
            self.make_room()?;
            begin += self.jobs.fill(kernel, &storage.buffer, (begin, end), all, pattern.repeated());
        }
        Ok(())
    }

    /// Submits if there is no place for what one piece of a copy needs: a few commands, two jobs.
    fn make_room(&mut self) -> Result<()> {
        if self.commands >= MOST_COMMANDS || self.jobs.is_full() { self.submit() } else { Ok(()) }
    }

    /// Returns the encoder, which is about to get another command.
    fn encoder(&mut self) -> Result<&mut wgpu::CommandEncoder> {
        self.commands += 1;
        let queue = &self.device.queue;
        let made = match self.encoder.take() {
            Some(made) => made,
            None => queue.captured(|| queue.device.create_command_encoder(&Default::default()))?,
        };
        Ok(self.encoder.insert(made))
    }

    /// Adds the copy of `bytes` at these offsets.
    ///
    /// # Safety
    /// * Those of [`perform`]; the ranges are within the buffers.
    unsafe fn add(
        &mut self,
        sides: (Side<'a>, Side<'a>),
        (from, to): (usize, usize),
        bytes: usize,
    ) -> Result<()> {
        match sides {
            (Side::Device(src, src_offset), Side::Device(dst, dst_offset)) => {
                self.copy((src, src_offset + from as u64), (dst, dst_offset + to as u64), bytes as u64)
            }
            (Side::Host(src), Side::Device(dst, offset)) => {
                host_access::note(src.as_ptr().addr() + from, bytes, HostAccess::Read);
                // SAFETY: the caller keeps the source alive and unchanged, and it is initialised.
                let src = unsafe { slice::from_raw_parts(src.add(from).as_ptr(), bytes) };
                self.upload(src, (dst, offset + to as u64))
            }
            (Side::Device(src, offset), Side::Host(dst)) => {
                // SAFETY: the range is within the destination, which the operation has claimed.
                unsafe { self.download((src, offset + from as u64), dst.add(to), bytes) }
            }
            (Side::Host(_), Side::Host(_)) => {
                Err(self.unsupported("copy within the host; use a queue of cpu"))
            }
        }
    }

    fn copy(
        &mut self,
        (src, mut from): (&PortableStorage, u64),
        (dst, mut to): (&PortableStorage, u64),
        mut bytes: u64,
    ) -> Result<()> {
        let (first, last) = words(dst, to, bytes);
        if src.buffer != dst.buffer && from % 4 == to % 4 && first < last {
            self.make_room()?;
            let (begin, whole) = (from + (first - to), last - first);
            self.encoder()?.copy_buffer_to_buffer(&src.buffer, begin, &dst.buffer, first, whole);
            self.rewrite((src, from), (dst, to), first - to)?;
            let after = (to + bytes).saturating_sub(last);
            (from, to, bytes) = (from + bytes - after, to + bytes - after, after);
        }
        self.rewrite((src, from), (dst, to), bytes)
    }

    /// Adds the copy of a range by the kernel.
    fn rewrite(
        &mut self,
        (src, mut from): (&PortableStorage, u64),
        (dst, mut to): (&PortableStorage, u64),
        mut bytes: u64,
    ) -> Result<()> {
        let device = self.device;
        while bytes > 0 {
            let kernel = device.kernel(dst)?;
            self.make_room()?;
            self.encoder()?;
            let Some(encoder) = &mut self.encoder else { break };
            let (src, dst) = ((&src.buffer, from), (&dst.buffer, to));
            let part = self.jobs.copy(kernel, (&device.queue, encoder), src, dst, bytes)?;
            (from, to, bytes) = (from + part, to + part, bytes - part);
        }
        Ok(())
    }

    fn upload(&mut self, mut src: &[u8], (dst, mut to): (&PortableStorage, u64)) -> Result<()> {
        let device = self.device;
        while !src.is_empty() {
            self.make_room()?;
            if self.upload.as_ref().is_some_and(|(_, used)| used + 8 > CAPACITY) {
                self.submit()?;
            }
            let (upload, used) = match &mut self.upload {
                Some(upload) => upload,
                empty => empty.insert((device.staging.upload(&device.queue, &device.counters)?, 0)),
            };
            // As far from a word's begin as in the destination.
            let at = *used + (to % 4) as usize;
            let (bytes, rest) = src.split_at(src.len().min(CAPACITY - at));
            upload.view.slice(at..at + bytes.len()).copy_from_slice(bytes);
            *used = (at + bytes.len()).next_multiple_of(4);
            let staging = upload.buffer().clone();
            let (first, last) = words(dst, to, bytes.len() as u64);
            if first < last {
                let begin = at as u64 + (first - to);
                self.encoder()?.copy_buffer_to_buffer(&staging, begin, &dst.buffer, first, last - first);
            }
            let end = to + bytes.len() as u64;
            for (begin, end) in [(to, first.min(end)), (last.max(first), end)] {
                if let Some(bytes) = bytes.get((begin - to) as usize..(end.max(begin) - to) as usize)
                    && begin < end
                {
                    self.jobs.write(device.kernel(dst)?, &dst.buffer, begin, bytes);
                }
            }
            (src, to) = (rest, end);
        }
        Ok(())
    }

    /// # Safety
    /// * The destination is that of the operation, and as long.
    unsafe fn download(
        &mut self,
        (src, mut from): (&PortableStorage, u64),
        mut dst: NonNull<u8>,
        mut bytes: usize,
    ) -> Result<()> {
        while bytes > 0 {
            self.make_room()?;
            if self.download.as_ref().is_some_and(|download| download.used + 8 > CAPACITY) {
                self.submit()?;
            }
            if self.download.is_none() {
                self.download = Some(Downloads { buffer: self.take_download()?, used: 0, parts: Vec::new() });
            }
            let Some(Downloads { buffer, used, parts }) = &mut self.download else { break };
            let phase = (from % 4) as usize;
            let (at, part) = (*used, bytes.min(CAPACITY - *used - phase));
            let words = (phase + part).next_multiple_of(4);
            *used += words;
            parts.push((dst, at + phase, part));
            let staging = buffer.buffer().clone();
            let begin = from - phase as u64;
            self.encoder()?.copy_buffer_to_buffer(&src.buffer, begin, &staging, at as u64, words as u64);
            // SAFETY: the range is within the destination, or ends there.
            dst = unsafe { dst.add(part) };
            (from, bytes) = (from + part as u64, bytes - part);
        }
        Ok(())
    }

    fn take_download(&mut self) -> Result<Download> {
        let take = || self.device.staging.download(&self.device.queue, &self.device.counters);
        match (take(), self.pending.take()) {
            // Its own buffer is as good, once it is read.
            (Err(_), Some(pending)) => {
                self.device.receive(pending)?;
                take()
            }
            (taken, pending) => {
                self.pending = pending;
                taken
            }
        }
    }

    /// Submits what was collected. Copies the downloads before it to their destinations.
    fn submit(&mut self) -> Result<()> {
        let DeviceState { queue, staging, kernel, .. } = self.device;
        self.encoder()?;
        self.commands = 0;
        let Some(encoder) = self.encoder.take() else { return Ok(()) };
        let jobs = std::mem::take(&mut self.jobs);
        let kernel = kernel.get();
        let (commands, table) = jobs.finish(kernel, queue, encoder)?;
        let written = self.upload.take().map(|(upload, _)| upload.unmap(queue)).transpose()?;
        let mut point = 0;
        queue.submit(
            vec![commands],
            |queue| {
                if let Some(kernel) = kernel {
                    kernel.write_table(queue, &table);
                }
            },
            |at| point = at,
        )?;
        self.last = Some(point);
        if let Some(written) = written {
            staging.put_upload(written, point);
        }
        let Some(mut download) = self.download.take() else { return Ok(()) };
        download.buffer.map_after(point);
        let before = self.pending.replace(download);
        before.map_or(Ok(()), |before| self.device.receive(before))
    }

    /// Submits the rest, and returns the operation's point.
    fn finish(&mut self) -> Result<u64> {
        if self.commands > 0 || !self.jobs.is_empty() || self.last.is_none() {
            self.submit()?;
        }
        if let Some(pending) = self.pending.take() {
            self.device.receive(pending)?;
        }
        Ok(self.last.unwrap_or(0))
    }
}

impl DeviceState {
    /// Copies downloads to their destinations.
    fn receive(&self, download: Downloads) -> Result<()> {
        let Downloads { buffer, parts, .. } = download;
        buffer.read(&self.queue, |view| {
            for (to, at, bytes) in parts {
                host_access::note(to.as_ptr().addr(), bytes, HostAccess::Write);
                // SAFETY: the destination is claimed by the operation in progress and as long.
                let to = unsafe { slice::from_raw_parts_mut(to.as_ptr(), bytes) };
                if let Some(from) = view.get(at..at + bytes) {
                    to.copy_from_slice(from);
                }
            }
        })?;
        self.staging.put_download(buffer);
        Ok(())
    }
}

/// Returns whether a copy to a range of a buffer needs the kernel. Without a source it is from memory of the host.
pub(super) fn needs_kernel(
    src: Option<(&PortableStorage, u64)>,
    (dst, to): (&PortableStorage, u64),
    bytes: u64,
) -> bool {
    let (first, last) = words(dst, to, bytes);
    let has_edges = first != to || last < to + bytes;
    let is_rewritten = src.is_some_and(|(src, from)| src.buffer == dst.buffer || from % 4 != to % 4);
    bytes > 0 && (has_edges || is_rewritten)
}

/// Returns the range of whole words that begin and end in a range of a buffer's bytes, which is empty if the first is not below the
/// second. The last word of a buffer may be longer than the buffer.
fn words(dst: &PortableStorage, begin: u64, bytes: u64) -> (u64, u64) {
    let end = begin + bytes;
    let last =
        if end == transload_core::Storage::len(dst) as u64 { end.next_multiple_of(4) } else { end / 4 * 4 };
    (begin.next_multiple_of(4), last)
}
