//! What a runtime holds, and for whom.

use std::fmt;

use transload_core::ResourceCounts;

use crate::{Runtime, families};

/// What a runtime holds at one moment. Returned by [`Runtime::resources`]; `Display` prints a line for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Resources {
    /// Allocations, their bytes and leased queues, by the name of the backend.
    pub backends: Vec<(&'static str, ResourceCounts)>,
    /// Bytes of host memory that CUDA backends have pinned, for any use: what the fields below say of it, and arrays. Not what other
    /// families' drivers have pinned.
    pub pinned_bytes: u64,
    /// The limit of `pinned_bytes`, if any.
    pub pinned_limit: Option<u64>,
    /// The part of `pinned_bytes` that is in no use and kept for the next arrays and staging buffers.
    pub cached_pinned_bytes: u64,
    /// The part of `pinned_bytes` that is registered memory of other owners, also what is only kept registered.
    pub registered_bytes: u64,
    /// Staging buffers: of transfers, of [`io`](crate::io) and of loads. Those of CUDA devices are a part of `pinned_bytes`; those of other
    /// families are pinned by their drivers, or pageable, and are not.
    pub staging_bytes: u64,
    /// The part of `staging_bytes` that is in the rings of transfers, also what is only kept there.
    pub ring_bytes: u64,
    /// Threads of the runtime's executor, which other runtimes may share: workers and those for blocking calls. See
    /// [`RuntimeBuilder::threads`](crate::RuntimeBuilder::threads) for the others.
    pub threads: usize,
}

impl Resources {
    /// Returns whether nothing but threads is held.
    ///
    /// ```
    /// let rt = transload::Runtime::discover()?;
    /// let array = rt.zeros::<u8>(4096)?;
    /// assert!(!rt.resources().is_empty());
    /// drop(array);
    /// rt.drain()?;
    /// assert!(rt.resources().is_empty(), "{}", rt.resources());
    /// # Ok::<(), transload::Error>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { backends, pinned_bytes, staging_bytes, .. } = self;
        backends.iter().all(|(_, counts)| counts.is_empty()) && (*pinned_bytes, *staging_bytes) == (0, 0)
    }
}

impl Runtime {
    /// Returns what is held now, and for whom. Once every array, stream and transfer was dropped, [`drain`](Self::drain) leaves
    /// nothing but threads: [`is_empty`](Resources::is_empty).
    ///
    /// ```
    /// let rt = transload::Runtime::discover()?;
    /// let array = rt.zeros::<u8>(4096)?;
    /// println!("{}", rt.resources());
    /// # assert!(rt.resources().backends.iter().any(|(_, held)| held.bytes >= 4096));
    /// # Ok::<(), transload::Error>(())
    /// ```
    #[must_use]
    pub fn resources(&self) -> Resources {
        let backends = self.backends();
        let pinned: Vec<_> = backends.iter().filter_map(|backend| families::pinned(&**backend)).collect();
        let limit = pinned.iter().fold(0, |sum: u64, pinned| sum.saturating_add(pinned.limit));
        Resources {
            backends: backends.iter().map(|backend| (backend.name(), backend.resource_counts())).collect(),
            pinned_bytes: pinned.iter().map(|pinned| pinned.bytes).sum(),
            pinned_limit: (!pinned.is_empty() && limit < u64::MAX).then_some(limit),
            cached_pinned_bytes: pinned.iter().map(|pinned| pinned.cached).sum(),
            registered_bytes: pinned.iter().map(|pinned| pinned.registered).sum(),
            staging_bytes: self.manager().staging_bytes(),
            ring_bytes: self.manager().ring_bytes(),
            threads: self.executor().live_threads(),
        }
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (backend, counts) in &self.backends {
            writeln!(f, "{backend}: {counts}")?;
        }
        let limit = self.pinned_limit.map_or(String::new(), |limit| format!(" of at most {limit}"));
        let Self { pinned_bytes, cached_pinned_bytes, registered_bytes, staging_bytes, ring_bytes, .. } =
            self;
        writeln!(f, "pinned: {pinned_bytes} bytes{limit}")?;
        writeln!(f, "  {staging_bytes} staging buffers, {ring_bytes} of them in the rings of transfers")?;
        writeln!(f, "  {cached_pinned_bytes} kept for reuse, {registered_bytes} registered")?;
        write!(f, "threads: {}", self.threads)
    }
}
