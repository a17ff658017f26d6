//! Options of a load.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use transload_core::{Error, ErrorKind, MemoryKind, Place, Result};
use transload_transfer::TransferOptions;

const SEGMENT: usize = 4 << 30;
/// Alignment that kernels of other libraries assume.
const DEVICE_ALIGNMENT: usize = 256;
const HOST_ALIGNMENT: usize = 64;
const MAX_ALIGNMENT: usize = 2 << 20;

/// See [`LoadOptions::progress`].
#[derive(Clone)]
struct ProgressCallback(Arc<dyn Fn(LoadProgress) + Send + Sync>);

impl fmt::Debug for ProgressCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressCallback")
    }
}

macro_rules! setters {
    ($( $(#[$attribute:meta])* $field:ident: $type:ty; )*) => { $(
        $(#[$attribute])*
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )* };
}

/// Options of a load. Each method sets one.
///
/// ```
/// use transload::{DeviceId, MemoryKind, Place, load::LoadOptions};
///
/// let place = Place::new(DeviceId::Cuda(0), MemoryKind::Device);
/// let options = LoadOptions::new(place).chunk(64 << 20).checksum(true).progress(|so_far| {
///     eprintln!("{} of {} bytes", so_far.bytes, so_far.total);
/// });
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct LoadOptions {
    pub(super) place: Place,
    pub(super) chunk: Option<usize>,
    pub(super) buffers: Option<usize>,
    pub(super) readers: Option<usize>,
    alignment: usize,
    pub(super) segment: usize,
    pub(super) staging: Option<MemoryKind>,
    pub(super) checksum: bool,
    pub(super) verify: bool,
    pub(super) raw: bool,
    pub(super) transfer: TransferOptions,
    progress: Option<ProgressCallback>,
    cancelled: Option<Arc<AtomicBool>>,
}

/// Phase of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadPhase {
    /// Reading the file and transferring it.
    Sending,
    /// Reading device memory back.
    ReadingBack,
}

/// Progress of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadProgress {
    /// Current phase.
    pub phase: LoadPhase,
    /// Bytes of tensors that this phase has submitted (sending) or compared (reading back).
    pub bytes: u64,
    /// Total bytes of all tensors.
    pub total: u64,
}

impl LoadOptions {
    /// Loads to memory of a place, with default options.
    pub fn new(place: Place) -> Self {
        Self {
            place,
            chunk: None,
            buffers: None,
            readers: None,
            alignment: if place.device.is_cpu() { HOST_ALIGNMENT } else { DEVICE_ALIGNMENT },
            segment: SEGMENT,
            staging: None,
            checksum: false,
            verify: false,
            raw: false,
            transfer: TransferOptions::new(),
            progress: None,
            cancelled: None,
        }
    }

    setters! {
        /// Sets the alignment of tensor addresses: a power of two of at most 2 MiB. At least 256 on devices and 64 on the host,
        /// even if set lower.
        alignment: usize;
        /// Sets the maximum bytes of an allocation if one for all tensors fails; 4 GiB by default. A larger tensor gets an
        /// allocation of its own.
        segment: usize;
        /// Sets whether to hash each tensor (XXH3, 64 bits, seed 0) while the file is read, and compare with the hash of the
        /// bytes read back from the device; off by default. See [`LoadedTensor::checksum`](super::LoadedTensor).
        checksum: bool;
        /// Sets whether to read the file again and compare it byte by byte with the bytes on the device; off by default.
        verify: bool;
        /// Sets whether to load any file as one tensor of type U8, named by the file's path, instead of a safetensors file;
        /// off by default.
        raw: bool;
        /// Sets the priority and allowed methods of the transfers.
        transfer: TransferOptions;
    }

    /// Sets the maximum bytes that one thread reads and that are transferred at once. Default: 1 to 4 MiB, so that all staging
    /// buffers stay in the processor's last-level cache, with those of concurrent loads, if it is large enough; less for small files.
    pub fn chunk(mut self, bytes: usize) -> Self {
        self.chunk = Some(bytes);
        self
    }

