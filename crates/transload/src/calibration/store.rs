//! The file of a calibration: bounded and checked when it is read, and replaced as a whole when it is written.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use etcetera::{BaseStrategy as _, base_strategy::Xdg};
use serde::{Deserialize, Serialize};
use transload_core::{DeviceId, Error, ErrorKind, Result, TransferPath};

use super::{Calibration, key::Key, named};

/// Version of the format.
const FORMAT: u32 = 6;
/// The largest file that is read or written, in bytes.
const LARGEST: u64 = 8 << 20;

/// Where calibrations are kept. See [`RuntimeBuilder::calibration`](crate::RuntimeBuilder::calibration).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CalibrationStore {
    /// The folder `transload` of the user's cache directory: `XDG_CACHE_HOME`, else `~/.cache`, on every
    /// system. Each combination of devices, threads and limits has a file of its own there. Those of simulated devices are not kept.
    #[default]
    Cache,
    /// This file.
    File(PathBuf),
    /// Nowhere: stored calibrations are not used either.
    None,
}

#[derive(Serialize)]
struct Written<'a> {
    format: u32,
    key: &'a Key,
    calibration: &'a Calibration,
}

/// What every format begins with.
#[derive(Deserialize)]
struct Head {
    format: u32,
}

#[derive(Deserialize)]
struct Stored {
    key: Key,
    calibration: Calibration,
}

impl CalibrationStore {
    /// Returns the file.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if nothing is kept, with the reason.
    pub(super) fn path(&self, key: &Key) -> Result<PathBuf> {
        let unsupported = |text: &str| Error::new(ErrorKind::Unsupported, text.to_owned());
        match self {
            Self::File(path) => Ok(path.clone()),
            Self::None => Err(unsupported("the runtime was made without a store of calibrations")),
            Self::Cache if key.is_simulated() => {
                Err(unsupported("calibrations of simulated devices are only kept in a file that is named"))
            }
            Self::Cache => {
                let base = Xdg::new().map_err(|error| {
                    Error::caused_by(ErrorKind::Unsupported, "the user has no cache directory", error)
                })?;
                Ok(base.cache_dir().join("transload").join(key.file_name()))
            }
        }
    }

    /// Locks the place of a calibration for measuring and writing, also against other processes: the cache directory as a whole, since
    /// the same machine has several files there, or the file.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it is locked, [`ErrorKind::Io`], [`ErrorKind::InvalidArgument`] if the lock's file is no regular one.
    pub(super) fn lock(&self, path: &Path) -> Result<Locked> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder {
            fs::create_dir_all(folder).map_err(failed(path, "cannot make the folder of"))?;
        }
        let beside = match self {
            Self::Cache => path.with_file_name("calibration.lock"),
            _ => with_suffix(path, ".lock"),
        };
        is_there(&beside)?;
        let mut open = OpenOptions::new();
        let file = open.create(true).truncate(false).write(true).open(&beside);
        let file = file.map_err(failed(path, "cannot lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Locked(file)),
            Err(TryLockError::WouldBlock) if !transload_core::mutant!("transload/calibration-lock") => {
                let text =
                    format!("another process calibrates this machine now: it holds {}", beside.display());
                Err(Error::new(ErrorKind::Busy, text))
            }
            Err(error) => Err(failed(path, "cannot lock")(error.into())),
        }
    }
}

fn failed(path: &Path, what: &str) -> impl FnOnce(io::Error) -> Error {
    let text = named(path, what);
    move |error| Error::caused_by(ErrorKind::Io, text, error)
}

/// Returns whether there is a regular file. A link, or what else could block or lead elsewhere, is an error.
fn is_there(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(_) => Err(refused(path, "is no regular file")),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(false),
            io::ErrorKind::InvalidFilename => {
                Err(Error::caused_by(ErrorKind::InvalidArgument, named(path, "cannot look for"), error))
            }
            _ => Err(failed(path, "cannot look for")(error)),
        },
    }
}

fn refused(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{} {why}", path.display()))
}

