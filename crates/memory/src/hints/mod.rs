//! Hints for unified memory: preferred location, accessors, prefetch, and the driver's record of them.
//!
//! Hints move pages; they never change content.

mod advise;
mod calls;
mod driver_location;
mod hint_stream;
mod location;
mod managed;
mod policy;
mod prefetch_plan;
mod prefetch_target;
mod residency;

pub use advise::advise;
pub(crate) use advise::place_of;
pub use calls::explain_hint;
pub use location::MemoryLocation;
pub use managed::ManagedMemoryHints;
pub use policy::{MigrationPolicy, apply_migration_policy, apply_migration_policy_raw};
pub use prefetch_plan::{PrefetchEntry, PrefetchPlan};
pub use prefetch_target::PrefetchTarget;
pub use residency::Residency;
