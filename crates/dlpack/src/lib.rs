//! DLPack: exports buffers to other tensor libraries and imports their tensors, without a copy.
//!
//! [`Export`] makes a DLPack tensor of a [`RawBuffer`](transload_core::RawBuffer), [`Importer`] a buffer of a DLPack tensor.
//! Both forms of the standard are supported: `DLManagedTensorVersioned` (DLPack 1.x) and the unversioned
//! `DLManagedTensor`. A [`ManagedTensor`] owns a tensor and guarantees that its deleter is called exactly once.
//!
//! # Who may use the memory when
//! * *Before*: our work in flight at the export completes before the consumer starts: the host waits for it, or the
//!   consumer's stream does (`Export::for_stream`, `Export::for_consumer`). If it failed, the export is refused. A failure of work that
//!   only the stream waits for is returned by the next use of the buffer, after the loan.
//! * *Meanwhile*: an exported buffer is lent ([`Loan`](transload_core::Loan)) until the deleter is called. Operations and host
//!   views on it return `Busy`; during a read-only export, ours may read. The memory outlives the buffer's handles.
//! * *After*: with a consumer stream, the loan ends after everything enqueued on it when the deleter is called, without
//!   blocking the host. Work on other streams, or without a named stream, must be complete by then. PyTorch requires the
//!   same of memory shared between its own streams.
//! * *Imported* memory is used only after the fences of the producer's work. Its deleter is called once the
//!   last handle was dropped and no operation of ours is in flight.
//!
//! # Threads
//! Every item may be used from any thread. When the last handle of an imported buffer was dropped and its work is complete, the
//! deleter runs on a thread of this library, under no lock: it may take the lock of a Python interpreter. For CUDA memory a context
//! of its device is current there. Do not hold such a lock during [`Importer::drain`], which waits for it.
//!
//! # Limits
//! Only dense tensors can be imported, in which each element has bytes of its own without gaps: no broadcast, sliced or
//! reversed ones. A transposed tensor is dense. Data is in native byte order, as the standard says.
//!
//! # Example
//! ```
//! use transload_backend_cpu::CpuBackend;
//! use transload_core::{Backend, DeviceId, ErrorKind, MemoryKind};
//! use transload_dlpack::{Export, Importer};
//!
//! let backend = CpuBackend::new()?;
//! let buffer = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 24)?;
//! buffer.write()?.fill(7);
//!
//! // What another library gets as a capsule; `into_raw` returns the pointer for it.
//! let tensor = Export::of::<f32>(&buffer).shape(&[2, 3]).versioned()?;
//! assert_eq!(buffer.try_write().unwrap_err().kind(), ErrorKind::Busy);
//!
//! // Import it again: the same memory.
//! let importer = Importer::new();
//! let there = importer.import_as::<f32, _>(tensor)?;
//! assert_eq!((there.shape(), there.buffer().host_address()), (&[2, 3][..], buffer.host_address()));
//! there.buffer().write()?[0] = 9;
//! drop(there);
//! importer.drain()?;
//! assert_eq!(buffer.read()?[..2], [9, 7]);
//! # Ok::<(), transload_core::Error>(())
//! ```

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod cuda;
mod device;
mod export;
mod exported_loan;
mod import;
mod import_counts;
mod imported;
mod layout;
mod registry;
mod stream;
mod tensor;

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
pub use cuda::protocol_stream;
pub use dlpark::{
    DlpackElement as Element, DlpackFlags as Flags, ManagedTensorBase as Form,
    ffi::{
        DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
        DLPackVersion, DLTensor,
    },
};
pub use export::Export;
pub use import::Importer;
pub use imported::{ImportError, Imported};
pub use stream::ConsumerStream;
pub use tensor::ManagedTensor;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
