//! CUDA memory: device, pinned, mapped and unified.
//!
//! [`CudaMemoryManager`] allocates [`RawBuffer`](transload_core::RawBuffer)s of every kind for one [`CudaDevice`]. A
//! buffer is freed once its last handle is dropped and no operation in flight uses it. Freeing never waits for the
//! device: memory that the driver frees only after a device synchronisation is freed on a separate thread.
//!
//! # Threads
//! Every item may be used from any thread.
//!
//! On macOS this crate is empty.
//!
//! # Example
//! ```
//! # #[cfg(any(target_os = "linux", windows))] {
//! use transload_core::MemoryKind;
//! use transload_memory::{CudaDevice, CudaMemoryManager};
//!
//! fn upload_area() -> transload_core::Result<()> {
//!     let device = CudaDevice::new(0)?;
//!     let memory = CudaMemoryManager::new(&device)?;
//!     let pinned = memory.allocate(MemoryKind::Pinned, 1 << 20)?;
//!     pinned.write()?.fill(7);
//!     Ok(())
//! }
//!
//! if let Err(error) = upload_area() {
//!     println!("no CUDA here: {error}");
//! }
//! # }
//! ```
#![cfg(any(target_os = "linux", windows))]

mod allocation_counts;
mod cupti;
mod device;
mod error;
mod feature;
mod hints;
mod manager;
mod migrations;
mod pinned_limit;
mod prediction;
mod profile;
mod ranges;
mod resource;
mod storage;
mod sync;
mod unified;

pub use cupti::{ActivityRecording, OperationCalls};
pub use device::CudaDevice;
pub use error::{lift, lift_in, lost_elsewhere, record_loss};
pub use feature::{CudaFeature, UnifiedSupport};
pub use hints::{
    ManagedMemoryHints, MemoryLocation, MigrationPolicy, PrefetchEntry, PrefetchPlan, PrefetchTarget,
    Residency, advise, apply_migration_policy, apply_migration_policy_raw, explain_hint,
};
pub use manager::CudaMemoryManager;
pub use migrations::{MigrationCounts, MigrationTracker};
pub use pinned_limit::PinnedLimit;
pub use prediction::{
    AccessPredictor, AutoPrefetcher, DeclaredAccess, DeviceResidency, PredictedAccess, PredictionLimits,
    PredictionStatistics,
};
pub use profile::{DeviceProfile, EventClock};
pub use resource::{
    CudaResource, HostPages, LimitingResource, MemoryResource, NumaBinding, PinnedResource,
    RegistrationCache, RegistrationStatistics, UploadBuffer, registration_edges,
};
pub use storage::{
    EndWord, EndWords, FixedList, FreeDeferral, InContext, ListEntry, ListPage, ListPages, PendingEnd,
    PointerAttributes, WordPage, context_of, pointer_attributes,
};
pub use unified::{
    DeviceAccess, Role, UnifiedAllocation, UnifiedBuffer, UnifiedMode, UnifiedSlice, UnifiedSliceMut,
};

#[cfg(all(doctest, any(target_os = "linux", windows)))]
#[doc = include_str!("../README.md")]
struct Readme;
