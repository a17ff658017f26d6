//! Hints for unified memory: where it should be, who will use it, and what the driver believes of it.
//!
//! Advice and prefetch move pages; they never change what is in them.

mod advise;
mod calls;
mod location;
mod residency;

pub use advise::advise;
pub use location::MemoryLocation;
pub use residency::Residency;
