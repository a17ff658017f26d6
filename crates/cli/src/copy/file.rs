//! A regular file that is read in pieces, and what can be wrong with it before and while it is read.

use std::{
    fmt, fs,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    time::SystemTime,
};

use crate::exit::{Exit, Failure};

/// A file of known length.
pub(super) struct Source<R> {
    reader: R,
    name: String,
    len: u64,
}

/// Why a piece of the file could not be had.
#[derive(Debug)]
pub(super) enum ReadError {
    /// It ended early: it shrank.
    Ended { name: String, offset: u64, len: u64 },
    /// It is another file now than it was when it was opened.
    Changed { name: String, offset: u64, was: u64, is: u64 },
    /// The system's error.
    Failed { name: String, offset: u64, error: io::Error },
}

impl<R: Read + Seek> Source<R> {
    pub(super) fn new(reader: R, name: String, len: u64) -> Self {
        Self { reader, name, len }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `piece` with the bytes from `offset` on, which must be where the last piece ended.
    pub(super) fn fill(&mut self, mut piece: &mut [u8], mut offset: u64) -> Result<(), ReadError> {
        while !piece.is_empty() {
            match self.reader.read(piece) {
                Ok(0) => return Err(ReadError::Ended { name: self.name.clone(), offset, len: self.len }),
                Ok(count) => {
                    offset += count as u64;
                    piece = piece.get_mut(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ReadError::Failed { name: self.name.clone(), offset, error }),
            }
        }
        Ok(())
    }

    /// Goes back to the beginning.
    pub(super) fn rewind(&mut self) -> Result<(), ReadError> {
        let sought = self.reader.seek(SeekFrom::Start(0));
        sought.map(|_| ()).map_err(|error| ReadError::Failed { name: self.name.clone(), offset: 0, error })
    }
}

/// What tells that a file was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Self { len: metadata.len(), modified: metadata.modified().ok() }
    }
}

impl Source<fs::File> {
    /// Opens a regular file of at least one byte. Looks before it opens: opening a pipe would wait for a writer.
    pub(super) fn open(path: &Path) -> Result<(Self, Stamp), Failure> {
        let name = path.display().to_string();
        let refused = |text: &str| Failure::new(Exit::Input, format!("{name} {text}"));
        let failed = |error: io::Error| {
            let exit = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Exit::Input,
                _ => Exit::Io,
            };
            Failure::new(exit, format!("cannot open {name}: {error}; a readable regular file is valid"))
        };
        regular(&fs::metadata(path).map_err(failed)?).map_err(refused)?;
        let file = fs::File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        regular(&metadata).map_err(refused)?;
        if metadata.len() == 0 {
            return Err(refused("is empty; a file of at least 1 byte is valid"));
        }
        Ok((Self::new(file, name, metadata.len()), Stamp::of(&metadata)))
    }

    /// Fails where the file is not as it was when it was opened; `offset` is how far it was read since.
    pub(super) fn check(&self, stamp: Stamp, offset: u64) -> Result<(), ReadError> {
        let metadata = self.reader.metadata();
        let now = metadata.map_err(|error| ReadError::Failed { name: self.name.clone(), offset, error })?;
        let now = Stamp::of(&now);
        if now == stamp {
            return Ok(());
        }
        Err(ReadError::Changed { name: self.name.clone(), offset, was: stamp.len, is: now.len })
    }
}

fn regular(metadata: &fs::Metadata) -> Result<(), &'static str> {
    if metadata.is_file() {
        Ok(())
    } else if metadata.is_dir() {
        Err("is a directory; a regular file is valid")
    } else {
        Err("is a pipe, a device or a socket; only a regular file is valid, since it is read twice")
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended { name, offset, len } => {
                write!(f, "{name} ended at offset {offset} of {len}: it shrank while it was read")
            }
            Self::Changed { name, offset, was, is } => write!(
                f,
                "{name} changed while it was read (up to offset {offset}): {was} bytes when it was opened, {is} now; nothing is said about its copy"
            ),
            Self::Failed { name, offset, error } => {
                write!(f, "reading {name} at offset {offset} failed: {error}")
            }
        }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Self::new(Exit::Io, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn a_file_that_ends_early_is_told_with_the_offset() {
        let mut source = Source::new(Cursor::new(vec![1; 10]), "f".to_owned(), 16);
        let mut piece = [0; 8];
        source.fill(&mut piece, 0).unwrap();
        let error = source.fill(&mut piece, 8).unwrap_err();
        assert!(matches!(error, ReadError::Ended { offset: 10, len: 16, .. }), "{error}");
        let failure = Failure::from(error);
        assert_eq!(failure.exit, Exit::Io);
        assert_eq!(failure.to_string(), "f ended at offset 10 of 16: it shrank while it was read");
    }

    #[test]
    fn a_file_that_was_written_to_is_told() {
        let path = tempfile::NamedTempFile::new().unwrap();
        fs::write(path.path(), b"12345678").unwrap();
        let (source, stamp) = Source::open(path.path()).unwrap();
        source.check(stamp, 8).unwrap();
        fs::write(path.path(), b"123").unwrap();
        let error = source.check(stamp, 8).unwrap_err().to_string();
        assert!(error.contains("offset 8") && error.contains("8 bytes when it was opened, 3 now"), "{error}");
    }

    #[test]
    fn reading_goes_on_after_an_interruption_and_stops_at_an_error() {
        struct Moody(u32);
        impl Read for Moody {
            fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
                self.0 += 1;
                match self.0 {
                    1 => Err(io::ErrorKind::Interrupted.into()),
                    2 => Ok(piece.len().min(3)),
                    _ => Err(io::Error::other("bad sector")),
                }
            }
        }
        impl Seek for Moody {
            fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
                Ok(0)
            }
        }
        let error = Source::new(Moody(0), "f".to_owned(), 8).fill(&mut [0; 8], 0).unwrap_err();
        assert_eq!(error.to_string(), "reading f at offset 3 failed: bad sector");
    }
}
