//! Model files onto a device: each tensor of a safetensors file in its place, read once, through bounded host memory.
//!
//! [`Runtime::load`], or [`load`] over any transfer manager, puts all tensors into one allocation (several where one
//! cannot be had) and answers with slices of it. Several threads read the file, in its order, into a small ring of host
//! buffers while earlier pieces are in flight. A buffer of the ring holds what a piece of the device's memory will hold,
//! gaps between tensors included, so that each piece is one transfer however small its tensors are. To the host's own
//! memory there is no ring and no transfer: the file is read straight to where the tensors are to be. With
//! [`LoadOptions::raw`] any other file is loaded as one tensor of bytes. Needs the feature `safetensors`.
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
//! assert_eq!(x.buffer().read()?[4..], 2.0_f32.to_le_bytes());
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
mod source;
#[cfg(test)]
#[path = "../../tests/unit/load.rs"]
mod tests;

use std::{path::Path, sync::Arc, time::Instant};

use transload_core::{ErrorKind, Result};
use transload_transfer::CrossBackendTransferManager;

use crate::Runtime;
use header::Header;
use pipeline::Pipeline;
use placement::TensorPlacement;
use source::Source;

pub use model::{LoadedModel, LoadedTensor};
pub use options::{LoadOptions, LoadPhase, LoadProgress};
pub use report::{LoadReport, MethodCount};
/// Element types as the file format has them.
pub use safetensors::Dtype;

impl Runtime {
    /// Loads a safetensors file; see [`load`].
    ///
    /// # Errors
    /// As for [`load`]; for a device that is not there that of [`explain`](Self::explain).
    pub fn load(&self, path: impl AsRef<Path>, options: &LoadOptions) -> Result<LoadedModel> {
        self.device(options.place.device)?;
        load(self.manager(), path, options)
    }
}

/// Loads every tensor of a safetensors file. Blocks until all bytes are in place and, where that was asked for, were read
/// back and found equal. The file is read by blocking calls of the executor that the process shares; the calling thread must
/// not be one of its workers.
///
/// Nothing is allocated on the device before the whole header was found to be right and the file to be as long as the
/// header says. After an error nothing is kept, and nothing that was submitted is still under way.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a file that is no regular file or no valid safetensors file, with what is wrong and
/// what would be valid, and for options that cannot be; [`ErrorKind::Io`] where reading fails, or the file changes while
/// it is read; [`ErrorKind::OutOfMemory`] with what was needed and what there is; [`ErrorKind::Corrupted`] where bytes
/// that were read back differ; [`ErrorKind::UnknownDevice`]; the backend's.
pub fn load(
    manager: &CrossBackendTransferManager,
    path: impl AsRef<Path>,
    options: &LoadOptions,
) -> Result<LoadedModel> {
    let begun = Instant::now();
    options.check()?;
    manager.backend(options.place.device)?;
    let source = Arc::new(Source::open(path.as_ref())?);
    let header = if options.raw { Header::raw(&source)? } else { Header::read(&source)? };
    let placement = TensorPlacement::allocate(manager, &header, options)?;
    let mut pipeline = Pipeline::new(manager, &placement, options)?;
    let mut report = LoadReport { preparing: begun.elapsed(), ..pipeline.report(&header, &source) };

    let outcome = pipeline.send(&header, &source, &mut report).and_then(|hashes| {
        report.wall = begun.elapsed();
        if options.reads_back() {
            let begun = Instant::now();
            pipeline.read_back(&header, &source, &hashes)?;
            report.verifying = Some(begun.elapsed());
        }
        Ok(hashes)
    });
    // Also after an error nothing may be under way that reads the ring or writes the tensors.
    pipeline.wait_all();
    let outcome = outcome.map_err(|error| explain_corruption(error, &source));
    let hashes = outcome?;
    LoadedModel::new(header, placement, hashes, report)
}

/// Bytes that differ are the file's doing where it was written to meanwhile.
fn explain_corruption(error: transload_core::Error, source: &Source) -> transload_core::Error {
    match source.check_unchanged() {
        Err(changed) if error.kind() == ErrorKind::Corrupted => changed,
        _ => error,
    }
}
