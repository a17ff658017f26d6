//! A regular file that is read from its beginning to its end, and what can be wrong with it before and while it is read.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::Path,
    time::SystemTime,
};

use transload_core::{Error, ErrorKind, Result};

/// Small tensors are served from a buffer of this size; larger reads go past it.
const BUFFER: usize = 256 << 10;

/// A file of known length.
#[derive(Debug)]
pub(super) struct Source {
    reader: BufReader<File>,
    name: String,
    stamp: Stamp,
    at: u64,
}

/// What tells that a file was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Self { len: metadata.len(), modified: metadata.modified().ok() }
    }
}

impl Source {
    /// Opens a regular file. Looks before it opens: opening a pipe would wait for a writer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for what is no regular file, [`ErrorKind::Io`] for one that cannot be opened.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let failed = |error: io::Error| {
            let text = format!("cannot open {name}; a readable regular file is valid");
            Error::caused_by(ErrorKind::Io, text, error)
        };
        let regular = |metadata: &fs::Metadata| match metadata.is_file() {
            true => Ok(()),
            false => {
                let what = if metadata.is_dir() { "a directory" } else { "a pipe, a device or a socket" };
                let text = format!("{name} is {what}; a regular file is valid");
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
        };
        regular(&fs::metadata(path).map_err(failed)?)?;
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        regular(&metadata)?;
        let stamp = Stamp::of(&metadata);
        Ok(Self { reader: BufReader::with_capacity(BUFFER, file), name, stamp, at: 0 })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn len(&self) -> u64 {
        self.stamp.len
    }

    /// Fills `piece` with the bytes that follow.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], also where the file ends before.
    pub(super) fn fill(&mut self, mut piece: &mut [u8]) -> Result<()> {
        while !piece.is_empty() {
            match self.reader.read(piece) {
                Ok(0) => {
                    let Self { name, at, stamp: Stamp { len, .. }, .. } = self;
                    let text = format!("{name} ended at offset {at} of {len}: it shrank while it was read");
                    return Err(Error::new(ErrorKind::Io, text));
                }
                Ok(count) => {
                    self.at += count as u64;
                    piece = piece.get_mut(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    /// Goes to an offset.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub(super) fn seek(&mut self, offset: u64) -> Result<()> {
        self.reader.seek(SeekFrom::Start(offset)).map_err(|error| self.failed(error))?;
        self.at = offset;
        Ok(())
    }

    /// # Errors
    /// [`ErrorKind::Io`] where the file is not as it was when it was opened.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let now = Stamp::of(&self.reader.get_ref().metadata().map_err(|error| self.failed(error))?);
        if now == self.stamp {
            return Ok(());
        }
        let text = format!(
            "{} changed while it was read (up to offset {}): {} bytes when it was opened, {} now",
            self.name, self.at, self.stamp.len, now.len
        );
        Err(Error::new(ErrorKind::Io, text))
    }

    fn failed(&self, error: io::Error) -> Error {
        let text = format!("reading {} at offset {} failed", self.name, self.at);
        Error::caused_by(ErrorKind::Io, text, error)
    }
}
