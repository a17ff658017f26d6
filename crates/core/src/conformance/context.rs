//! The context of a check: memory to test with, and ways to write and read its content.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{Failure, Subject, rng::TestRng};
use crate::{
    Backend, DeviceId, DeviceInfo, ErrorKind, Fence, MemoryKind, Operation, Place, QueueLease, RawBuffer,
    Result as CoreResult, StreamPriority, Timing, WorkloadType, submit,
};

/// Memory that can be allocated.
#[derive(Clone, Copy, Debug)]
pub(super) struct TestMemory {
    /// Place of the memory.
    pub(super) place: Place,
    /// Whether the host's backend allocates it instead of the one under test.
    is_of_host: bool,
}

pub(super) struct TestContext<'a> {
    pub(super) subject: &'a Subject,
    /// All memory, without duplicates.
    pub(super) memories: Vec<TestMemory>,
}

/// Returns the subject's entry in the backend's list.
pub(super) fn info(subject: &Subject) -> Result<DeviceInfo, Failure> {
    match subject.backend.devices().into_iter().find(|info| info.id == subject.device) {
        Some(info) => Ok(info),
        None => fail!("the backend does not list {}", subject.device),
    }
}

impl<'a> TestContext<'a> {
    pub(super) fn new(subject: &'a Subject) -> Result<Self, Failure> {
        let mut memories: Vec<TestMemory> = Vec::new();
        for kind in info(subject)?.kinds {
            // A check of its own tests that each kind can be allocated.
            if let Ok(one) = subject.backend.allocate(subject.device, kind, 1) {
                memories.push(TestMemory { place: one.place(), is_of_host: false });
            }
        }
        let pageable = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
        if memories.iter().all(|memory| memory.place != pageable) {
            subject.host.allocate(DeviceId::Cpu, MemoryKind::Pageable, 1)?;
            memories.push(TestMemory { place: pageable, is_of_host: true });
        }
        Ok(Self { subject, memories })
    }

    pub(super) fn backend(&self) -> &dyn Backend {
        &*self.subject.backend
    }

    pub(super) fn rng(&self, stream: &str) -> TestRng {
        TestRng::new(self.subject.seed, stream)
    }

    /// Returns at most `wanted` bytes, so that a few such buffers fit the budget.
    pub(super) fn size(&self, wanted: usize) -> usize {
        wanted.min(self.subject.budget_bytes.max(2 << 20) / 8)
    }

    /// Returns the memory that the host can address.
    pub(super) fn host_memories(&self) -> impl Iterator<Item = TestMemory> {
        self.memories.iter().copied().filter(|memory| memory.place.device.is_cpu())
    }

    /// Returns the paths that the device's queues copy.
    pub(super) fn paths(&self) -> Vec<(TestMemory, TestMemory)> {
        let mut paths = Vec::new();
        for src in &self.memories {
            for dst in &self.memories {
                if self.backend().copier(src.place, dst.place) == Some(self.subject.device) {
                    paths.push((*src, *dst));
                }
            }
        }
        paths
    }

    /// Returns pairs of host memory and other memory between which the device's queues copy both ways.
    pub(super) fn round_trips(&self) -> Vec<(TestMemory, TestMemory)> {
        let copies = |src: TestMemory, dst: TestMemory| {
            self.backend().copier(src.place, dst.place) == Some(self.subject.device)
        };
        let mut trips = Vec::new();
        for host in self.host_memories() {
            for there in &self.memories {
                if copies(host, *there) && copies(*there, host) {
                    trips.push((host, *there));
                }
            }
        }
        trips
    }

    pub(super) fn allocate(&self, memory: TestMemory, bytes: usize) -> Result<RawBuffer, Failure> {
        let Subject { backend, host, device, .. } = self.subject;
        let (backend, device) = if memory.is_of_host { (host, DeviceId::Cpu) } else { (backend, *device) };
        match backend.allocate(device, memory.place.kind, bytes) {
            Ok(buffer) => Ok(buffer),
            Err(error) => fail!("{bytes} bytes of {} memory were refused: {error:?}", memory.place.kind),
        }
    }

    /// Allocates a buffer with this content.
    pub(super) fn buffer_of(&self, memory: TestMemory, content: &[u8]) -> Result<RawBuffer, Failure> {
        let buffer = self.allocate(memory, content.len())?;
        self.put(&buffer, content)?;
        Ok(buffer)
    }

    pub(super) fn queue(&self) -> Result<QueueLease, Failure> {
        Ok(self.subject.backend.lease_queue(
            self.subject.device,
            StreamPriority::Normal,
            WorkloadType::Memory,
        )?)
    }

