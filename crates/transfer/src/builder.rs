//! Makes a manager with an observer and a sampling of its own.

use std::{fmt, sync::Arc};

use transload_core::Observer;

use crate::{CrossBackendTransferManager, Sampling, context::ManagerContext};

/// Made by [`CrossBackendTransferManager::builder`].
#[derive(Default)]
#[must_use = "nothing is made before `build`"]
pub struct ManagerBuilder {
    observer: Option<Arc<dyn Observer>>,
    sampling: Sampling,
}

impl ManagerBuilder {
    /// Who hears of every transfer: [`Submitted`](transload_core::TransferEvent) on the thread that submits it, its end
    /// on the thread that observes it. No lock is held meanwhile. Refused transfers are not heard of.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Which transfers are measured by the lane's clock; [`Sampling::Every`]`(64)` by default.
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// The manager, without any backend yet.
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
