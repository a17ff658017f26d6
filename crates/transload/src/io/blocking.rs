//! Readers and writers that may block: their calls are made on threads of the executor.

use std::{
    fmt,
    io::{ErrorKind as IoErrorKind, Read, Result as IoResult, Write},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use transload_core::{Error, ErrorKind, RawBuffer, Result};
use transload_executor::{BlockingKey, Executor};
use transload_transfer::CrossBackendTransferManager;

use super::{ByteSink, ByteSource, failed};

/// A [`Read`] or [`Write`] value as a source or sink of bytes, such as a [`File`](std::fs::File), a pipe, a decompressor, a
/// `Cursor` over a `Vec` or, as a sink, a `Vec`. Each call is made on a thread of the manager's executor, one at a time.
///
/// If a stream is dropped, a call that has begun goes on to its end, with a staging buffer; the manager's `drain` waits for it. So
/// host memory is not read and written in place, but by one more copy.
pub struct Blocking<T> {
    inner: Arc<Mutex<T>>,
    executor: Executor,
    /// One call at a time.
    calls: BlockingKey,
}

impl<T: Send + 'static> Blocking<T> {
    /// Wraps a reader or a writer.
    #[must_use]
    pub fn new(manager: &CrossBackendTransferManager, inner: T) -> Self {
        let executor = manager.executor().clone();
        Self { inner: Arc::new(Mutex::new(inner)), executor, calls: BlockingKey::new(1) }
    }

    /// Returns the reader or writer, when the last call has ended.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system refuses a thread.
    pub async fn into_inner(self) -> Result<T> {
        // After the last call.
        self.executor.spawn_blocking(&self.calls, || ()).await?;
        let shared = || Error::new(ErrorKind::Busy, "a call of this reader or writer has not ended");
        let inner = Arc::into_inner(self.inner).ok_or_else(shared)?;
        Ok(inner.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    async fn call<R: Send + 'static>(
        &self,
        what: &'static str,
        mut call: impl FnMut(&mut T) -> Result<IoResult<R>> + Send + 'static,
    ) -> Result<R> {
        let inner = Arc::clone(&self.inner);
        let call = move || {
            loop {
                match call(&mut *inner.lock().unwrap_or_else(PoisonError::into_inner))? {
                    Err(error) if error.kind() == IoErrorKind::Interrupted => {}
                    outcome => return outcome.map_err(|error| failed(what, error)),
                }
            }
        };
        self.executor.spawn_blocking(&self.calls, call).await?
    }
}

#[async_trait]
impl<T: Read + Send + 'static> ByteSource for Blocking<T> {
    async fn read(&mut self, into: &RawBuffer) -> Result<usize> {
        let into = into.clone();
        self.call("reading from the source failed", move |reader| Ok(reader.read(&mut into.write()?))).await
    }

    fn outlives_its_future(&self) -> bool {
        true
    }
}

#[async_trait]
impl<T: Write + Send + 'static> ByteSink for Blocking<T> {
    async fn write(&mut self, from: &RawBuffer) -> Result<usize> {
        let from = from.clone();
        self.call("writing to the sink failed", move |writer| Ok(writer.write(&from.read()?))).await
    }

    async fn flush(&mut self) -> Result<()> {
        self.call("flushing the sink failed", |writer| Ok(writer.flush())).await
    }

    fn outlives_its_future(&self) -> bool {
        true
    }
}

impl<T> fmt::Debug for Blocking<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").finish_non_exhaustive()
    }
}
