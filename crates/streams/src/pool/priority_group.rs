//! The streams of one priority: leases, growth and shrinking.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use transload_core::{Queue, Result, StreamPriority, WorkloadType, events::report};
use transload_memory::CudaDevice;

use super::{
    shard::StreamShard,
    slots::{StreamSlots, TURN, ThreadCache, bit},
    strategy::WORKLOADS,
};
use crate::CudaStream;

/// Average nanoseconds per operation of each workload; 1 if none was recorded.
pub(crate) type Weights = [AtomicU64; WORKLOADS.len()];

/// Leases for which a thread that enqueues small copies stays with a busy stream before it searches for a less loaded
/// one. Searching after each batch of 16 made submitting 100 ns slower per copy (H200).
const BUSY_RUN_LEASES: u8 = 127;
/// Leases for which a thread stays with its stream after it found all streams leased.
const SHARED_LEASES: u32 = 1024;

// Rarely written; on cache lines of its own.
#[repr(align(128))]
pub(crate) struct PriorityGroup {
    pub(crate) places: StreamSlots,
    /// Slots that each workload may use.
    allowed: [AtomicU64; WORKLOADS.len()],
    priority: StreamPriority,
    /// Minimum number of streams.
    least: usize,
    quiet: Duration,
    /// Whether new streams wait for host work on the device.
    device_waits: bool,
    /// When the group last grew or shrank by itself.
    changed: Mutex<Instant>,
}

/// How a group chooses.
#[derive(Clone, Copy)]
pub(crate) enum Choice<'a> {
    RoundRobin,
    LeastLoaded(&'a Weights),
}

/// A leased stream and its slot.
type Found = (usize, Arc<StreamShard>);

/// Sort key: whether it failed (leased last, for its error), leases, then time of outstanding work.
type Load = (bool, usize, u64);

const IDLE: Load = (false, 0, 0);

impl PriorityGroup {
    pub(crate) fn new(
        priority: StreamPriority,
        least: usize,
        most: usize,
        (quiet, device_waits): (Duration, bool),
    ) -> Self {
        Self {
            places: StreamSlots::new(most),
            allowed: Default::default(),
            priority,
            least,
            quiet,
            device_waits,
            changed: Mutex::new(Instant::now()),
        }
    }

