//! What a caller may ask of a load.

use std::{fmt, sync::Arc};

use transload_core::{Error, ErrorKind, MemoryKind, Place, Result};
use transload_transfer::TransferOptions;

/// Chunks of this size, two in flight, reach 0.99 of the rate of one copy on an H200; smaller ones are pinned sooner.
const CHUNK: usize = 16 << 20;
/// Two chunks in flight keep a link busy while a third is read; the fourth takes up a slow read.
const BUFFERS: usize = 4;
const SEGMENT: usize = 4 << 30;
/// What kernels of other libraries take for granted.
const DEVICE_ALIGNMENT: usize = 256;
const HOST_ALIGNMENT: usize = 64;
const MAX_ALIGNMENT: usize = 2 << 20;

/// Called with how far a load is; see [`LoadOptions::progress`].
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

/// How a model file is to be loaded. Each method changes one thing; the defaults are meant to be good.
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
    pub(super) chunk: usize,
    pub(super) buffers: usize,
    pub(super) readers: Option<usize>,
    alignment: usize,
    pub(super) segment: usize,
    pub(super) staging: Option<MemoryKind>,
    pub(super) checksum: bool,
    pub(super) verify: bool,
    pub(super) raw: bool,
    pub(super) transfer: TransferOptions,
    progress: Option<ProgressCallback>,
}

/// What a load is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadPhase {
    /// ChunkRead the file and sending it.
    Sending,
    /// ChunkRead the device's memory back.
    ReadingBack,
}

/// How far a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadProgress {
    /// What it is doing.
    pub phase: LoadPhase,
    /// Bytes of tensors that this phase has submitted (sending) or checked (reading back) so far.
    pub bytes: u64,
    /// Bytes of all tensors.
    pub total: u64,
}

impl LoadOptions {
    /// To memory of a kind on a device, with the defaults for everything else.
    pub fn new(place: Place) -> Self {
        Self {
            place,
            chunk: CHUNK,
            buffers: BUFFERS,
            readers: None,
            alignment: if place.device.is_cpu() { HOST_ALIGNMENT } else { DEVICE_ALIGNMENT },
            segment: SEGMENT,
            staging: None,
            checksum: false,
            verify: false,
            raw: false,
            transfer: TransferOptions::new(),
            progress: None,
        }
    }

    setters! {
        /// How many bytes are read and sent at once, at most; 16 MiB.
        chunk: usize;
        /// How many buffers of that size the ring has, at most; 4. Together they bound the host memory of a load. To the host's
        /// own memory there is no ring, but where [`staging`](Self::staging) asks for it: so many chunks are read at once.
        buffers: usize;
        /// What each tensor's address is a multiple of: a power of two of at most 2 MiB. At least 256 on devices, and at least
        /// 64 on the host, whatever is given here.
        alignment: usize;
        /// How large an allocation is, at most, where one for all tensors cannot be had; 4 GiB. A tensor that is larger has an
        /// allocation of its own.
        segment: usize;
        /// Whether the XXH3 hash (64 bits, seed 0) of each tensor is taken while the file is read, and compared with that of
        /// the bytes read back from the device; off. The hash is then in [`LoadedTensor::checksum`](super::LoadedTensor).
        checksum: bool;
        /// Whether the file is read again and compared, byte by byte, with what the device holds; off.
        verify: bool;
        /// Whether the file is any file, whose bytes become one tensor of type U8 with the file's path as its name, instead of a
        /// safetensors file; off.
        raw: bool;
        /// How the chunks are transferred: priority, methods that may be taken.
        transfer: TransferOptions;
    }

    /// Sets how many threads read the file at once. The default is one for each processor, at most 16, and fewer for small
    /// files. More than 64 are never used.
    pub fn readers(mut self, threads: usize) -> Self {
        self.readers = Some(threads);
        self
    }

    /// The kind of the ring's memory. Without it there is none to the host's memory; elsewhere it is pinned where the device offers it and has some left, else pageable.
    pub fn staging(mut self, kind: MemoryKind) -> Self {
        self.staging = Some(kind);
        self
    }

    /// Called on the loading thread after each chunk, with no lock held.
    pub fn progress(mut self, callback: impl Fn(LoadProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(ProgressCallback(Arc::new(callback)));
        self
    }

    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for what can never be right.
    pub(super) fn check(&self) -> Result<()> {
        let refused = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
        if !self.alignment.is_power_of_two() || self.alignment > MAX_ALIGNMENT {
            let given = self.alignment;
            return refused(format!(
                "an alignment of {given} bytes; a power of two of at most {MAX_ALIGNMENT} is valid"
            ));
        }
        let sizes = [
            ("chunk", self.chunk),
            ("ring", self.buffers),
            ("segment", self.segment),
            ("group of readers", self.readers.unwrap_or(1)),
        ];
        for (what, given) in sizes {
            if given == 0 {
                return refused(format!("a {what} of size 0; at least 1 is valid"));
            }
        }
        match self.staging {
            Some(kind @ (MemoryKind::Device | MemoryKind::Unified)) => refused(format!(
                "files are not read into {kind} memory; valid are pageable, pinned and mapped"
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn alignment_bytes(&self) -> usize {
        self.alignment.max(self.allocator_alignment())
    }

    /// What every allocation at the place has anyway.
    pub(super) fn allocator_alignment(&self) -> usize {
        if self.place.device.is_cpu() { HOST_ALIGNMENT } else { DEVICE_ALIGNMENT }
    }

    pub(super) fn reads_back(&self) -> bool {
        self.checksum || self.verify
    }

    pub(super) fn report_progress(&self, phase: LoadPhase, bytes: u64, total: u64) {
        if let Some(ProgressCallback(callback)) = &self.progress {
            callback(LoadProgress { phase, bytes, total });
        }
    }
}
