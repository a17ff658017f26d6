//! Many copies at once: checked together, grouped by path, and each group submitted as one piece of work where a method can.

mod builder;
mod choose;
mod groups;
mod list;
mod outcome;
mod plan;
mod recorded;
mod recorded_graph;
mod singles;
mod submit;
mod through_device;
mod transfer;

pub use builder::{CopyManyBuilder, CopyManyFuture};
pub(crate) use list::Listed;
use list::{List, Pieces};
pub use outcome::{CopyManyError, CopyManyReport};
pub use plan::{ListAlternative, ListPlan};
pub use recorded::RecordedTransfers;
pub(crate) use through_device::longest_gap;
pub use transfer::CopyManyTransfer;

use transload_core::{ListWay, RawBuffer};

/// A source and its destination.
type Pair = (RawBuffer, RawBuffer);

/// How a list may be copied.
#[derive(Clone, Copy, Debug, Default)]
struct ListOptions {
    /// See [`CopyManyBuilder::exclusive`].
    exclusive: bool,
    /// Whether it goes through device memory: then by no kernel that accesses the host's.
    through_device: bool,
    /// See [`CopyManyBuilder::way`].
    way: Option<ListWay>,
}
