//! Feature `safetensors`: loads the tensors of a file onto a device. Reads it once, through bounded host memory.
//!
//! [`Runtime::load`], or [`load`] with any transfer manager, puts all tensors into one allocation (several if that fails, or beyond the
//! largest one of the device) and returns slices of it. Several threads read the file, each into staging buffers of its own while earlier chunks are in
//! flight. The first chunks are on their way while further buffers are pinned. All buffers together fit the processor's last-level
//! cache, shared with other loads of the process, unless that takes less than 1 MiB each. A chunk has the layout of the destination, including gaps between tensors, so it is one transfer even if
//! it has many small tensors. For host destinations the file is read in place, without a ring and without transfers. With
//! [`LoadOptions::raw`], any file is loaded as one tensor of bytes.
//!
//! ```
//! use transload::{DeviceId, MemoryKind, Place, Runtime, load::LoadOptions};
//!
//! // A file with one tensor, [1.0, 2.0].
//! let header = br#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend(header);
//! file.extend([1.0_f32, 2.0].iter().flat_map(|x| x.to_le_bytes()));
//! let path = std::env::temp_dir().join(format!("transload-example-{}.safetensors", std::process::id()));
//! std::fs::write(&path, file)?;
//!
//! let runtime = Runtime::discover()?;
//! let options = LoadOptions::new(Place::new(DeviceId::Cpu, MemoryKind::Pageable)).checksum(true);
//! let model = runtime.load(&path, &options)?;
//! # std::fs::remove_file(&path)?;
//! for tensor in model.tensors() {
//!     println!("{} {} {:?} at {}", tensor.name(), tensor.dtype(), tensor.shape(), tensor.buffer().place());
//! }
//! let x = model.tensor("x").ok_or("x is not in the file")?;
//! assert_eq!(*x.array::<f32>()?.read()?, [1.0, 2.0]);
//! println!("{}", model.report());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod entries;
mod hashes;
mod header;
mod layout;
mod model;
mod options;
mod pipeline;
mod placement;
mod read_back;
mod readers;
mod report;
mod shape;
mod source;
#[cfg(test)]
#[path = "../../tests/unit/load.rs"]
mod tests;