/// Returns the calibration, or `None` if there is no file.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if it is no calibration for this key, [`ErrorKind::Io`].
pub(super) fn read(path: &Path, key: &Key) -> Result<Option<Calibration>> {
    if !is_there(path)? {
        return Ok(None);
    }
    let mut text = Vec::new();
    let file = File::open(path).map_err(failed(path, "cannot open"))?;
    file.take(LARGEST + 1).read_to_end(&mut text).map_err(failed(path, "cannot read"))?;
    if text.len() as u64 > LARGEST {
        return Err(refused(path, format_args!("has more than {LARGEST} bytes")));
    }
    let damaged = |error: serde_json::Error| refused(path, format_args!("is no calibration: {error}"));
    let head: Head = serde_json::from_slice(&text).map_err(damaged)?;
    if head.format != FORMAT {
        let why = format!("has format {}, this version of transload has {FORMAT}", head.format);
        return Err(refused(path, why));
    }
    let stored: Stored = serde_json::from_slice(&text).map_err(damaged)?;
    stored.calibration.check()?;
    if !transload_core::mutant!("transload/calibration-of-another-machine")
        && let Some(difference) = key.difference(&stored.key)
    {
        return Err(refused(path, difference));
    }
    Ok(Some(stored.calibration))
}

/// A lock on a place of calibrations, until it is dropped.
pub(super) struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing the file is not enough while a process that another thread starts has a copy of it. If this fails, closing is left.
        let _closed = self.0.unlock();
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Replaces the file as a whole: readers see the old one or the new one. The caller has the lock.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if there is something that is no regular file; [`ErrorKind::OutOfRange`] for more bytes than are
/// read; [`ErrorKind::Io`]. The old file is unchanged then.
pub(super) fn write(path: &Path, key: &Key, calibration: &Calibration) -> Result<()> {
    is_there(path)?;
    let mut calibration = calibration.clone();
    // Devices of other families have no text that could be read back.
    let is_read = |device: DeviceId| !matches!(device, DeviceId::Other(..));
    let are_read = |path: TransferPath| is_read(path.src.device) && is_read(path.dst.device);
    calibration.paths.retain(|path| are_read(path.path));
    calibration.lists.retain(|list| are_read(list.path));
    calibration.staging.retain(|staging| is_read(staging.device));
    calibration.unfinished.clear();
    let written = Written { format: FORMAT, key, calibration: &calibration };
    let text = serde_json::to_vec(&written)
        .map_err(|error| Error::caused_by(ErrorKind::Io, named(path, "cannot write"), error))?;
    if text.len() as u64 > LARGEST {
        let text = format!(
            "the calibration has {} bytes, {} may have {LARGEST}; measure fewer devices",
            text.len(),
            path.display()
        );
        return Err(Error::new(ErrorKind::OutOfRange, text));
    }
    let new = with_suffix(path, ".transload-new");
    // Left by a process that was killed: the caller has the lock, so no other one writes it now.
    let _ = fs::remove_file(&new);
    let replaced = fill(&new, &text).and_then(|()| fs::rename(&new, path));
    if let Err(error) = replaced {
        // Best effort: the next write removes it too, and the error below says that this one failed.
        let _ = fs::remove_file(&new);
        return Err(failed(path, "cannot write")(error));
    }
    Ok(())
}

fn fill(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text)?;
    // A full disk may tell only now.
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use transload_transfer::{ListCalibration, StagingCalibration, StagingTuning};

    use super::*;

    #[test]
    fn what_could_not_be_read_back_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("calibration.json");
        let key = json!({
            "library": "1", "cores": 1, "threads": 1, "ring_limit": 1, "pinned_limit": null,
            "kernel_driver": null, "devices": [],
        });
        let key: Key = serde_json::from_value(key).unwrap();
        let time = |pieces: u64| {
            json!({
                "pieces": pieces, "bytes": 64, "median_seconds": 1e-6, "noise_seconds": 0.0, "repetitions": 1,
            })
        };
        let path = json!({ "src": "cpu/pinned", "dst": "cuda:0/device" });
        let list = json!({ "path": path, "way": "copy_kernel", "times": [time(1), time(2)] });
        let list: ListCalibration = serde_json::from_value(list).unwrap();
        let mut other = list.clone();
        other.path.dst.device = DeviceId::Other("npu", 0);
        let mut calibration = Calibration::default();
        calibration.lists = vec![other, list.clone()];
        let staging = json!({ "device": "cuda:0", "tuning": StagingTuning::default(), "times": [] });
        let staging: StagingCalibration = serde_json::from_value(staging).unwrap();
        let mut of_other = staging.clone();
        of_other.device = DeviceId::Other("npu", 0);
        calibration.staging = vec![of_other, staging.clone()];
        write(&file, &key, &calibration).unwrap();
        let found = read(&file, &key).unwrap().unwrap();
        assert_eq!((found.lists, found.staging), (vec![list.clone()], vec![staging]));
        // More than could be read back.
        calibration.lists = vec![list.clone(); 40_000];
        let refused = write(&file, &key, &calibration).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfRange, "{refused}");
        assert_eq!(read(&file, &key).unwrap().unwrap().lists, [list]);
    }
}
