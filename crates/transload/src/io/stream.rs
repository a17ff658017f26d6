//! The pipeline between a source or a sink and memory: a few staging buffers that are used over and over.

use std::{
    collections::VecDeque,
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    time::Instant,
};

use transload_core::{
    Buffer, Error, ErrorKind, MemoryKind, Pod, RawBuffer, Result, Transfer, events::report,
};
use transload_transfer::{CrossBackendTransferManager, StagingMemory, TransferOptions};

use super::{ByteSink, ByteSource, StreamError, StreamReport};
use crate::{Runtime, staging};

/// Separate copies of 4 MiB reach 0.97 of a link's rate.
const CHUNK: usize = 4 << 20;
/// One is read or written, one is in flight, and the third absorbs a slow read or write.
const BUFFERS: usize = 3;
/// Smaller buffers are not worth pinned memory, if that is short.
const MIN_PINNED: usize = 64 << 10;

/// Bytes on their way from a source into memory, or from memory to a sink. Returned by [`Runtime::read_from`] and
/// [`Runtime::write_to`]; begins when it is awaited.
///
/// If pinned memory is short it goes on with fewer and smaller staging buffers. If it is dropped before its end, it stops; nothing says
/// how many bytes had arrived, and the rest of the memory may hold any of them.
#[must_use = "nothing is moved before it is awaited"]
pub struct ByteStream<'s> {
    pipeline: Pipeline,
    end: End<'s>,
}

enum End<'s> {
    Source(Box<dyn ByteSource + 's>),
    Sink(Box<dyn ByteSink + 's>),
}

impl ByteStream<'_> {
    /// Sets the bytes of a staging buffer, which is also the most that one transfer moves; 4 MiB by default.
    pub fn chunk(mut self, bytes: usize) -> Self {
        self.pipeline.chunk = bytes;
        self
    }

    /// Sets the most staging buffers; 3 by default. With the chunk's size they bound the host memory of a stream. Pinned ones count
    /// as [`Resources::staging_bytes`](crate::Resources::staging_bytes); beyond the limit of these they are pageable.
    pub fn buffers(mut self, count: usize) -> Self {
        self.pipeline.buffers = count;
        self
    }

    /// Sets the priority and the allowed methods of the transfers.
    pub fn options(mut self, options: TransferOptions) -> Self {
        self.pipeline.options = options;
        self
    }

    async fn run(self) -> Result<StreamReport, StreamError> {
        let begun = Instant::now();
        let Self { mut pipeline, end } = self;
        let outcome = match end {
            End::Source(mut source) => pipeline.fill(&mut source).await,
            End::Sink(mut sink) => {
                let outcome = pipeline.empty(&mut sink).await;
                pipeline.count_no_more();
                outcome
            }
        };
        pipeline.finish(begun, outcome).await
    }
}

impl<'s> IntoFuture for ByteStream<'s> {
    type Output = Result<StreamReport, StreamError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 's>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl fmt::Debug for ByteStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pipeline { memory, chunk, buffers, .. } = &self.pipeline;
        f.debug_struct("ByteStream")
            .field("memory", memory)
            .field("chunk", chunk)
            .field("buffers", buffers)
            .finish_non_exhaustive()
    }
}

impl Runtime {
    /// Fills a buffer from a source, until it is full or the source ends: [`StreamReport::bytes`] says how much that is. What a longer
    /// source has left is not read. See [`io`](crate::io).
    ///
    /// # Errors
    /// As for [`io::read_from`](crate::io::read_from).
    pub fn read_from<'s, T: Pod>(
        &self,
        source: impl ByteSource + 's,
        dst: &(impl Buffer<T> + ?Sized),
    ) -> ByteStream<'s> {
        read_from(self.manager(), source, dst.raw())
    }

    /// Writes all of a buffer to a sink and flushes it. See [`io`](crate::io).
    ///
    /// # Errors
    /// As for [`io::write_to`](crate::io::write_to).
    pub fn write_to<'s, T: Pod>(
        &self,
        src: &(impl Buffer<T> + ?Sized),
        sink: impl ByteSink + 's,
    ) -> ByteStream<'s> {
        write_to(self.manager(), src.raw(), sink)
    }
}

/// Like [`Runtime::read_from`], with any manager and buffer.
///
/// # Errors
/// The source's, the backend's, or [`ErrorKind::InvalidArgument`] for a chunk of 0 bytes or no buffers. All bytes that were read
/// before the source failed are in place. Nothing is in flight afterwards.
pub fn read_from<'s>(
    manager: &CrossBackendTransferManager,
    source: impl ByteSource + 's,
    dst: &RawBuffer,
) -> ByteStream<'s> {
    ByteStream { pipeline: Pipeline::new(manager, dst), end: End::Source(Box::new(source)) }
}

