//! The pipeline between a source or a sink and memory: a few staging buffers that are used over and over.

use std::{collections::VecDeque, fmt, future::Future};

use transload_core::{
    Buffer, Error, ErrorKind, MemoryKind, Pod, RawBuffer, Result, Transfer, events::report,
};
use transload_transfer::{CrossBackendTransferManager, StagingMemory, TransferOptions};

use super::{ByteSink, ByteSource};
use crate::{Runtime, staging};

/// Separate copies of 4 MiB reach 0.97 of a link's rate.
const CHUNK: usize = 4 << 20;
/// One is read or written, one is in flight, and the third absorbs a slow read or write.
const BUFFERS: usize = 3;
/// Smaller buffers are not worth pinned memory, if that is short.
const MIN_PINNED: usize = 64 << 10;

/// How bytes are streamed. If pinned memory is short a stream goes on with fewer and smaller staging buffers.
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct StreamOptions {
    chunk: usize,
    buffers: usize,
    transfer: TransferOptions,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { chunk: CHUNK, buffers: BUFFERS, transfer: TransferOptions::new() }
    }
}

impl StreamOptions {
    /// Sets the bytes of a staging buffer, which is also the most that one transfer moves; 4 MiB by default.
    pub fn chunk(mut self, bytes: usize) -> Self {
        self.chunk = bytes;
        self
    }

    /// Sets the most staging buffers; 3 by default. With the chunk's size they bound the host memory of a stream. Pinned ones count
    /// as [`Resources::staging_bytes`](crate::Resources::staging_bytes); beyond the limit of these they are pageable.
    pub fn buffers(mut self, count: usize) -> Self {
        self.buffers = count;
        self
    }

    /// Sets the priority and the allowed methods of the transfers.
    pub fn transfer(mut self, options: TransferOptions) -> Self {
        self.transfer = options;
        self
    }
}

/// Why a stream ended early, and how far it got.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamError {
    /// Bytes at the beginning of the destination that are in place, or that the sink has taken.
    pub bytes: u64,
    /// The error of the source, the sink, an allocation or a transfer.
    pub cause: Error,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stream ended after {} bytes: {}", self.bytes, self.cause)
    }
}

impl std::error::Error for StreamError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The message contains the cause's, so the chain continues after it.
        self.cause.source()
    }
}

impl From<StreamError> for Error {
    fn from(error: StreamError) -> Self {
        let StreamError { bytes, cause } = error;
        Error::caused_by(cause.kind(), format!("the stream ended after {bytes} bytes"), cause)
    }
}

impl Runtime {
    /// Fills a buffer from a source, and returns the number of bytes: fewer than the buffer has if the source ends before. What a
    /// longer source has left is not read. See [`io`](crate::io).
    ///
    /// # Errors
    /// As for [`io::read_from`](crate::io::read_from).
    pub fn read_from<T: Pod, B: Buffer<T>, S: ByteSource>(
        &self,
        source: S,
        dst: &B,
    ) -> impl Future<Output = Result<u64, StreamError>> + Send + use<T, B, S> {
        read_from(self.manager(), source, dst.raw(), &StreamOptions::default())
    }

    /// Writes a buffer to a sink and flushes it. Returns the number of bytes, all that the buffer has. See [`io`](crate::io).
    ///
    /// # Errors
    /// As for [`io::write_to`](crate::io::write_to).
    pub fn write_to<T: Pod, B: Buffer<T>, S: ByteSink>(
        &self,
        src: &B,
        sink: S,
    ) -> impl Future<Output = Result<u64, StreamError>> + Send + use<T, B, S> {
        write_to(self.manager(), src.raw(), sink, &StreamOptions::default())
    }
}

/// Like [`Runtime::read_from`], with any manager, buffer and options. Begins when it is first polled.
///
/// # Errors
/// The source's, the backend's, or [`ErrorKind::InvalidArgument`] for a chunk of 0 bytes or no buffers. All bytes that were read
/// before the source failed are in place. Nothing is in flight afterwards.
pub fn read_from<S: ByteSource>(
    manager: &CrossBackendTransferManager,
    mut source: S,
    dst: &RawBuffer,
    options: &StreamOptions,
) -> impl Future<Output = Result<u64, StreamError>> + Send + use<S> {
    let mut stream = Stream::new(manager, dst, options);
    async move {
        let outcome = stream.fill(&mut source).await;
        stream.finish(outcome).await
    }
}

/// Like [`Runtime::write_to`], with any manager, buffer and options. Begins when it is first polled.
///
/// # Errors
/// The sink's, the backend's, or [`ErrorKind::InvalidArgument`] for a chunk of 0 bytes or no buffers. Nothing is in flight
/// afterwards.
pub fn write_to<S: ByteSink>(
    manager: &CrossBackendTransferManager,
    src: &RawBuffer,
    mut sink: S,
    options: &StreamOptions,
) -> impl Future<Output = Result<u64, StreamError>> + Send + use<S> {
    let mut stream = Stream::new(manager, src, options);
    async move {
        let outcome = stream.empty(&mut sink).await;
        stream.count_no_more();
        stream.finish(outcome).await
    }
}

