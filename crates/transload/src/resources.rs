//! What a runtime holds, and for whom.

use std::fmt;

use transload_core::ResourceCounts;

use crate::{Runtime, families};

/// What a runtime holds at one moment. Returned by [`Runtime::resources`]; `Display` prints a line for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resources {
    /// Allocations, their bytes and leased queues, by the name of the backend.
    pub backends: Vec<(&'static str, ResourceCounts)>,
    /// Bytes of pinned host memory, for any use: arrays, what is kept for reuse, staging buffers, registrations. Of backends that
    /// were made elsewhere it says nothing.
    pub pinned_bytes: u64,
    /// The limit of `pinned_bytes`, if any.
    pub pinned_limit: Option<u64>,
    /// The bytes of staging buffers: of transfers, of [`io`](crate::io) and of loads. A part of `pinned_bytes`.
    pub staging_bytes: u64,
    /// Threads of the runtime's executor, which other runtimes may share: workers and those for blocking calls. See
    /// [`RuntimeBuilder::threads`](crate::RuntimeBuilder::threads) for the others.
    pub threads: usize,
}

impl Runtime {
    /// Returns what is held now, and for whom. Once every array, stream and transfer was dropped, [`drain`](Self::drain) leaves
    /// nothing but threads.
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
        let (pinned_bytes, limit) = self.cuda_backend().map_or((0, u64::MAX), |cuda| families::pinned(cuda));
        Resources {
            backends: self.manager().resource_counts(),
            pinned_bytes,
            pinned_limit: (limit < u64::MAX).then_some(limit),
            staging_bytes: self.manager().staging_bytes(),
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
        let Self { pinned_bytes, staging_bytes, threads, .. } = self;
        writeln!(f, "pinned: {pinned_bytes} bytes{limit}, {staging_bytes} of them staging buffers")?;
        write!(f, "threads: {threads}")
    }
}
