//! Streams of bytes into and out of the memory of any device, through bounded host memory.
//!
//! A [`ByteSource`] gives bytes, a [`ByteSink`] takes them: a file, a `Vec`, whatever implements [`Read`](std::io::Read) or
//! [`Write`](std::io::Write) is one as [`Blocking`]; with the feature `tokio`, its readers and writers are as `Tokio`.
//! [`Runtime::read_from`](crate::Runtime::read_from) fills a buffer from a source, and
//! [`Runtime::write_to`](crate::Runtime::write_to) writes one to a sink. Both work through a few staging buffers, pinned if the
//! device offers that: the next chunk is read while earlier ones are on their way. A slow source or sink holds up the device,
//! never the other way round. Host memory is read and written in place, except by [`Blocking`].
//!
//! Streams block no thread, and run in any async runtime. Dropping one cancels the stream: no further chunk is begun. Those in
//! flight still arrive; later work on the memory waits for them, and the stream's buffers are freed when they are complete. A call
//! of a [`Blocking`] value that has begun goes on, with a staging buffer.
//!
//! ```
//! use transload::{DeviceId, MemoryKind, Runtime, io::Blocking};
//!
//! # pollster::block_on(async {
//! let rt = Runtime::discover()?;
//! let gpu = rt.devices().into_iter().find(|device| !device.id.is_cpu());
//! let (device, kind) = gpu.map_or((DeviceId::Cpu, MemoryKind::Pageable), |gpu| (gpu.id, MemoryKind::Device));
//! let there = rt.alloc::<u8>(device, kind, 1 << 20)?;
//!
//! // From anything that is `Read`, such as a file, to anything that is `Write`.
//! let file = std::io::Cursor::new(vec![7; 1 << 20]);
//! let report = rt.read_from(Blocking::new(rt.manager(), file), &there).chunk(256 << 10).await?;
//! assert_eq!(report.bytes, 1 << 20);
//! println!("{report}");
//!
//! let mut sink = Blocking::new(rt.manager(), Vec::new());
//! rt.write_to(&there, &mut sink).await?;
//! assert_eq!(sink.into_inner().await?, vec![7; 1 << 20]);
//! # Ok::<(), transload::Error>(())
//! # })?;
//! # Ok::<(), transload::Error>(())
//! ```

mod blocking;
mod report;
mod stream;
#[cfg(feature = "tokio")]
mod tokio;

/// The macro that an implementation of [`ByteSource`] or [`ByteSink`] stands under.
pub use async_trait::async_trait;
use transload_core::{RawBuffer, Result};

#[cfg(feature = "tokio")]
pub use self::tokio::Tokio;
pub use self::{
    blocking::Blocking,
    report::{MethodCount, StreamError, StreamReport},
    stream::{ByteStream, read_from, write_to},
};

/// Gives bytes, in order.
///
/// An implementation neither blocks the thread that polls nor keeps it for more than some 20 µs at a time.
#[async_trait]
pub trait ByteSource: Send {
    /// Reads the next bytes to the beginning of host memory of at least one byte, and returns how many: as many as are there,
    /// at least one before the end, 0 at the end. If the future is dropped before it is ready, bytes may be lost.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) with the cause, or what suits the source.
    async fn read(&mut self, into: &RawBuffer) -> Result<usize>;

    /// Returns whether a call may go on to use `into` after its future was dropped. A stream then reads into host memory through
    /// staging buffers too. `false` by default.
    fn outlives_its_future(&self) -> bool {
        false
    }
}

/// Takes bytes, in order.
///
/// An implementation neither blocks the thread that polls nor keeps it for more than some 20 µs at a time.
#[async_trait]
pub trait ByteSink: Send {
    /// Writes bytes from the beginning of host memory of at least one byte, and returns how many: at least one, 0 if the sink
    /// takes no more.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) with the cause, or what suits the sink.
    async fn write(&mut self, from: &RawBuffer) -> Result<usize>;

    /// Ends the writing: bytes that are held back go out.
    ///
    /// # Errors
    /// As for `write`.
    async fn flush(&mut self) -> Result<()>;

    /// Like [`ByteSource::outlives_its_future`].
    fn outlives_its_future(&self) -> bool {
        false
    }
}

#[async_trait]
impl<S: ByteSource + ?Sized> ByteSource for &mut S {
    async fn read(&mut self, into: &RawBuffer) -> Result<usize> {
        S::read(self, into).await
    }

    fn outlives_its_future(&self) -> bool {
        S::outlives_its_future(self)
    }
}

#[async_trait]
impl<S: ByteSource + ?Sized> ByteSource for Box<S> {
    async fn read(&mut self, into: &RawBuffer) -> Result<usize> {
        S::read(self, into).await
    }

    fn outlives_its_future(&self) -> bool {
        S::outlives_its_future(self)
    }
}

#[async_trait]
impl<S: ByteSink + ?Sized> ByteSink for &mut S {
    async fn write(&mut self, from: &RawBuffer) -> Result<usize> {
        S::write(self, from).await
    }

    async fn flush(&mut self) -> Result<()> {
        S::flush(self).await
    }

    fn outlives_its_future(&self) -> bool {
        S::outlives_its_future(self)
    }
}

#[async_trait]
impl<S: ByteSink + ?Sized> ByteSink for Box<S> {
    async fn write(&mut self, from: &RawBuffer) -> Result<usize> {
        S::write(self, from).await
    }

    async fn flush(&mut self) -> Result<()> {
        S::flush(self).await
    }

    fn outlives_its_future(&self) -> bool {
        S::outlives_its_future(self)
    }
}

/// Wraps an error of a reader or a writer.
fn failed(what: &'static str, error: std::io::Error) -> transload_core::Error {
    transload_core::Error::caused_by(transload_core::ErrorKind::Io, what, error)
}
