//! Promises about memory that more than one driver has to do with: who made it, and a second handle of it.

use std::{any::Any, ptr, ptr::NonNull, sync::Arc, thread};

use super::{
    CheckResult, Failure, Verdict,
    context::{self, TestContext, joined, refused, submit_and_wait},
    gate::Gate,
};
use crate::{
    DeviceId, ErrorKind, MemoryKind, Operation, Place, QueueLease, RawBuffer, Reclaimer, Storage, Timing,
    submit,
};

/// A device of no backend, whose driver made memory.
const OTHER: DeviceId = DeviceId::Other("elsewhere", 0);

/// Memory of the host by another driver: what that pinned, or its handle of a buffer's memory.
struct OtherStorage {
    address: NonNull<u8>,
    len: usize,
    kind: MemoryKind,
    is_owner: bool,
}

impl OtherStorage {
    fn pinned(content: &[u8]) -> Self {
        let bytes: Box<[u8]> = content.into();
        let len = bytes.len();
        // Never null.
        let address = NonNull::new(Box::into_raw(bytes).cast()).unwrap_or(NonNull::dangling());
        Self { address, len, kind: MemoryKind::Pinned, is_owner: true }
    }
}

// SAFETY: an address, whose bytes are used in the order of a hazard table.
unsafe impl Send for OtherStorage {}
// SAFETY: as above.
unsafe impl Sync for OtherStorage {}

// SAFETY: the bytes are initialised; they live until the drop, or as long as the buffer that the alias keeps.
unsafe impl Storage for OtherStorage {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, self.kind)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        Some(self.address)
    }

    fn maker(&self) -> Option<DeviceId> {
        self.is_owner.then_some(OTHER)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for OtherStorage {
    fn drop(&mut self) {
        if self.is_owner {
            // SAFETY: it is the box that `pinned` took apart, and dropped once.
            drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(self.address.as_ptr(), self.len)) });
        }
    }
}

/// Returns the host's handle of a buffer of memory that it can address.
fn alias_of(original: &RawBuffer, reclaimer: &Arc<Reclaimer>) -> Result<RawBuffer, Failure> {
    let Some(address) = original.host_address() else { fail!("no address of {}", original.place()) };
    let (len, kind) = (original.len(), MemoryKind::Pageable);
    let storage = OtherStorage { address, len, kind, is_owner: false };
    Ok(RawBuffer::new_alias(Box::new(storage), reclaimer, original)?)
}

fn is_pinned(place: Place) -> bool {
    place.device.is_cpu() && matches!(place.kind, MemoryKind::Pinned | MemoryKind::Mapped)
}

pub(super) fn makers(context: &TestContext<'_>) -> CheckResult {
    let here = context.subject.device;
    let mut any = false;
    for memory in context.memories.iter().copied() {
        let buffer = context.allocate(memory, 4096)?;
        let (maker, place) = (buffer.maker(), memory.place);
        ensure_eq!(buffer.slice(100..200)?.maker(), maker, "the maker of a part of {place} memory");
        if is_pinned(place) {
            any = true;
            ensure!(maker.is_none_or(|maker| maker == here), "{here} allocated {place}, made by {maker:?}");
            ensure!(here.is_cpu() || buffer.is_known_to(here), "{here} does not know {place} that it made");
        } else {
            ensure_eq!(maker, None, "the maker of {place} memory");
        }
    }
    // A place does not tell who pinned memory.
    let (queue, reclaimer, pinned) =
        (context.queue()?, Arc::new(Reclaimer::new()), Place::new(DeviceId::Cpu, MemoryKind::Pinned));
    let mut rng = context.rng("makers");
    for there in context.memories.iter().copied() {
        if !queue.can_copy(pinned, there.place) || !queue.can_copy(there.place, pinned) {
            continue;
        }
        any = true;
        for bytes in [1, 4097, context.size(3_000_001)] {
            let content = rng.bytes(bytes);
            let foreign =
                |content: &[u8]| RawBuffer::new(Box::new(OtherStorage::pinned(content)), &reclaimer);
            let (src, dst) = (foreign(&content), foreign(&vec![1; bytes]));
            let middle = context.buffer_of(there, &vec![2; bytes])?;
            let up = submit_and_wait(&queue, &Operation::Copy { src: &src, dst: &middle })?;
            let down = submit_and_wait(&queue, &Operation::Copy { src: &middle, dst: &dst })?;
            let what = format!("{bytes} bytes of memory that another driver pinned, by {}", there.place);
            match (up, down) {
                (Some(_), Some(_)) => context.expect(&dst, &content, &what)?,
                (Some(_), None) => context.expect(&middle, &content, &what)?,
                _ => {}
            }
        }
    }
    Ok(Verdict::passed_if(any, "the device neither makes nor copies pinned memory"))
}

pub(super) fn aliases(context: &TestContext<'_>) -> CheckResult {
    let pageable = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    let mut rng = context.rng("aliases");
    let mut any = false;
    for (host, there) in context.round_trips() {
        let queues = context.queues()?;
        if !queues
            .iter()
            .all(|queue| queue.can_copy(pageable, there.place) && queue.can_copy(there.place, pageable))
        {
            continue;
        }
        any = true;
        let (bytes, reclaimer) = (context.size(5000), Arc::new(Reclaimer::new()));
        let (content, late) = (rng.bytes(bytes), rng.bytes(bytes));
        let [source, later] = [context.buffer_of(host, &content)?, context.buffer_of(there, &late)?];
        let original = context.buffer_of(host, &vec![1; bytes])?;
        let alias = alias_of(&original, &reclaimer)?;
        ensure!(
            alias.id() == original.id() && alias.overlaps(&original),
            "an alias of {} has other bytes than the original",
            host.place
        );
        let middle = context.buffer_of(there, &vec![2; bytes])?;
        let back = context.buffer_of(host, &vec![3; bytes])?;
        let gate = Gate::closed(context.subject.wake_timeout);
        // Written by the one handle, read by the other one, written by the first again.
        submit(&gate, &Operation::Copy { src: &source, dst: &original }, Timing::Off)?;
        let outcome = thread::scope(|scope| {
            let worker = scope.spawn(|| -> Result<(), Failure> {
                copy(&queues[0], &alias, &middle)?;
                copy(&queues[1], &middle, &back)?;
                copy(&queues[2], &later, &original)
            });
            context::watch_briefly(|| false);
            let is_early = alias.try_read().is_ok();
            gate.open();
            let outcome = joined(worker);
            ensure!(!is_early, "bytes that are being written can be viewed by an alias");
            outcome
        });
        outcome?;
        let what = format!("{} memory and its alias", host.place);
        context.expect(&back, &content, &what)?;
        context.expect(&alias, &late, &what)?;
        let within = Operation::Copy { src: &original, dst: &alias };
        refused(submit(&*queues[0], &within, Timing::Off), ErrorKind::Overlap, "a copy to its own alias")?;
        // The alias keeps the memory.
        drop(original);
        copy(&queues[3 % queues.len()], &middle, &alias)?;
        context.expect(&alias, &content, &format!("an alias of dropped {} memory", host.place))?;
    }
    Ok(Verdict::passed_if(any, "no memory is copied both to and from pageable memory"))
}

fn copy(queue: &QueueLease, src: &RawBuffer, dst: &RawBuffer) -> Result<(), Failure> {
    submit(&**queue, &Operation::Copy { src, dst }, Timing::Off)?;
    Ok(())
}