    pub(crate) fn allow(&self, places: [u64; WORKLOADS.len()]) {
        for (allowed, places) in self.allowed.iter().zip(places) {
            allowed.store(places, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn allowed(&self, workload: WorkloadType) -> u64 {
        self.allowed[workload as usize].load(Ordering::Relaxed)
    }

    /// Leases an idle stream, else a new one, else a busy one.
    #[inline]
    pub(crate) fn lease(
        &self,
        device: &CudaDevice,
        workload: WorkloadType,
        choice: Choice<'_>,
    ) -> Result<Arc<StreamShard>> {
        let (held, is_shrink_due) = self.lease_idle(workload, choice);
        let Some(held) = held else {
            return self.lease_slow(device, workload, choice);
        };
        if is_shrink_due {
            self.shrink_if_quiet();
        }
        Ok(held)
    }

    /// Leases an idle stream, or a busy one if the group may have no more. Neither creates nor destroys one.
    #[inline]
    pub(crate) fn lease_existing(
        &self,
        workload: WorkloadType,
        choice: Choice<'_>,
    ) -> Option<Arc<StreamShard>> {
        let (held, is_shrink_due) = self.lease_idle(workload, choice);
        if is_shrink_due && transload_core::mutant!("streams/task-retires-no-stream") {
            self.shrink_if_quiet();
        }
        held.or_else(|| self.lease_least_loaded(workload, choice).ok())
    }

    /// Leases an idle stream, and returns whether to check for streams to retire.
    #[inline(always)]
    fn lease_idle(&self, workload: WorkloadType, choice: Choice<'_>) -> (Option<Arc<StreamShard>>, bool) {
        let allowed = self.allowed(workload);
        let (held, is_shrink_due) = self.places.with(|cache| {
            let there = cache.snapshot.filled & allowed;
            let held = match choice {
                Choice::RoundRobin => round_robin(cache, there, there == allowed),
                Choice::LeastLoaded(_) => idle(cache, workload, there, there == allowed),
            };
            (held, cache.is_shrink_due())
        });
        if let Some(held) = &held {
            held.set_note(workload as u64);
        }
        (held, is_shrink_due)
    }

    /// Leases the least loaded stream, or returns it if it is busy and another may be created.
    #[cold]
    fn lease_least_loaded(
        &self,
        workload: WorkloadType,
        choice: Choice<'_>,
    ) -> Result<Arc<StreamShard>, Option<Found>> {
        let ones = Default::default();
        let (from, weights) = match choice {
            Choice::LeastLoaded(weights) => (workload, weights),
            Choice::RoundRobin => (TURN, &ones),
        };
        loop {
            let allowed = self.allowed(workload);
            let (found, is_full) = self.places.with(|cache| {
                let there = cache.snapshot.filled & allowed;
                (least_loaded(cache, from, there, weights), there == allowed)
            });
            match found {
                Some((index, held, load)) if is_full || load == IDLE => {
                    return Ok(self.leased(workload, choice, (index, held)));
                }
                // All streams are being retired.
                None if is_full => thread::yield_now(),
                found => return Err(found.map(|(index, held, _)| (index, held))),
            }
        }
    }

    /// Notes a lease that was not one of an idle stream.
    fn leased(&self, workload: WorkloadType, choice: Choice<'_>, (index, held): Found) -> Arc<StreamShard> {
        held.set_note(workload as u64);
        self.places.with(|cache| match choice {
            Choice::LeastLoaded(_) => {
                let stays = if held.own.outstanding() > 0 { BUSY_RUN_LEASES } else { 0 };
                stay(cache, workload, index, &held, stays);
            }
            Choice::RoundRobin => cache.stay(TURN, index),
        });
        held
    }

    #[cold]
    fn lease_slow(
        &self,
        device: &CudaDevice,
        workload: WorkloadType,
        choice: Choice<'_>,
    ) -> Result<Arc<StreamShard>> {
        // A stream created concurrently with others may find no free slot and is dropped.
        let mut made = None;
        loop {
            let shared = match self.lease_least_loaded(workload, choice) {
                Ok(held) => return Ok(held),
                Err(shared) => shared,
            };
            let stream = match made.take() {
                Some(stream) => stream,
                None => match CudaStream::new_with_priority(device, self.priority) {
                    Ok(stream) => {
                        stream.set_device_waits(self.device_waits);
                        stream
                    }
                    // A busy or failed stream is better than none.
                    Err(error) => {
                        report::call_failed("a stream is shared", device.id(), &error);
                        return Ok(self.leased(workload, choice, shared.ok_or(error)?));
                    }
                },
            };
            drop(shared);
            match self.places.put(self.allowed(workload), stream) {
                Ok(found) => {
                    *self.changed.lock() = Instant::now();
                    return Ok(self.leased(workload, choice, found));
                }
                Err(stream) => made = Some(stream),
            }
        }
    }

    #[cold]
    fn shrink_if_quiet(&self) {
        let Some(mut changed) = self.changed.try_lock() else { return };
        if changed.elapsed() < self.quiet {
            return;
        }
        *changed = Instant::now();
        drop(changed);
        // Without querying the driver: a lease must stay cheap.
        self.retire(1, |stream| stream.outstanding() == 0);
    }

    /// Retires idle streams above the minimum; returns how many.
    pub(crate) fn trim(&self) -> usize {
        self.retire(usize::MAX, |stream| {
            // A failed stream does no work any more.
            stream.outstanding() == 0 || stream.timeline().poll(stream.own.last_point()).unwrap_or(true)
        })
    }

    fn retire(&self, most: usize, is_complete: impl Fn(&CudaStream) -> bool) -> usize {
        let mut retired = 0;
        let useful = WORKLOADS.into_iter().fold(0, |all, workload| all | self.allowed(workload));
        // Streams unused by the strategy first, and later slots before earlier ones.
        for unused in [true, false] {
            let spare = |filled: u64| unused || (filled & useful).count_ones() as usize > self.least;
            for index in (0..self.places.len()).rev() {
                let skip =
                    retired >= most || (useful & bit(index) == 0) != unused || !spare(self.places.filled());
                if skip {
                    continue;
                }
                // Query the driver without the lock.
                let over = self.places.look(index).is_some_and(|(stream, leases)| {
                    let is_free = leases == 0 || transload_core::mutant!("streams/leased-streams-stay");
                    is_free && is_complete(&stream)
                });
                // Destroys the driver's stream, without the lock.
                if over && self.places.take(index, spare).is_some() {
                    retired += 1;
                }
            }
        }
        retired
    }

    /// Calls `look` for each stream with its slot and leases, without a lock; the stream may be retired meanwhile.
    pub(crate) fn look(&self, mut look: impl FnMut(usize, &CudaStream, usize)) {
        for index in 0..self.places.len() {
            if let Some((stream, leases)) = self.places.look(index) {
                look(index, &stream, leases);
            }
        }
    }

    /// Returns the number of streams.
    pub(crate) fn streams(&self) -> usize {
        self.places.filled().count_ones() as usize
    }

    /// Returns whether the workload may get another stream.
    pub(crate) fn room(&self, workload: WorkloadType) -> bool {
        self.allowed(workload) & !self.places.filled() != 0
    }
}

/// Iterates over the bits of `there`, starting at `first`, cyclically.
#[inline]
fn rotate_from(there: u64, first: usize) -> impl Iterator<Item = usize> {
    let first = (first % 64) as u32;
    let mut rest = there.rotate_right(first);
    std::iter::from_fn(move || {
        let index = (rest != 0).then(|| (rest.trailing_zeros() + first) % 64)?;
        rest &= rest - 1;
        Some(index as usize)
    })
}

/// Returns the next stream; if another may be created, only if it is idle.
#[inline]
fn round_robin(cache: &mut ThreadCache, there: u64, is_full: bool) -> Option<Arc<StreamShard>> {
    let index = cache.next(there)?;
    let (held, others) = cache.snapshot.shards(index)?.lease(cache.shard_index)?;
    let usable = if is_full { held.own.check().is_ok() } else { others == 0 && is_unused(&held) };
    usable.then_some(held)
}

/// Returns the thread's last stream if it is idle or has the thread's open batch, else the next idle one. Checking
/// all streams costs more than enqueueing a small copy, as does switching hardware queues.
///
/// With more threads than streams, nearly all are leased at every check, and checking costs more than sharing: the
/// thread then stays with its own for a while, as long as it has no work outstanding.
#[inline]
fn idle(
    cache: &mut ThreadCache,
    workload: WorkloadType,
    there: u64,
    is_full: bool,
) -> Option<Arc<StreamShard>> {
    let first = cache.first(workload, there)?;
    if cache.keeps > 0 && is_full {
        cache.keeps -= 1;
        let own =
            cache.snapshot.shards(first)?.lease_if_unleased(cache.shard_index).filter(|held| is_unused(held));
        if own.is_some() {
            return own;
        }
    }
    // Dropped before the search, which would count it as another lease.
    if let Some((held, 0)) = cache.snapshot.shards(first)?.lease(cache.shard_index)
        && (is_unused(&held) || may_continue(&held, &mut cache.stays[workload as usize]))
        && !held.own.events.points.is_shared()
    {
        return Some(held);
    }
    find_idle(cache, workload, (there, first), is_full)
}

#[inline(never)]
fn find_idle(
    cache: &mut ThreadCache,
    workload: WorkloadType,
    (there, first): (u64, usize),
    is_full: bool,
) -> Option<Arc<StreamShard>> {
    for index in rotate_from(there, first) {
        let Some(shards) = cache.snapshot.shards(index) else { continue };
        // A first look, which costs less than a lease.
        if shards.leases() > 0 {
            continue;
        }
        let Some((held, others)) = shards.lease(cache.shard_index) else { continue };
        if others == 0 && is_unused(&held) {
            stay(cache, workload, index, &held, 0);
            return Some(held);
        }
    }
    // Leased by other threads only, and without work.
    if is_full
        && cache
            .snapshot
            .shards(first)?
            .lease_if_unleased(cache.shard_index)
            .is_some_and(|held| is_unused(&held))
    {
        cache.keeps = SHARED_LEASES;
    }
    None
}

/// Work on a raw handle is not counted, so shared streams are used round-robin.
#[inline]
fn stay(cache: &mut ThreadCache, workload: WorkloadType, index: usize, stream: &CudaStream, stays: u8) {
    let is_shared = stream.own.events.points.is_shared();
    cache.stay(workload, index + usize::from(is_shared));
    // The next one was not checked for load.
    cache.stays[workload as usize] = if is_shared { 0 } else { stays };
}

/// Returns the least loaded stream; of equal ones the first checked.
fn least_loaded(
    cache: &mut ThreadCache,
    from: WorkloadType,
    there: u64,
    weights: &Weights,
) -> Option<(usize, Arc<StreamShard>, Load)> {
    let mut best: Option<(usize, Arc<StreamShard>, Load)> = None;
    for index in rotate_from(there, cache.first(from, there)?) {
        let Some(shards) = cache.snapshot.shards(index) else { continue };
        // A first look, which costs less than a lease.
        let leases = shards.leases();
        if best.as_ref().is_some_and(|(.., (broken, least, _))| !broken && leases > *least) {
            continue;
        }
        let Some((held, others)) = shards.lease(cache.shard_index) else { continue };
        let load = load(&held, others, weights);
        if best.as_ref().is_none_or(|(.., least)| load < *least) {
            best = Some((index, held, load));
        }
        if load == IDLE {
            break;
        }
    }
    best
}

/// Returns whether it is intact and idle, without querying the driver.
#[inline]
fn is_unused(stream: &StreamShard) -> bool {
    stream.own.outstanding() == 0 && stream.own.check().is_ok()
}

/// Returns whether the next small operation joins the open batch, or only small ones were enqueued since the stream
/// was chosen as least loaded.
#[inline]
fn may_continue(stream: &StreamShard, stays: &mut u8) -> bool {
    let points = &stream.own.events.points;
    let stayed = *stays > 0 && points.last_was_small();
    *stays = if stayed { *stays - 1 } else { 0 };
    (stayed || points.only_a_batch_is_outstanding())
        && !transload_core::mutant!("streams/lease-continues-run")
        && stream.own.check().is_ok()
}

fn load(stream: &StreamShard, others: usize, weights: &Weights) -> Load {
    let outstanding = stream.own.outstanding();
    let weight = || {
        let workload = usize::try_from(stream.note()).ok();
        let weight = workload.and_then(|workload| weights.get(workload));
        weight.map_or(1, |weight| weight.load(Ordering::Relaxed).max(1))
    };
    let time = if outstanding == 0 { 0 } else { outstanding.saturating_mul(weight()) };
    (stream.own.check().is_err(), others, time)
}
