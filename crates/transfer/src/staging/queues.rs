//! The queues of a transfer between the host and a device.

use smallvec::SmallVec;
use transload_core::QueueLease;

/// At least one queue. With more, copies go to them in turn, and none waits for one before: each is of other bytes.
#[derive(Debug)]
pub(crate) struct Queues {
    first: QueueLease,
    others: SmallVec<[QueueLease; 1]>,
}

impl Queues {
    pub(crate) fn new(first: QueueLease, others: SmallVec<[QueueLease; 1]>) -> Self {
        Self { first, others }
    }

    /// Returns the queue of the copy with this number.
    pub(super) fn of(&self, copy: usize) -> &QueueLease {
        match copy % (1 + self.others.len()) {
            0 => &self.first,
            other => self.others.get(other - 1).unwrap_or(&self.first),
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
        let used: Vec<_> = (0..4).map(|copy| id(queues.of(copy))).collect();
        assert_eq!(used, [ids[0], ids[1], ids[0], ids[1]]);
    }
}
