//! The manager's asynchronous forms: they await what would block a thread, under any executor.

use transload_core::{
    Backend, Place, RawBuffer, Result, StreamPriority, Transfer, TransferMethod, TransferPath,
    TransferReport, Turns, WorkloadType,
};

use crate::{CrossBackendTransferManager, TransferOptions, planning::request::ranges};

impl CrossBackendTransferManager {
    /// Like [`transfer_with`](Self::transfer_with), but asynchronous from submission to the last byte: no work in
    /// flight blocks the thread. Thousands may be awaited at once.
    ///
    /// The transfer is submitted when the future is first polled, or later, once no conflicting work is left that its
    /// queue cannot wait for. Futures polled concurrently are not ordered: if one transfer must come after another,
    /// await [`submit_async`](Self::submit_async) of the first before the second. Dropping the future before submission
    /// cancels it. Later the transfer goes on, and keeps its memory until it is complete.
    ///
    /// # What can still block
    /// * The first use of a device or a path, for milliseconds to some hundred: it creates contexts, loads kernels and
    ///   verifies peers. [`prepare`](Self::prepare) does that beforehand, on a thread that may block.
    /// * A copy of at most 2 MiB from host to host, which `backend-cpu` runs inline if it is idle.
    /// * A direct copy from or to pageable memory, which the CUDA driver may run during the call, after the queue's
    ///   earlier work. It is chosen for small transfers only. Pinned memory, or [`TransferOptions`] without DirectCopy,
    ///   avoids it.
    /// * A full launch queue: CUDA's holds about a thousand operations per stream.
    ///
    /// # Errors
    /// Those of [`transfer_buffer`](Self::transfer_buffer).
    pub async fn transfer_async(
        &self,
        src: &RawBuffer,
        dst: &RawBuffer,
        src_offset: usize,
        dst_offset: usize,
        size: usize,
        options: &TransferOptions,
    ) -> Result<TransferReport> {
        self.submit_async(src, dst, src_offset, dst_offset, size, options).await.await
    }

    /// The first half of [`transfer_async`](Self::transfer_async): completes when the transfer is submitted or refused.
    /// Transfers that touch common bytes take effect in submission order.
    pub async fn submit_async(
        &self,
        src: &RawBuffer,
        dst: &RawBuffer,
        src_offset: usize,
        dst_offset: usize,
        size: usize,
        options: &TransferOptions,
    ) -> Transfer {
        let (src, dst) = match ranges((src, src_offset), (dst, dst_offset), size) {
            Ok(ranges) => ranges,
            Err(error) => return self.refuse(error),
        };
        let turns = Turns::default();
        loop {
            let mut in_the_way = None;
            let transfer = self.start(&src, &dst, options, Some((&turns, &mut in_the_way)));
            match in_the_way {
                None => return transfer,
                Some(obstacle) => obstacle.await,
            }
        }
    }

    /// Prepares every method that `options` allow for transfers from `src` to `dst`: creates contexts and queues, loads
    /// kernels, enables and verifies peers, starts threads. The first call blocks for up to some hundred milliseconds.
    /// Optional: without it the first transfer does this.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`](transload_core::ErrorKind::UnknownDevice);
    /// [`ErrorKind::DeviceLost`](transload_core::ErrorKind::DeviceLost) with the first cause, if a device was lost earlier; the
    /// backend's. A method that turns out not to apply is no error: it is not used from then on.
    pub fn prepare(&self, src: Place, dst: Place, options: &TransferOptions) -> Result<()> {
        let path = TransferPath::new(src, dst);
        let mut cache = self.registry.route_cache();
        let routes = cache.routes(&self.registry, path)?;
        if !transload_core::mutant!("transfer/prepare-of-lost-device") {
            self.context.lost.check([src.device, dst.device, src.device])?;
        }
        for candidate in routes.candidates.iter().filter(|candidate| options.allows(candidate.method())) {
            if self.registry.prepare(path, candidate).is_err() {
                continue;
            }
            let method = &candidate.method;
            method.start()?;
            let staged =
                [TransferMethod::HostStaged, TransferMethod::UnifiedMemory].contains(&candidate.method());
            let lease = if staged { Backend::lease_reserved_queue } else { Backend::lease_queue };
            let usual = if method.is_in_place() { WorkloadType::Compute } else { WorkloadType::Memory };
            let (priority, workload) = (options.priority, options.workload.unwrap_or(usual));
            let route = &candidate.route;
            if route.stages_in_place && priority == StreamPriority::High {
                // Without the kernel, the copy engine copies.
                let _not_taken = route.backend.prepare_in_place(route.lane);
            }
            drop(lease(&*route.backend, route.lane, priority, workload)?);
            if let Some((backend, device)) = &route.second {
                drop(lease(&**backend, *device, priority, workload)?);
            }
        }
        Ok(())
    }
}
