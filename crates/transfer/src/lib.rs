//! Moves bytes between any two memories of a machine, by the method predicted to be fastest, and says why.
//!
//! [`CrossBackendTransferManager`] takes backends ([`transload_core::Backend`]) and moves bytes between any two of their
//! buffers, through core's traits alone. Each call submits its transfer and returns a
//! [`Transfer`](transload_core::Transfer): a future that can be awaited, waited for, or dropped.
//!
//! ```
//! use transload_backend_cpu::CpuBackend;
//! use transload_core::{DeviceId, MemoryKind};
//! use transload_transfer::{CrossBackendTransferManager, TransferOptions};
//!
//! let manager = CrossBackendTransferManager::new();
//! manager.register_backend(CpuBackend::new()?)?;
//! let src = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 4096)?;
//! let dst = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 4096)?;
//! src.write()?.fill(7);
//!
//! // What the transfer would do. Moves nothing.
//! let plan = manager.plan(src.place(), dst.place(), 4096, &TransferOptions::new())?;
//! println!("{plan}");
//!
//! // `.await` it in async code; `.wait()` blocks instead.
//! let report = manager.copy(&src, &dst).wait()?;
//! assert_eq!(report.method, plan.method);
//! assert!(dst.read()?.iter().all(|byte| *byte == 7));
//! # Ok::<(), transload_core::Error>(())
//! ```
//!
//! # Code map
//! `manager` checks a request, has `planning` choose a method, has the method (`methods`, over `staging`) submit it,
//! and records how it ended (`stats`, over `context`). `many` copies lists of pairs, `strided` reduces strided views to rows, `cast` makes casts of copies and operations. `calibration` measures what the methods take.
//!
//! # Not implemented yet
//! Bytes take no route through a third device. What the host's threads copy is not recorded, but submitted anew by each replay of a recording. Calibration
//! ([`CrossBackendTransferManager::calibrate`]) measures single copies on an idle machine, lists also beside kernels that occupy the
//! device, and no unified memory; lists do not refine it.

mod allocate;
mod attempt;
mod blocks;
mod builder;
mod built_in;
mod calibration;
mod cast;
mod context;
mod copy_builder;
mod manager;
mod many;
mod methods;
mod options;
mod planning;
mod prepare;
mod report_events;
mod staging;
mod stats;
mod strided;
mod task_submission;

pub use builder::ManagerBuilder;
pub use calibration::{
    Calibration, CalibrationOptions, CalibrationProgress, Crossing, KeptCalibration, ListCalibration,
    MeasuredList, MeasuredTime, MethodCurve, PathCalibration, StagingCalibration, StagingTime, Unfinished,
    UnfinishedReason,
};
pub use cast::{CastBuilder, CastFuture, CastReport, CastTransfer};
pub use copy_builder::{CopyBuilder, CopyFuture};
pub use manager::CrossBackendTransferManager;
pub use many::{
    CopyManyBuilder, CopyManyError, CopyManyFuture, CopyManyReport, CopyManyTransfer, ListAlternative,
    ListPlan, RecordedTransfers,
};
pub use options::TransferOptions;
pub use planning::plan::{Alternative, NotChosen, Plan};
pub use staging::{STAGING_BUFFER, StagingMemory, StagingTuning};
pub use stats::{sampling::Sampling, transfer_stats::TransferStats};
pub use strided::StridedLayout;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