/// Like [`Runtime::write_to`], with any manager and buffer.
///
/// # Errors
/// The sink's, the backend's, or [`ErrorKind::InvalidArgument`] for a chunk of 0 bytes or no buffers. Nothing is in flight
/// afterwards.
pub fn write_to<'s>(
    manager: &CrossBackendTransferManager,
    src: &RawBuffer,
    sink: impl ByteSink + 's,
) -> ByteStream<'s> {
    ByteStream { pipeline: Pipeline::new(manager, src), end: End::Sink(Box::new(sink)) }
}

/// One stream: which of its staging buffers are free, and which are in flight.
struct Pipeline {
    manager: CrossBackendTransferManager,
    chunk: usize,
    buffers: usize,
    options: TransferOptions,
    /// The memory that is read or written.
    memory: RawBuffer,
    free: Vec<StagingMemory>,
    /// In the order of their bytes.
    in_flight: VecDeque<Chunk>,
    /// Its bytes are those of [`StreamError::bytes`].
    report: StreamReport,
}

/// A transfer and the staging buffer that it uses.
struct Chunk {
    staging: StagingMemory,
    bytes: usize,
    transfer: Transfer,
}

impl Pipeline {
    fn new(manager: &CrossBackendTransferManager, memory: &RawBuffer) -> Self {
        Self {
            manager: manager.clone(),
            chunk: CHUNK,
            buffers: BUFFERS,
            options: TransferOptions::new(),
            memory: memory.clone(),
            free: Vec::new(),
            in_flight: VecDeque::new(),
            report: StreamReport::default(),
        }
    }

    /// Reads until the memory is full or the source ends.
    async fn fill(&mut self, source: &mut impl ByteSource) -> Result<()> {
        self.check()?;
        let in_place = self.is_of_host() && !source.outlives_its_future();
        let mut at = 0;
        while at < self.memory.len() {
            let left = self.memory.len() - at;
            let (bytes, more) = if in_place {
                let most = self.chunk.min(left);
                let (bytes, more) = read_up_to(source, &self.memory.slice(at..at + most)?, most).await;
                self.report.bytes += bytes as u64;
                (bytes, more)
            } else {
                self.recover().await?;
                let Some(staging) = self.staging_buffer().await? else { continue };
                let most = staging.len().min(left);
                let (bytes, more) = read_up_to(source, &staging, most).await;
                if bytes > 0 {
                    let (from, to) = (staging.slice(..bytes)?, self.memory.slice(at..at + bytes)?);
                    self.start(staging, &from, &to).await;
                }
                (bytes, more)
            };
            at += bytes;
            if !more? {
                break;
            }
        }
        Ok(())
    }

    /// Writes all of the memory.
    async fn empty(&mut self, sink: &mut impl ByteSink) -> Result<()> {
        self.check()?;
        let in_place = self.is_of_host() && !sink.outlives_its_future();
        let (mut at, len) = (0, self.memory.len());
        loop {
            while at < len && self.in_flight.len() < self.buffers && !in_place {
                let Some(staging) = self.staging_buffer().await? else { break };
                let bytes = staging.len().min(len - at);
                let (from, to) = (self.memory.slice(at..at + bytes)?, staging.slice(..bytes)?);
                self.start(staging, &from, &to).await;
                at += bytes;
            }
            if let Some(Chunk { staging, bytes, transfer }) = self.in_flight.pop_front() {
                self.report.count(&transfer.await?);
                self.write_all(sink, &staging.slice(..bytes)?).await?;
                self.free.push(staging);
            } else if at < len {
                let piece = self.memory.slice(at..len.min(at + self.chunk))?;
                self.write_all(sink, &piece).await?;
                at += piece.len();
            } else {
                return sink.flush().await;
            }
        }
    }

    async fn write_all(&mut self, sink: &mut impl ByteSink, piece: &RawBuffer) -> Result<()> {
        let mut at = 0;
        while at < piece.len() {
            let rest = piece.slice(at..)?;
            let count = match sink.write(&rest).await? {
                0 => return Err(Error::new(ErrorKind::Io, "the sink takes no more bytes")),
                count => at_most(count, rest.len())?,
            };
            at += count;
            self.report.bytes += count as u64;
        }
        Ok(())
    }

