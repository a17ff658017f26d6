//! DLPack: lends buffers to other tensor libraries and takes in theirs, without a copy.
//!
//! [`Export`] makes a DLPack tensor of a [`RawBuffer`](transload_core::RawBuffer), [`Importer`] a buffer of a DLPack tensor.
//! Both forms of the standard are known: `DLManagedTensorVersioned` (DLPack 1.x) and the older `DLManagedTensor`. A
//! [`ManagedTensor`] owns one: its deleter is called exactly once, by whoever has it last.
//!
//! # Who may use the memory when
//! * *Before*: work of ours that is in flight when a buffer is exported is over before the consumer begins: the host waits for
//!   it, or the consumer's stream does (`Export::for_stream`, `Export::for_consumer`).
//! * *Meanwhile*: an exported buffer is lent ([`Loan`](transload_core::Loan)) until the deleter is called. Operations and host
//!   views on it answer `Busy`; beside an export for reading, ours may read. The memory lives on, whoever drops the buffer.
//! * *After*: where a stream of the consumer's is known, the loan ends behind everything enqueued on it when the deleter is
//!   called, without the host. What the consumer does on other streams, or where none is named, must be over by then. PyTorch
//!   asks the same for memory that it shares between its own streams.
//! * *Imported* memory begins behind the fences that the producer's work is known by. Dropping the last handle of it calls the
//!   deleter once no operation of ours is in flight, and never before.
//!
//! # Threads
//! Every item may be used from any thread. A deleter runs where the last handle of a tensor goes: in a drop, or in
//! [`Importer::import`] and [`Importer::drain`], never under a lock of this library. Tensors of Python's libraries may take
//! the interpreter's lock in theirs: do not drop buffers made of such while you hold a lock that a Python thread waits for.
//!
//! # What is not taken in
//! Tensors whose elements do not lie densely, each once (broadcast, sliced or reversed ones): what lies between belongs to
//! others. A transposed tensor is dense. Data is in the machine's own byte order, as the standard says.
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
//! // What another library would get as a capsule; `into_raw` gives the pointer for it.
//! let tensor = Export::of::<f32>(&buffer).shape(&[2, 3]).versioned()?;
//! assert_eq!(buffer.try_write().unwrap_err().kind(), ErrorKind::Busy);
//!
//! // And back again: the same memory.
//! let importer = Importer::new();
//! let there = importer.import_as::<f32, _>(tensor)?;
//! assert_eq!((there.shape(), there.buffer().host_address()), (&[2, 3][..], buffer.host_address()));
//! there.buffer().write()?[0] = 9;
//! drop(there);
//! assert_eq!(buffer.read()?[..2], [9, 7]);
//! # Ok::<(), transload_core::Error>(())
//! ```

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
mod cuda;
mod device;
mod export;
mod exported_loan;
mod import;
mod imported;
mod imported_storage;
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
