//! What the first transfers of a path have to set up, done beforehand.

use std::time::Instant;

use transload_core::{
    Backend, DeviceId, Place, QueueLease, Result, StreamPriority, Submission, TransferMethod, TransferPath,
    WorkloadType,
};

use crate::{CrossBackendTransferManager, TransferOptions, report_events};

/// Most queues that a method's transfers use at once on a device, by default.
const MOST_QUEUES: usize = 8;

impl CrossBackendTransferManager {
    /// Prepares every method that `options` allow for transfers from `src` to `dst`: creates contexts and the queues of up to
    /// eight transfers in flight, loads kernels, enables and verifies peers, starts threads, pins staging buffers (up to 64 MiB). The
    /// first call blocks for up to some hundred milliseconds. Optional: without it the first transfers do this.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`](transload_core::ErrorKind::UnknownDevice);
    /// [`ErrorKind::DeviceLost`](transload_core::ErrorKind::DeviceLost) with the first cause, if a device was lost earlier; the
    /// backend's. A method that turns out not to apply is no error: it is not used from then on.
    pub fn prepare(&self, src: Place, dst: Place, options: &TransferOptions) -> Result<()> {
        let path = TransferPath::new(src, dst);
        let mut cache = self.registry.route_cache();
        let routes = cache.routes(&self.registry, &path)?;
        if !transload_core::mutant!("transfer/prepare-of-lost-device") {
            self.context.lost.check([&src.device, &dst.device, &src.device])?;
        }
        for candidate in routes.candidates.iter_mut().filter(|candidate| options.allows(candidate.method())) {
            if self.registry.prepare(&path, candidate).is_err() {
                report_events::declined(None, path, candidate.method());
                continue;
            }
            let begun = Instant::now();
            let method = &candidate.method;
            method.start(&candidate.route)?;
            let staged =
                [TransferMethod::HostStaged, TransferMethod::UnifiedMemory].contains(&candidate.method());
            let lease = if staged { Backend::lease_reserved_queue } else { Backend::lease_queue };
            // Kernels copy what is urgent and small, seldom several at once.
            let (usual, most) = if candidate.method() == TransferMethod::ZeroCopy {
                (WorkloadType::Compute, 1)
            } else {
                (WorkloadType::Memory, MOST_QUEUES)
            };
            let (priority, workload) = (options.priority, options.workload.unwrap_or(usual));
            let create = |backend: &dyn Backend, device: DeviceId| {
                create_queues(most, || lease(backend, device, priority, workload))
            };
            let route = &candidate.route;
            if route.has_kernel && priority == StreamPriority::High {
                // Without the kernel the copy engine does it.
                let prepared = route.backend.prepare_in_place(route.lane);
                prepared.unwrap_or_else(|error| report_events::kernel_unavailable(route.lane, &error));
            }
            create(&*route.backend, route.lane)?;
            if let Some((backend, device)) = &route.second {
                create(&**backend, *device)?;
            }
            let submission =
                Submission { begun: Some(begun), submitting: begun.elapsed(), ..Submission::default() };
            candidate.warm_up(priority, &submission);
        }
        Ok(())
    }
}

/// Has a backend create the queues that it leases while others are leased: until it leases one twice, or `most` are.
fn create_queues(most: usize, lease: impl Fn() -> Result<QueueLease>) -> Result<()> {
    let mut leased: Vec<QueueLease> = Vec::new();
    while leased.len() < most {
        let queue = match lease() {
            Err(error) if leased.is_empty() => return Err(error),
            // Those that there are will do.
            Err(_) => break,
            Ok(queue) => queue,
        };
        queue.prepare_waits();
        if leased.iter().any(|other| other.timeline().id() == queue.timeline().id()) {
            break;
        }
        leased.push(queue);
    }
    Ok(())
}
