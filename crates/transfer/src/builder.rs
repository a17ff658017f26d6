//! The builder of a manager with an observer or another sampling.

use std::{fmt, sync::Arc};

use transload_core::Observer;

use crate::{CrossBackendTransferManager, Sampling, context::ManagerContext};

/// Settings of a manager. Created by [`CrossBackendTransferManager::builder`].
#[derive(Default)]
#[must_use = "a builder does nothing before `build`"]
pub struct ManagerBuilder {
    observer: Option<Arc<dyn Observer>>,
    sampling: Sampling,
}

impl ManagerBuilder {
    /// Sets the observer of every transfer. It is called with [`Submitted`](transload_core::TransferEvent) on the
    /// thread that submits, and with the end on the thread that observes it, under no lock. Refused transfers are not
    /// reported.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Sets which transfers are measured by the lane's clock. Default: [`Sampling::Every`]`(64)`.
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Creates the manager, without backends.
    #[must_use]
    pub fn build(self) -> CrossBackendTransferManager {
        let Self { observer, sampling } = self;
        CrossBackendTransferManager::with_context(ManagerContext {
            observer,
            sampling,
            ..ManagerContext::default()
        })
    }
}

impl fmt::Debug for ManagerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerBuilder")
            .field("observed", &self.observer.is_some())
            .field("sampling", &self.sampling)
            .finish()
    }
}