/// One stream: which of its staging buffers are free, and which are in flight.
struct Stream {
    manager: CrossBackendTransferManager,
    options: StreamOptions,
    /// The memory that is read or written.
    memory: RawBuffer,
    free: Vec<StagingMemory>,
    /// In the order of their bytes.
    in_flight: VecDeque<Chunk>,
    /// See [`StreamError::bytes`].
    moved: u64,
}

/// A transfer and the staging buffer that it uses.
struct Chunk {
    staging: StagingMemory,
    bytes: usize,
    transfer: Transfer,
}

impl Stream {
    fn new(manager: &CrossBackendTransferManager, memory: &RawBuffer, options: &StreamOptions) -> Self {
        Self {
            manager: manager.clone(),
            options: StreamOptions { chunk: options.chunk.min(memory.len().max(1)), ..options.clone() },
            memory: memory.clone(),
            free: Vec::new(),
            in_flight: VecDeque::new(),
            moved: 0,
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
                let most = self.options.chunk.min(left);
                let (bytes, more) = read_up_to(source, &self.memory.slice(at..at + most)?, most).await;
                self.moved += bytes as u64;
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
            while at < len && self.in_flight.len() < self.options.buffers && !in_place {
                let Some(staging) = self.staging_buffer().await? else { break };
                let bytes = staging.len().min(len - at);
                let (from, to) = (self.memory.slice(at..at + bytes)?, staging.slice(..bytes)?);
                self.start(staging, &from, &to).await;
                at += bytes;
            }
            if let Some(Chunk { staging, bytes, transfer }) = self.in_flight.pop_front() {
                transfer.await?;
                self.write_all(sink, &staging.slice(..bytes)?).await?;
                self.free.push(staging);
            } else if at < len {
                let piece = self.memory.slice(at..len.min(at + self.options.chunk))?;
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
            self.moved += count as u64;
        }
        Ok(())
    }

    /// Waits for what is in flight, and returns the outcome of the stream.
    async fn finish(mut self, mut outcome: Result<()>) -> Result<u64, StreamError> {
        while !self.in_flight.is_empty() {
            let settled = self.settle().await;
            outcome = outcome.and(settled);
        }
        let bytes = self.moved;
        outcome.map(|()| bytes).map_err(|cause| StreamError { bytes, cause })
    }

    async fn start(&mut self, staging: StagingMemory, from: &RawBuffer, to: &RawBuffer) {
        let copy = self.manager.copy(from, to).options(self.options.transfer);
        let transfer = copy.submit_async().await;
        self.in_flight.push_back(Chunk { staging, bytes: from.len(), transfer });
    }

    /// Recovers a buffer in flight: of a complete transfer, or by waiting if there may be no further buffer.
    async fn recover(&mut self) -> Result<()> {
        let full = self.in_flight.len() >= self.options.buffers;
        let complete = self.in_flight.front().is_some_and(|oldest| oldest.transfer.is_complete());
        if self.free.is_empty() && (full || complete) { self.settle().await } else { Ok(()) }
    }

    /// Waits for the oldest transfer, counts its bytes and frees its buffer.
    async fn settle(&mut self) -> Result<()> {
        let Some(Chunk { staging, bytes, transfer }) = self.in_flight.pop_front() else { return Ok(()) };
        if let Err(error) = transfer.await {
            self.count_no_more();
            return Err(error);
        }
        self.moved += bytes as u64;
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
        let (mut kind, chunk) = (staging::kind_for(&self.manager, device), self.options.chunk);
        loop {
            let (manager, bytes) = (self.manager.clone(), self.options.chunk);
            let allocate = move || manager.allocate_staging(device, kind, bytes);
            match self.manager.spawn_blocking(allocate).await? {
                Err(error) if error.kind() == ErrorKind::OutOfMemory && kind == MemoryKind::Pinned => {
                    report::pages_declined("pinned staging memory", None, &error);
                    if !self.in_flight.is_empty() {
                        self.options.buffers = self.in_flight.len();
                        return Ok(None);
                    } else if bytes > MIN_PINNED {
                        self.options.chunk = (bytes / 2).max(MIN_PINNED);
                    } else {
                        (kind, self.options.chunk) = (MemoryKind::Pageable, chunk);
                    }
                }
                outcome => return outcome.map(Some),
            }
        }
    }

    /// Whether it is host memory.
    fn is_of_host(&self) -> bool {
        self.memory.place().device.is_cpu()
    }

    fn check(&self) -> Result<()> {
        let StreamOptions { chunk, buffers, .. } = self.options;
        if chunk > 0 && buffers > 0 {
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