    /// Waits for what is in flight, and returns the outcome of the stream.
    async fn finish(mut self, begun: Instant, mut outcome: Result<()>) -> Result<StreamReport, StreamError> {
        while !self.in_flight.is_empty() {
            let settled = self.settle().await;
            outcome = outcome.and(settled);
        }
        self.report.wall = begun.elapsed();
        let (bytes, report) = (self.report.bytes, self.report);
        outcome.map(|()| report).map_err(|cause| StreamError { bytes, cause })
    }

    async fn start(&mut self, staging: StagingMemory, from: &RawBuffer, to: &RawBuffer) {
        let copy = self.manager.copy(from, to).options(self.options);
        let transfer = copy.submit_async().await;
        self.in_flight.push_back(Chunk { staging, bytes: from.len(), transfer });
    }

    /// Recovers a buffer in flight: of a complete transfer, or by waiting if there may be no further buffer.
    async fn recover(&mut self) -> Result<()> {
        let full = self.in_flight.len() >= self.buffers;
        let complete = self.in_flight.front().is_some_and(|oldest| oldest.transfer.is_complete());
        if self.free.is_empty() && (full || complete) { self.settle().await } else { Ok(()) }
    }

    /// Waits for the oldest transfer, counts its bytes and frees its buffer.
    async fn settle(&mut self) -> Result<()> {
        let Some(Chunk { staging, bytes, transfer }) = self.in_flight.pop_front() else { return Ok(()) };
        match transfer.await {
            Ok(report) => self.report.count(&report),
            Err(error) => {
                self.count_no_more();
                return Err(error);
            }
        }
        self.report.bytes += bytes as u64;
        self.free.push(staging);
        Ok(())
    }

    /// Bytes in flight after a failed transfer, or on their way to a sink that failed, do not count as moved.
    fn count_no_more(&mut self) {
        self.in_flight.iter_mut().for_each(|chunk| chunk.bytes = 0);
    }

    /// Returns a free buffer, or a new one. `None` if there is no more memory, but a buffer in flight, which will be free.
    async fn staging_buffer(&mut self) -> Result<Option<StagingMemory>> {
        if let Some(buffer) = self.free.pop() {
            return Ok(Some(buffer));
        }
        let device = self.memory.place().device;
        let (mut kind, chunk) = (staging::kind_for(&self.manager, device), self.chunk);
        loop {
            let (manager, bytes) = (self.manager.clone(), self.chunk);
            let allocate = move || manager.allocate_staging(device, kind, bytes);
            match self.manager.spawn_blocking(allocate).await? {
                Err(error) if error.kind() == ErrorKind::OutOfMemory && kind == MemoryKind::Pinned => {
                    report::pages_declined("pinned staging memory", None, &error);
                    if !self.in_flight.is_empty() {
                        self.buffers = self.in_flight.len();
                        return Ok(None);
                    } else if bytes > MIN_PINNED {
                        self.chunk = (bytes / 2).max(MIN_PINNED);
                    } else {
                        (kind, self.chunk) = (MemoryKind::Pageable, chunk);
                    }
                }
                outcome => {
                    let buffer = outcome?;
                    self.report.buffers += 1;
                    self.report.staging_bytes += buffer.len() as u64;
                    return Ok(Some(buffer));
                }
            }
        }
    }

    /// Whether it is host memory.
    fn is_of_host(&self) -> bool {
        self.memory.place().device.is_cpu()
    }

    /// Checks the settings. A buffer is no longer than the memory.
    fn check(&mut self) -> Result<()> {
        let Self { chunk, buffers, .. } = *self;
        if chunk > 0 && buffers > 0 {
            self.chunk = chunk.min(self.memory.len().max(1));
            return Ok(());
        }
        let text =
            format!("{buffers} staging buffers of {chunk} bytes; valid: at least 1 of at least 1 byte");
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }
}

/// Reads until `most` bytes are there. Returns how many are, and whether the source may have more.
async fn read_up_to(source: &mut impl ByteSource, staging: &RawBuffer, most: usize) -> (usize, Result<bool>) {
    let mut bytes = 0;
    while bytes < most {
        let read = async { at_most(source.read(&staging.slice(bytes..most)?).await?, most - bytes) };
        match read.await {
            Ok(0) => return (bytes, Ok(false)),
            Ok(count) => bytes += count,
            Err(error) => return (bytes, Err(error)),
        }
    }
    (bytes, Ok(true))
}

/// Checks what an implementation returned.
fn at_most(count: usize, most: usize) -> Result<usize> {
    if count <= most {
        return Ok(count);
    }
    let text = format!("the source or sink returned {count} bytes, but was given {most}");
    Err(Error::new(ErrorKind::Io, text))
}
