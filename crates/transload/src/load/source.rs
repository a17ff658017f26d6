//! A regular file that threads read at any offset, checked for changes.

#[cfg(unix)]
use std::os::unix::fs::MetadataExt as _;
use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

use transload_core::{Error, ErrorKind, Result};

/// An open file of known length.
#[derive(Debug)]
pub(super) struct Source {
    file: File,
    name: String,
    stamp: Stamp,
    /// End of the furthest read, for error messages.
    furthest: AtomicU64,
}

/// Length and times, to detect changes.
#[derive(Clone, Copy, Debug)]
struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
    /// Time of the last change of the file or its attributes, which cannot be set, in seconds and nanoseconds, and the number of links.
    #[cfg(unix)]
    changed: (i64, i64, u64),
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            len: metadata.len(),
            modified: metadata.modified().ok(),
            #[cfg(unix)]
            changed: (metadata.ctime(), metadata.ctime_nsec(), metadata.nlink()),
        }
    }

    fn is_same_as(&self, other: &Self) -> bool {
        // A link added or removed, as by a file that replaces this one, changes the time, and no byte.
        #[cfg(unix)]
        let is_same = self.changed == other.changed || self.changed.2 != other.changed.2;
        #[cfg(not(unix))]
        let is_same = true;
        is_same && self.len == other.len && self.modified == other.modified
    }
}

impl Source {
    /// Opens a regular file. Checks its type first: opening a pipe would wait for a writer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it is not a regular file, [`ErrorKind::Io`] if it cannot be opened.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let failed = |error: io::Error| {
            let text = format!("cannot open {name}; a readable regular file is needed");
            Error::caused_by(ErrorKind::Io, text, error)
        };
        let regular = |metadata: &fs::Metadata| match metadata.is_file() {
            true => Ok(()),
            false => {
                let what = if metadata.is_dir() { "a directory" } else { "a pipe, a device or a socket" };
                let text = format!("{name} is {what}; a regular file is needed");
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
        };
        regular(&fs::metadata(path).map_err(failed)?)?;
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        regular(&metadata)?;
        let stamp = Stamp::of(&metadata);
        Ok(Self { file, name, stamp, furthest: AtomicU64::new(0) })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn len(&self) -> u64 {
        self.stamp.len
    }

    /// Fills `piece` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], also if the file ends before.
    pub(super) fn read_exact_at(&self, offset: u64, mut piece: &mut [u8]) -> Result<()> {
        let mut at = offset;
        while !piece.is_empty() {
            match read_at(&self.file, piece, at) {
                Ok(0) => {
                    let Self { name, stamp: Stamp { len, .. }, .. } = self;
                    let text = format!("{name} ended at offset {at} of {len}: it shrank while it was read");
                    return Err(Error::new(ErrorKind::Io, text));
                }
                Ok(count) => {
                    at += count as u64;
                    piece = piece.get_mut(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let text = format!("reading {} at offset {at} failed", self.name);
                    return Err(Error::caused_by(ErrorKind::Io, text, error));
                }
            }
        }
        self.furthest.fetch_max(at, Ordering::Relaxed);
        Ok(())
    }

    /// # Errors
    /// [`ErrorKind::Io`] if the file changed since it was opened.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let metadata = self.file.metadata().map_err(|error| {
            Error::caused_by(ErrorKind::Io, format!("reading the length of {} failed", self.name), error)
        })?;
        let now = Stamp::of(&metadata);
        if now.is_same_as(&self.stamp) {
            return Ok(());
        }
        let text = format!(
            "{} changed while it was read (up to offset {}): {} bytes when it was opened, {} now",
            self.name,
            self.furthest.load(Ordering::Relaxed),
            self.stamp.len,
            now.len
        );
        Err(Error::new(ErrorKind::Io, text))
    }
}

#[cfg(unix)]
fn read_at(file: &File, piece: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, piece, offset)
}

/// Also moves the file's position, which is not used.
#[cfg(windows)]
fn read_at(file: &File, piece: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, piece, offset)
}

/// Elsewhere, threads read one at a time.
#[cfg(not(any(unix, windows)))]
fn read_at(mut file: &File, piece: &mut [u8], offset: u64) -> io::Result<usize> {
    use std::io::{Read, Seek};

    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    file.seek(io::SeekFrom::Start(offset))?;
    file.read(piece)
}