    /// Sets the maximum number of staging buffers of that size. Default: two for each thread that reads, but at
    /// most 128 MiB, or four if they are larger. Fewer are allocated if that
    /// suffices or if memory is short. Together they bound the host memory of a load. Pinned ones count as
    /// [`Resources::staging_bytes`](crate::Resources::staging_bytes); for threads that find no room within the limit of these, they are pageable.
    /// For host destinations there are no staging buffers unless [`staging`](Self::staging) is set; this is then
    /// how many chunks are read concurrently at most.
    pub fn buffers(mut self, count: usize) -> Self {
        self.buffers = Some(count);
        self
    }

    /// Sets how many threads read the file, each into a staging buffer of its own; at most 64. Default: as many as the runtime has
    /// [worker threads](crate::RuntimeBuilder::threads), by default one per processor and at most 16, and fewer for small files.
    pub fn readers(mut self, threads: usize) -> Self {
        self.readers = Some(threads);
        self
    }

    /// Sets the kind of the staging ring. Default: none for host destinations; else pinned if available, else pageable.
    pub fn staging(mut self, kind: MemoryKind) -> Self {
        self.staging = Some(kind);
        self
    }

    /// Sets a callback that the loading thread calls after each chunk, or after several that came while it ran, without a lock held. The
    /// load goes on meanwhile.
    pub fn progress(mut self, callback: impl Fn(LoadProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(ProgressCallback(Arc::new(callback)));
        self
    }

    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for values that are never valid.
    pub(super) fn check(&self) -> Result<()> {
        let refused = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
        if !self.alignment.is_power_of_two() || self.alignment > MAX_ALIGNMENT {
            let given = self.alignment;
            return refused(format!(
                "invalid alignment of {given} bytes; valid: a power of two of at most {MAX_ALIGNMENT}"
            ));
        }
        let sizes = [
            ("chunk", self.chunk.unwrap_or(1)),
            ("buffers", self.buffers.unwrap_or(1)),
            ("segment", self.segment),
            ("readers", self.readers.unwrap_or(1)),
        ];
        for (what, given) in sizes {
            if given == 0 {
                return refused(format!("{what} is 0; valid: at least 1"));
            }
        }
        match self.staging {
            Some(kind @ (MemoryKind::Device | MemoryKind::Unified)) => {
                refused(format!("a staging ring cannot be {kind} memory; valid: pageable, pinned, mapped"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn alignment_bytes(&self) -> usize {
        self.alignment.max(self.allocator_alignment())
    }

    /// Returns the alignment that every allocation at the place has.
    pub(super) fn allocator_alignment(&self) -> usize {
        if self.place.device.is_cpu() { HOST_ALIGNMENT } else { DEVICE_ALIGNMENT }
    }

    pub(super) fn reads_back(&self) -> bool {
        self.checksum || self.verify
    }

    /// Ends the load early once the flag is set.
    pub(super) fn cancelled_by(mut self, flag: &Arc<AtomicBool>) -> Self {
        self.cancelled = Some(Arc::clone(flag));
        self
    }

    /// # Errors
    /// [`ErrorKind::Interrupted`] if the load was cancelled.
    pub(super) fn report_progress(&self, phase: LoadPhase, bytes: u64, total: u64) -> Result<()> {
        if let Some(ProgressCallback(callback)) = &self.progress {
            callback(LoadProgress { phase, bytes, total });
        }
        self.check_cancelled()
    }

    /// # Errors
    /// [`ErrorKind::Interrupted`] if the load was cancelled.
    pub(super) fn check_cancelled(&self) -> Result<()> {
        match &self.cancelled {
            Some(flag) if flag.load(Ordering::Relaxed) => {
                Err(Error::new(ErrorKind::Interrupted, "the load was cancelled"))
            }
            _ => Ok(()),
        }
    }
}
