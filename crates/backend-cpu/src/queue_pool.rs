//! A backend's queues, in per-thread shards, so that concurrent threads write no common cache line.

use std::sync::Arc;

use transload_core::{Queue, Result, SinkSlot, SpinLock, StreamPriority};
use transload_executor::{Executor, SHARDS, thread_shard};

use crate::{op_queue::Thresholds, queue::CpuQueue};

/// Most queues of one priority per shard. More than one, since a queue may wait for another backend's work.
const MOST: usize = 4;

/// The queues of one shard, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct QueueShard(SpinLock<Vec<Arc<CpuQueue>>>);

pub(crate) struct QueuePool {
    shards: Box<[QueueShard]>,
    executor: Executor,
    thresholds: Thresholds,
    /// The place for a profiler's sink.
    pub(crate) sink: Arc<SinkSlot>,
}

impl QueuePool {
    pub(crate) fn new(executor: Executor, thresholds: Thresholds) -> Self {
        let shards = (0..SHARDS).map(|_| QueueShard::default()).collect();
        Self { shards, executor, thresholds, sink: Arc::default() }
    }

    /// Leases the least busy queue of the priority in the calling thread's shard. The handle is the lease.
    pub(crate) fn lease(&self, priority: StreamPriority) -> Arc<CpuQueue> {
        let Some(QueueShard(queues)) = self.shards.get(thread_shard()) else {
            return Arc::new(self.make(priority));
        };
        let mut queues = queues.lock();
        // Leases usually end once work is enqueued, so incomplete operations count as load too.
        let (mut count, mut least): (_, Option<(u64, &Arc<CpuQueue>)>) = (0, None);
        for queue in queues.iter().filter(|queue| queue.priority() == priority) {
            let load = leases(queue) + queue.ops().outstanding();
            if load == 0 {
                return Arc::clone(queue);
            }
            count += 1;
            if least.is_none_or(|(least, _)| load < least) {
                least = Some((load, queue));
            }
        }
        match least {
            Some((_, queue)) if count >= MOST => Arc::clone(queue),
            _ => {
                let queue = Arc::new(self.make(priority));
                queues.push(Arc::clone(&queue));
                queue
            }
        }
    }

    fn make(&self, priority: StreamPriority) -> CpuQueue {
        CpuQueue::new(priority, self.executor.clone(), self.thresholds, Arc::clone(&self.sink))
    }

    pub(crate) fn leases(&self) -> u64 {
        let leases = |shard: &QueueShard| shard.0.lock().iter().map(leases).sum::<u64>();
        self.shards.iter().map(leases).sum()
    }

    /// Blocks until everything that was enqueued before is complete.
    ///
    /// # Errors
    /// The first queue's first failure since the last call.
    pub(crate) fn drain(&self) -> Result<()> {
        let mut outcome = Ok(());
        for shard in &self.shards {
            // Not handles of `CpuQueue`: they would count as leases.
            let queues: Vec<_> = shard.0.lock().iter().map(|queue| Arc::clone(queue.ops())).collect();
            for ops in queues {
                outcome = outcome.and(ops.drain());
            }
        }
        outcome
    }
}

/// Returns the number of leases: all handles but the pool's own.
fn leases(queue: &Arc<CpuQueue>) -> u64 {
    Arc::strong_count(queue).saturating_sub(1) as u64
}
