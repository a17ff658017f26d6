//! Writes packets whole, and nothing more after a failure.

use std::io::{self, Write};

use transload_core::{Error, ErrorKind, Result, catch_panic};

pub(super) struct Output<W> {
    out: W,
    packets: Vec<u8>,
    bytes: u64,
    failed: Option<Error>,
}

impl<W: Write> Output<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, packets: Vec::new(), bytes: 0, failed: None }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the error of an earlier write: what it left is cut, so that nothing can follow.
    pub(super) fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Writes the packets that `encode` appends, by one call.
    pub(super) fn write(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.check()?;
        self.packets.clear();
        encode(&mut self.packets);
        let written = catch_panic(|| self.out.write_all(&self.packets));
        self.note(written)?;
        self.bytes += self.packets.len() as u64;
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        self.check()?;
        let flushed = catch_panic(|| self.out.flush());
        self.note(flushed)
    }

    /// An output that panicked is one that failed.
    fn note(&mut self, result: Result<io::Result<()>>) -> Result<()> {
        result.unwrap_or_else(|panic| Err(io::Error::other(panic))).map_err(|error| {
            let message = format!("writing the trace failed after {} bytes", self.bytes);
            let error = Error::caused_by(ErrorKind::Io, message, error);
            self.failed = Some(error.clone());
            error
        })
    }
}