    /// Leases several queues, as different as possible.
    pub(super) fn queues(&self) -> Result<Vec<QueueLease>, Failure> {
        let of = [StreamPriority::Normal, StreamPriority::High, StreamPriority::Normal, StreamPriority::Low];
        let Subject { backend, device, .. } = self.subject;
        let lease = |priority| backend.lease_queue(*device, priority, WorkloadType::Memory);
        let reserved =
            |_| backend.lease_reserved_queue(*device, StreamPriority::Normal, WorkloadType::Memory);
        let queues =
            of.into_iter().map(lease).chain((0..backend.staging_hints(*device).queues).map(reserved));
        Ok(queues.collect::<CoreResult<Vec<_>>>()?)
    }

    /// Returns a queue and host memory for copies to and from a place.
    fn staging(&self, beside: &RawBuffer) -> Result<(QueueLease, RawBuffer), Failure> {
        let queue = self.queue()?;
        let place = beside.place();
        let copies =
            |memory: &TestMemory| queue.can_copy(memory.place, place) && queue.can_copy(place, memory.place);
        match self.host_memories().find(copies) {
            Some(memory) => Ok((queue, self.allocate(memory, beside.len())?)),
            None => fail!("no queue of {} copies between host and {place}", self.subject.device),
        }
    }

    /// Writes the content of memory of any kind.
    pub(super) fn put(&self, buffer: &RawBuffer, content: &[u8]) -> Result<(), Failure> {
        ensure_eq!(buffer.len(), content.len(), "a buffer's length");
        if buffer.host_address().is_some() {
            buffer.write()?.copy_from_slice(content);
            return Ok(());
        }
        let (queue, staging) = self.staging(buffer)?;
        staging.write()?.copy_from_slice(content);
        submit(&*queue, &Operation::Copy { src: &staging, dst: buffer }, Timing::Off)?.wait()?;
        Ok(())
    }

    /// Reads the content of memory of any kind.
    pub(super) fn get(&self, buffer: &RawBuffer) -> Result<Vec<u8>, Failure> {
        if buffer.host_address().is_some() {
            return Ok(buffer.read()?.to_vec());
        }
        let (queue, staging) = self.staging(buffer)?;
        submit(&*queue, &Operation::Copy { src: buffer, dst: &staging }, Timing::Off)?.wait()?;
        Ok(staging.read()?.to_vec())
    }

    /// Checks that a buffer has this content.
    #[track_caller]
    pub(super) fn expect(&self, buffer: &RawBuffer, content: &[u8], what: &str) -> Result<(), Failure> {
        same(&self.get(buffer)?, content, what)
    }

    /// Polls until `happened`, or until the timeout; returns whether it happened.
    pub(super) fn wait_until(&self, mut happened: impl FnMut() -> bool) -> bool {
        let begun = Instant::now();
        while !happened() {
            if begun.elapsed() > self.subject.wake_timeout {
                return false;
            }
            thread::yield_now();
        }
        true
    }
}

/// Checks that bytes are as expected; the failure names the first difference.
#[track_caller]
pub(super) fn same(found: &[u8], expected: &[u8], what: &str) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    let differences = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    let first = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
    Err(Failure::new(format!(
        "{what}: {differences} of {} bytes differ (lengths {} and {}), first byte {first}: {:#04x} and not {:#04x}",
        expected.len(),
        found.len(),
        expected.len(),
        found.get(first).copied().unwrap_or_default(),
        expected.get(first).copied().unwrap_or_default(),
    )))
}

/// Checks that a call failed with this kind of error.
#[track_caller]
pub(super) fn refused<T>(answer: CoreResult<T>, kind: ErrorKind, what: &str) -> Result<(), Failure> {
    match answer {
        Err(error) if error.kind() == kind => Ok(()),
        Err(error) => Err(Failure::new(format!("{what} was refused with {error:?} and not as {kind:?}"))),
        Ok(_) => Err(Failure::new(format!("{what} was accepted; it must be refused as {kind:?}"))),
    }
}

/// Submits and waits; `None` if the queue returns `Unsupported`.
#[track_caller]
pub(super) fn submit_and_wait(
    queue: &QueueLease,
    operation: &Operation<'_>,
) -> Result<Option<Fence>, Failure> {
    match submit(&**queue, operation, Timing::Off) {
        Ok(fence) => {
            fence.wait()?;
            Ok(Some(fence))
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Joins a thread of a check and returns its result.
pub(super) fn joined(thread: thread::ScopedJoinHandle<'_, Result<(), Failure>>) -> Result<(), Failure> {
    thread.join().unwrap_or_else(|panic| Err(Failure::panicked(panic)))
}

/// Polls for 20 ms for something that must not happen; returns whether it happened. A correct backend passes
/// however slow the machine is; on a busy machine a fault may be missed.
pub(super) fn watch_briefly(mut has_happened: impl FnMut() -> bool) -> bool {
    const LONG: Duration = Duration::from_millis(20);
    let from = Instant::now();
    while from.elapsed() < LONG {
        if has_happened() {
            return true;
        }
        thread::yield_now();
    }
    has_happened()
}
