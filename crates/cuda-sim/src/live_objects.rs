//! Counts of the live objects of a device.

use std::fmt;

/// Counts of the live objects and allocations of one device. Pinned and registered memory belongs to the device whose
/// context was current at its creation. Default memory pools and default streams are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveObjects {
    /// Contexts.
    pub contexts: usize,
    /// Streams created and not destroyed.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Allocations of device memory, including those from pools.
    pub device_allocations: usize,
    /// Total bytes of those allocations, as requested.
    pub bytes: usize,
    /// Allocations of pinned host memory.
    pub pinned: usize,
    /// Registered ranges of host memory.
    pub registered: usize,
    /// Managed allocations.
    pub managed: usize,
    /// Memory pools created and not destroyed.
    pub pools: usize,
    /// Loaded modules.
    pub modules: usize,
    /// Graphs.
    pub graphs: usize,
    /// Executable graphs.
    pub graph_execs: usize,
    /// Imported memory of other APIs.
    pub external: usize,
}

impl LiveObjects {
    /// Returns whether nothing is alive.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for LiveObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing alive");
        }
        let mut separator = "";
        let entries = [
            (self.contexts, "contexts"),
            (self.streams, "streams"),
            (self.events, "events"),
            (self.device_allocations, "device allocations"),
            (self.bytes, "device bytes"),
            (self.pinned, "pinned allocations"),
            (self.registered, "registered ranges"),
            (self.managed, "managed allocations"),
            (self.pools, "memory pools"),
            (self.modules, "modules"),
            (self.graphs, "graphs"),
            (self.graph_execs, "executable graphs"),
            (self.external, "imports of memory"),
        ];
        for (count, what) in entries {
            if count != 0 {
                write!(f, "{separator}{count} {what}")?;
                separator = ", ";
            }
        }
        Ok(())
    }
}
