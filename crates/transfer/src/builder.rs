//! The builder of a manager with an observer, another sampling or other settings.

use std::{fmt, sync::Arc};

use transload_core::Observer;
use transload_executor::Executor;

use crate::{
    CrossBackendTransferManager, Sampling, context::ManagerContext, methods, planning::registry::Registry,
    staging::StagingRings,
};

/// Settings of a manager. Created by [`CrossBackendTransferManager::builder`].
#[must_use = "a builder does nothing before `build`"]
pub struct ManagerBuilder {
    observer: Option<Arc<dyn Observer>>,
    sampling: Sampling,
    executor: Option<Executor>,
    staging_limit: Option<u64>,
    refinement: bool,
    exploration: bool,
    registration: bool,
}

impl Default for ManagerBuilder {
    fn default() -> Self {
        Self {
            observer: None,
            sampling: Sampling::default(),
            executor: None,
            staging_limit: None,
            refinement: true,
            exploration: true,
            registration: true,
        }
    }
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

    /// Runs the manager's tasks on an executor's threads. Default: [`Executor::shared`].
    pub fn executor(mut self, executor: &Executor) -> Self {
        self.executor = Some(executor.group());
        self
    }

    /// Sets the most bytes of pinned staging buffers per device, those of
    /// [`allocate_staging`](CrossBackendTransferManager::allocate_staging) included. Transfers use buffers of 4 MiB, and a device has
    /// at least one. Default: two for each of the host's processors, at most 16, and any number for callers.
    pub fn staging_limit(mut self, bytes: u64) -> Self {
        self.staging_limit = Some(bytes);
        self
    }

    /// Sets whether transfers refine the costs that methods are chosen by. Default: yes. A cost changes if nine transfers of about the
    /// same size took 15 % more or less than predicted, by their median: measured transfers of at least 64 KiB between the host and a
    /// device that is not simulated, during which the manager had no other ones of the same direction there. The cost's basis is [`Refined`](transload_core::CostBasis::Refined) from then on, and
    /// the event [`COST_REFINED`](transload_core::events::COST_REFINED) says so. Costs set by
    /// [`set_costs`](CrossBackendTransferManager::set_costs) do not change.
    pub fn refinement(mut self, is_on: bool) -> Self {
        self.refinement = is_on;
        self
    }

    /// Sets whether the second best method is tried now and then, so that the costs of both are known. Default: yes, if costs are
    /// [refined](Self::refinement) and transfers [sampled](Self::sampling). It is tried for transfers of at least 1 MiB between the
    /// host and a device with Normal or Low priority, if it is predicted to take at most half as long again, for at
    /// most 1 % of the predicted time of all. If a cost was corrected, from 64 KiB on, and by what was predicted before. Such a transfer's report is marked as [`explored`](transload_core::TransferReport::explored).
    pub fn exploration(mut self, is_on: bool) -> Self {
        self.exploration = is_on;
        self
    }

    /// Sets whether pageable memory that is staged again and again is registered with the driver instead. Default: yes. It is, by a thread
    /// of the executor, once copies of at least 1 MiB between the host and a device have copied all of the memory twice, and would
    /// have been faster by the time that a registration takes: after about ten copies of 64 MiB. Further copies are planned and reported as those of pinned memory.
    /// Only memory that the library frees, such as [`Backend::allocate`](transload_core::Backend::allocate) and a vector that a
    /// buffer owns; it is registered until then. A backend may have a limit, and its driver may refuse: copies go on being staged.
    /// Once dropped, such memory is freed as pinned memory is: by another thread, perhaps after what the device does just then.
    pub fn registration(mut self, is_on: bool) -> Self {
        self.registration = is_on;
        self
    }

    /// Creates the manager, without backends.
    #[must_use]
    pub fn build(self) -> CrossBackendTransferManager {
        let Self { observer, sampling, executor, staging_limit, refinement: refines, .. } = self;
        let Self { exploration, registration: registers, .. } = self;
        let executor = executor.unwrap_or_else(Executor::shared);
        let calls = executor.group();
        let explores = exploration && refines && !matches!(sampling, Sampling::Off | Sampling::Every(0));
        let context = ManagerContext {
            observer,
            sampling,
            refines,
            explores,
            registers,
            executor: calls,
            ..ManagerContext::default()
        };
        let rings = Arc::new(StagingRings::new(executor.clone(), staging_limit));
        let context = Arc::new(context);
        let methods = methods::all(executor, &rings, &context);
        let registry = Arc::new(Registry::new(Arc::clone(&context), methods, rings));
        CrossBackendTransferManager { registry, context }
    }
}

impl fmt::Debug for ManagerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerBuilder")
            .field("observed", &self.observer.is_some())
            .field("sampling", &self.sampling)
            .field("executor", &self.executor)
            .field("staging_limit", &self.staging_limit)
            .field("refinement", &self.refinement)
            .field("exploration", &self.exploration)
            .field("registration", &self.registration)
            .finish()
    }
}
