//! The manager for asynchronous tasks: what would block a thread is awaited, under any executor.

use transload_core::{
    Backend, Place, RawBuffer, Result, StreamPriority, Transfer, TransferMethod, TransferPath,
    TransferReport, Turns, WorkloadType,
};

use crate::{CrossBackendTransferManager, TransferOptions, planning::request::ranges};

impl CrossBackendTransferManager {
    /// As [`transfer_with`](Self::transfer_with) for a task, from submission to the last byte: no thread is blocked by
    /// work in flight, whoever's it is. Thousands may be awaited at once.
    ///
    /// The transfer is submitted when the future is first polled, or as soon as afterwards nothing is in its way that its
    /// queue cannot wait for by itself. Two futures that are polled side by side are in no order: where one transfer must come
    /// after another, await [`submit_async`](Self::submit_async) of the first before the second. Dropped before
    /// its submission nothing has happened and nothing is held; dropped later the transfer goes on, and its memory stays
    /// owned until it is done.
    ///
    /// # What still takes the thread's time
    /// * First use of a device or a path: contexts, kernels, the verification of peers, from milliseconds to some hundred.
    ///   [`prepare`](Self::prepare) does that beforehand, on a thread that may block.
    /// * A copy of at most 2 MiB from host to host, which `backend-cpu` does at once where it is idle.
    /// * A direct copy from or to pageable memory of the host, which CUDA's driver may do during the call, behind what its
    ///   queue has to do; it is chosen for small transfers only. Pinned memory, or [`TransferOptions`] without
    ///   DirectCopy, avoids it.
    /// * A driver's queue without room: CUDA's takes about a thousand operations for each stream.
    ///
    /// # Errors
    /// As for [`transfer_buffer`](Self::transfer_buffer).
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

    /// The first half of [`transfer_async`](Self::transfer_async): ready once the transfer is submitted, or refused.
    /// Transfers that are submitted one after another take effect in that order where they touch common bytes.
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

    /// Does now what the first transfer from `src` to `dst` would have to do first: it makes contexts and queues, loads
    /// kernels, enables and verifies peers, starts threads, for every method that `options` allow. Blocks meanwhile, up to
    /// some hundred milliseconds; once done it is quick. Nobody needs to call it, but who must not be blocked later.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`](transload_core::ErrorKind::UnknownDevice);
    /// [`ErrorKind::DeviceLost`](transload_core::ErrorKind::DeviceLost) with the first cause, if a device was lost earlier; the
    /// backend's. A method that turns out not to apply is no error: it is left out from now on, as it is where a transfer finds
    /// out.
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
                // Without the kernel the copy engine does it.
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
