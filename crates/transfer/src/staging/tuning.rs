//! Sizes and numbers of threads of staging that depend on a device's link.

use std::{fmt, sync::Arc};

use transload_core::{CostBasis, DeviceId, Error, ErrorKind, Result, StagingHints};
use transload_executor::last_level_cache;

use super::{
    StagingRing, default_workers,
    ring::{CAPACITY, STAGING_BUFFER},
};
use crate::{
    CrossBackendTransferManager,
    built_in::{CACHED_FROM, DOWNLOAD_SEGMENT, SEGMENT, SHORT_THREADS},
};

/// The shortest valid segment of an upload, in bytes.
const SHORTEST: u64 = 4 << 10;
/// The same of a download, for whose segments of a staging buffer a queue has room at once.
const SHORTEST_DOWNLOAD: u64 = 64 << 10;
/// The most threads or staging buffers that are valid.
const MOST: u32 = 1024;

/// How HostStaged divides transfers between the host and a device. The default is built in, for CUDA, measured with an H200; backends give others ([`StagingHints`]). A
/// [calibration](CrossBackendTransferManager::calibrate) measures what is fastest over each device's link.
///
/// ```
/// use transload_transfer::StagingTuning;
///
/// let mut tuning = StagingTuning::default();
/// tuning.upload_segment = 2 << 20;
/// # let _ = tuning;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StagingTuning {
    /// Bytes from which an upload is stored into the processor's caches instead of past them, and calls the driver for each staging buffer.
    /// The device reads slowly what a core has just written and still holds; once it lags by some staging buffers, it finds them in the
    /// shared cache, and main memory is spared. Not measured by a calibration, for which such copies take too long: by default 128 MiB, unless the backend says otherwise,
    /// and never where the last-level cache is small, or not known.
    pub upload_cached_from: u64,
    /// Bytes after which an upload calls the driver. The device waits for the first ones, and each call takes time. At most a staging
    /// buffer; an upload that fits one has a call for each quarter of it, or for 256 KiB. If longer than 1 MiB, the first and last ones are shorter.
    pub upload_segment: u64,
    /// Most threads that copy a transfer of at most a staging buffer in parts: an upload, or a list of short pieces.
    pub short_threads: u32,
    /// Most threads that copy a longer one.
    pub long_threads: u32,
    /// The same of a download that does not fit a staging buffer and is shorter than 32 MiB, whose host waits for the first ones. A longer one
    /// has a call for each staging buffer. If longer than 1 MiB, the first and last ones are shorter, and a longer download has them for its last staging buffer.
    pub download_segment: u64,
    /// Most staging buffers of a download by chunks of 1 MiB and more: the device fills some while the host empties others.
    pub download_buffers: u32,
}

impl Default for StagingTuning {
    fn default() -> Self {
        let count = |number: usize| u32::try_from(number).unwrap_or(MOST);
        Self {
            upload_cached_from: if can_lag() { CACHED_FROM } else { u64::MAX },
            upload_segment: SEGMENT as u64,
            short_threads: count(default_workers().min(SHORT_THREADS)),
            long_threads: count(default_workers()),
            download_segment: DOWNLOAD_SEGMENT as u64,
            // More than a ring gives to one transfer.
            download_buffers: 16,
        }
    }
}

/// Returns whether a device can lag by several staging buffers that are all in the last-level cache.
fn can_lag() -> bool {
    const BUFFERS: usize = 16;
    last_level_cache().is_some_and(|bytes| bytes >= BUFFERS * CAPACITY)
}

impl StagingTuning {
    /// Returns the built-in values for a device of which its backend says this.
    pub(crate) fn of(hints: &StagingHints) -> Self {
        let mut tuning = Self::default();
        let or =
            |hint: Option<u64>, usual: u64, least| hint.map_or(usual, |it| it.clamp(least, STAGING_BUFFER));
        tuning.upload_segment = or(hints.upload_segment, tuning.upload_segment, SHORTEST);
        tuning.download_segment = or(hints.download_segment, tuning.download_segment, SHORTEST_DOWNLOAD);
        if let Some(from) = hints.upload_cached_from.filter(|_| can_lag()) {
            tuning.upload_cached_from = from;
        }
        tuning
    }

    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for values that staging cannot use.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { upload_segment, download_segment, short_threads, long_threads, download_buffers, .. } =
            *self;
        let invalid = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
        for (segment, shortest, what) in
            [(upload_segment, SHORTEST, "upload"), (download_segment, SHORTEST_DOWNLOAD, "download")]
        {
            if !(shortest..=STAGING_BUFFER).contains(&segment) {
                let text =
                    format!("{what} segments of {segment} bytes; valid are {shortest} to {STAGING_BUFFER}");
                return invalid(text);
            }
        }
        for (number, what) in [
            (short_threads, "threads of short transfers"),
            (long_threads, "threads of long transfers"),
            (download_buffers, "staging buffers of downloads"),
        ] {
            if !(1..=MOST).contains(&number) {
                return invalid(format!("{number} {what}; valid are 1 to {MOST}"));
            }
        }
        Ok(())
    }

    /// Returns the most threads that copy a transfer of so many bytes in parts.
    pub(super) fn threads(&self, bytes: usize) -> usize {
        (if bytes > CAPACITY { self.long_threads } else { self.short_threads }) as usize
    }
}

impl fmt::Display for StagingTuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            upload_cached_from,
            upload_segment,
            short_threads,
            long_threads,
            download_segment,
            download_buffers,
        } = self;
        write!(f, "uploads by {} KiB and {short_threads}", upload_segment >> 10)?;
        if long_threads != short_threads {
            write!(f, " to {long_threads}")?;
        }
        f.write_str(" threads, ")?;
        if *upload_cached_from < u64::MAX {
            write!(f, "from {} KiB on into the caches, ", upload_cached_from >> 10)?;
        }
        write!(f, "downloads by {} KiB and {download_buffers} buffers", download_segment >> 10)
    }
}

impl CrossBackendTransferManager {
    /// Returns how HostStaged divides transfers between the host and a device, with the origin of the values.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`] for a device without a backend, [`ErrorKind::Unsupported`] for the host.
    pub fn staging_tuning(&self, device: DeviceId) -> Result<(StagingTuning, CostBasis)> {
        Ok(self.staging_ring(device)?.tuning())
    }

    /// Sets how HostStaged divides transfers between the host and a device, from the next one on. It stays, whatever is measured.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for values out of range, with those that are valid; those of
    /// [`staging_tuning`](Self::staging_tuning).
    pub fn set_staging_tuning(&self, device: DeviceId, tuning: StagingTuning) -> Result<()> {
        tuning.check()?;
        self.staging_ring(device)?.set_tuning(tuning, CostBasis::User);
        Ok(())
    }

    pub(crate) fn staging_ring(&self, device: DeviceId) -> Result<Arc<StagingRing>> {
        if device.is_cpu() {
            return Err(Error::new(ErrorKind::Unsupported, "nothing is staged within the host"));
        }
        Ok(self.registry.rings.get_or_create(&self.backend(device)?, device))
    }
}