use std::{
    future::{Future, ready},
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use transload_core::{ErrorKind, Result, events::report::allocation_retried};
use transload_executor::block_on;
use transload_transfer::CrossBackendTransferManager;

use crate::Runtime;
use header::Header;
use layout::Layout;
use pipeline::Pipeline;
use placement::TensorPlacement;
use source::Source;

pub use crate::io::MethodCount;
pub use model::{LoadedModel, LoadedTensor};
pub use options::{LoadOptions, LoadPhase, LoadProgress};
pub use report::LoadReport;
/// Element types of the file format.
pub use safetensors::Dtype;

impl Runtime {
    /// Loads a safetensors file; see [`load`]. Feature `safetensors`.
    ///
    /// # Errors
    /// Those of [`load`]; for an absent device, that of [`explain`](Self::explain).
    pub fn load(&self, path: impl AsRef<Path>, options: &LoadOptions) -> Result<LoadedModel> {
        self.device(options.place.device)?;
        load(self.manager(), path, options)
    }

    /// Like [`load`](Self::load), on another thread; see [`load_async`]. Feature `safetensors`.
    ///
    /// # Errors
    /// As for `load`.
    pub fn load_async(&self, path: impl AsRef<Path>, options: &LoadOptions) -> LoadFuture {
        match self.device(options.place.device) {
            Ok(_) => load_async(self.manager(), path, options),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }
}

/// The end of a load. It owns what it needs, and cancels the load if it is dropped.
pub type LoadFuture = Pin<Box<dyn Future<Output = Result<LoadedModel>> + Send>>;

/// Like [`load`], but on a thread of its own, which is started when the future is first polled. If the future is dropped, the load
/// ends after the chunks that it is at, and its memory is freed; the manager's `drain` waits for that.
///
/// # Errors
/// As for `load`; [`ErrorKind::Io`] if the system refuses a thread.
pub fn load_async(
    manager: &CrossBackendTransferManager,
    path: impl AsRef<Path>,
    options: &LoadOptions,
) -> LoadFuture {
    let cancel = CancelOnDrop(Arc::default());
    let (manager, path) = (manager.clone(), path.as_ref().to_owned());
    let options = options.clone().cancelled_by(&cancel.0);
    Box::pin(async move {
        // Also when it is dropped.
        let _cancel = cancel;
        let executor = manager.executor().clone();
        executor.spawn_thread(move || load(&manager, path, &options)).await?
    })
}

struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Loads all tensors of a safetensors file. Blocks until all bytes are in place and, if requested, were read back and
/// verified. The file is read by blocking calls on the manager's executor.
///
/// Nothing is allocated on the device until the whole header is validated against the file's length. After an error,
/// all memory is freed and nothing is in flight.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a path that is not a regular, valid safetensors file, with the cause, and for
/// invalid options; [`ErrorKind::Io`] if reading fails or the file changes meanwhile, by its length, its modification time, and on Unix the time of its last change, which also
/// moves if the file is renamed or its attributes change (a rewrite in which its number of links changes too is not seen); [`ErrorKind::OutOfMemory`] with
/// the requested and free bytes; [`ErrorKind::OutOfRange`] for a tensor beyond the device's largest allocation; [`ErrorKind::Corrupted`] if bytes that were read back differ;
/// [`ErrorKind::UnknownDevice`]; [`ErrorKind::Unsupported`] on a worker of an executor of this library, which must not block
/// ([`load_async`] does not); errors of the backend.
pub fn load(
    manager: &CrossBackendTransferManager,
    path: impl AsRef<Path>,
    options: &LoadOptions,
) -> Result<LoadedModel> {
    block_on(ready(()))?;
    let begun = Instant::now();
    options.check()?;
    let backend = manager.backend(options.place.device)?;
    let source = Arc::new(Source::open(path.as_ref())?);
    let header = if options.raw { Header::raw(&source)? } else { Header::read(&source)? };
    let place = |most| TensorPlacement::plan(manager, &header, options, most).map(Arc::new);
    let send = |placement: &Arc<TensorPlacement>| {
        let mut pipeline = Pipeline::new(manager, placement, options)?;
        let mut report = LoadReport { preparing: begun.elapsed(), ..pipeline.report(&header, &source) };
        // Also after an error, the pipeline's drop waits until no transfer reads the ring or writes the tensors.
        let hashes = pipeline.send(&header, &source, &mut report)?;
        report.wall = begun.elapsed();
        if options.reads_back() {
            let begun = Instant::now();
            pipeline.read_back(&header, &source, &hashes)?;
            report.verifying = Some(begun.elapsed());
        }
        Ok((hashes, report))
    };
    let most = placement::largest_segment(&*backend, options);
    let mut placement = place(most)?;
    let mut outcome: Result<_> = send(&placement);
    let shorter = options.segment.min(most);
    // There may be enough memory, but not contiguous, or not for one allocation of the device that has the host's pinned memory.
    if let Err(error) = &outcome
        && matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::OutOfRange)
        && placement.segments().is_empty()
        && let Some(layout) = Layout::new(&header.tensors, options.alignment_bytes(), shorter)
        && layout.segments.len() > placement.layout.segments.len()
    {
        placement = place(shorter)?;
        outcome = send(&placement);
        if outcome.is_ok() {
            allocation_retried(options.place, header.bytes, "in segments");
        }
    }
    let (hashes, report) = outcome.map_err(|error| explain_corruption(error, &source))?;
    LoadedModel::new(header, &placement, &backend, hashes, report)
}

/// Returns the file's change as the cause if it explains why bytes differ.
fn explain_corruption(error: transload_core::Error, source: &Source) -> transload_core::Error {
    match source.check_unchanged() {
        Err(changed) if error.kind() == ErrorKind::Corrupted => changed,
        _ => error,
    }
}
