//! The queues of a transfer between the host and a device.

use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;
use transload_core::QueueLease;

use super::wait_mode::{WaitMode, has_room, room};

/// At least one queue. With more, copies go to them in turn, and none waits for one before: each is of other bytes.
#[derive(Debug)]
pub(crate) struct Queues {
    first: QueueLease,
    others: SmallVec<[QueueLease; 1]>,
    /// Number of copies so far.
    copies: AtomicUsize,
}

impl Queues {
    pub(crate) fn new(first: QueueLease, others: SmallVec<[QueueLease; 1]>) -> Self {
        Self { first, others, copies: AtomicUsize::new(0) }
    }

    /// Returns the queue of the next copy.
    pub(super) fn next(&self) -> &QueueLease {
        if self.others.is_empty() {
            return &self.first;
        }
        match self.copies.fetch_add(1, Ordering::Relaxed) % (1 + self.others.len()) {
            0 => &self.first,
            other => self.others.get(other - 1).unwrap_or(&self.first),
        }
    }

    /// Returns whether all have room for another copy.
    pub(super) fn have_room(&self) -> bool {
        has_room(&*self.first) && self.others.iter().all(|queue| has_room(&**queue))
    }

    /// Waits until each has.
    pub(super) async fn room(&self, waits: WaitMode<'_>) {
        room(&*self.first, waits).await;
        for queue in &self.others {
            room(&**queue, waits).await;
        }
    }
}

impl From<QueueLease> for Queues {
    fn from(queue: QueueLease) -> Self {
        Self::new(queue, SmallVec::new())
    }
}

#[cfg(test)]
mod tests {
    use transload_backend_cpu::CpuBackend;
    use transload_core::{Backend, DeviceId, QueueLease, StreamPriority, WorkloadType};

    use super::Queues;

    #[test]
    fn copies_go_to_the_queues_in_turn() {
        let backend = CpuBackend::new().unwrap();
        let lease =
            || backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
        let id = |queue: &QueueLease| queue.timeline().id();
        let (first, second) = (lease(), lease());
        let ids = [id(&first), id(&second)];
        assert_ne!(ids[0], ids[1]);
        let queues = Queues::new(first, [second].into_iter().collect());
        let used: Vec<_> = (0..4).map(|_| id(queues.next())).collect();
        assert_eq!(used, [ids[0], ids[1], ids[0], ids[1]]);
    }
}
