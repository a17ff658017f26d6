//! Readers and writers of tokio.

use std::{future::poll_fn, pin::Pin};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use transload_core::{RawBuffer, Result};
use transload_executor::yield_now;

use super::{ByteSink, ByteSource, failed};

/// Most bytes read or written by one poll: copied within some 10 µs.
const STEP: usize = 64 << 10;

/// Feature `tokio`: a value that is tokio's `AsyncRead` or `AsyncWrite`, as a source or sink of bytes.
///
/// It is polled by the task that awaits the stream, at most 64 KiB at a time, and other tasks of the same thread run in
/// between. For a regular file, [`Blocking`](super::Blocking) over [`std::fs::File`] is faster.
///
/// ```
/// use transload::{Runtime, io::Tokio};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
/// # runtime.block_on(async {
/// let rt = Runtime::discover()?;
/// let weights = rt.zeros::<f32>(2)?;
/// let mut socket: &[u8] = &[0, 0, 128, 63, 0, 0, 0, 64]; // Any `AsyncRead`.
/// rt.read_from(Tokio(&mut socket), &weights).await?;
/// assert_eq!(*weights.read()?, [1.0, 2.0]);
/// # Ok::<(), transload::Error>(())
/// # })?;
/// # Ok::<(), transload::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tokio<T>(pub T);

#[async_trait]
impl<R: AsyncRead + Send + Unpin> ByteSource for Tokio<R> {
    async fn read(&mut self, into: &RawBuffer) -> Result<usize> {
        // Also of a reader that is always ready.
        yield_now().await;
        let mut view = into.write_async().await?;
        let step = view.len().min(STEP);
        let mut piece = ReadBuf::new(view.get_mut(..step).unwrap_or_default());
        let read = poll_fn(|context| Pin::new(&mut self.0).poll_read(context, &mut piece)).await;
        read.map_err(|error| failed("reading from the source failed", error))?;
        Ok(piece.filled().len())
    }
}

#[async_trait]
impl<W: AsyncWrite + Send + Unpin> ByteSink for Tokio<W> {
    async fn write(&mut self, from: &RawBuffer) -> Result<usize> {
        yield_now().await;
        let view = from.read_async().await?;
        let piece = view.get(..view.len().min(STEP)).unwrap_or_default();
        let written = poll_fn(|context| Pin::new(&mut self.0).poll_write(context, piece)).await;
        written.map_err(|error| failed("writing to the sink failed", error))
    }

    async fn flush(&mut self) -> Result<()> {
        let flushed = poll_fn(|context| Pin::new(&mut self.0).poll_flush(context)).await;
        flushed.map_err(|error| failed("flushing the sink failed", error))
    }
}
