//! The streams of one priority: which one a lease gets, and when there is one more or one fewer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use transload_core::{Queue, Result, StreamPriority, WorkloadType};
use transload_memory::CudaDevice;

use super::{
    slots::{Inside, Slots, bit},
    strategy::WORKLOADS,
};
use crate::CudaStream;

/// One lease in so many looks whether the lane could do with fewer streams.
const LEASES_PER_LOOK: u64 = 1024;

/// Nanoseconds that an operation of each workload took on average; 1 where nothing was recorded.
pub(crate) type Weights = [AtomicU64; WORKLOADS.len()];

// Lanes are written by different threads: none on another's cache line.
#[repr(align(128))]
pub(crate) struct Lane {
    slots: Slots<CudaStream>,
    /// Which places each workload may use.
    allowed: [AtomicU64; WORKLOADS.len()],
    /// The workload that each place was leased for last.
    last: Box<[AtomicU8]>,
    priority: StreamPriority,
    /// Streams that are kept however quiet it is.
    least: usize,
    quiet: Duration,
    /// When the lane last grew or shrank by itself.
    changed: Mutex<Instant>,
}

/// How a lane chooses.
#[derive(Clone, Copy)]
pub(crate) enum Choice<'a> {
    InTurn,
    LeastLoaded(&'a Weights),
}

impl Lane {
    pub(crate) fn new(priority: StreamPriority, least: usize, most: usize, quiet: Duration) -> Self {
        Self {
            slots: Slots::new(most),
            allowed: Default::default(),
            last: (0..most).map(|_| AtomicU8::new(WorkloadType::Memory as u8)).collect(),
            priority,
            least,
            quiet,
            changed: Mutex::new(Instant::now()),
        }
    }

    pub(crate) fn allow(&self, places: [u64; WORKLOADS.len()]) {
        for (allowed, places) in self.allowed.iter().zip(places) {
            allowed.store(places, Ordering::Relaxed);
        }
    }

    pub(crate) fn allowed(&self, workload: WorkloadType) -> u64 {
        self.allowed[workload as usize].load(Ordering::Relaxed)
    }

    /// A stream for the workload: one that is free, else one more, else a busy one.
    #[inline]
    pub(crate) fn lease(
        &self,
        device: &CudaDevice,
        workload: WorkloadType,
        choice: Choice<'_>,
    ) -> Result<Arc<CudaStream>> {
        let inside = self.slots.enter();
        let allowed = self.allowed(workload);
        let there = inside.filled() & allowed;
        let chosen = match choice {
            Choice::InTurn => in_turn(&inside, there),
            Choice::LeastLoaded(weights) => self.least_loaded(&inside, there, weights),
        };
        if let Some(index) = chosen {
            let stream = inside.look(index, |stream| {
                let usable = stream.own.check().is_ok() && (there == allowed || !is_busy(stream));
                usable.then(|| Arc::clone(stream))
            });
            if let Some(Some(stream)) = stream {
                self.mark(index, workload);
                if inside.ticket() % LEASES_PER_LOOK == LEASES_PER_LOOK - 1 {
                    drop(inside);
                    self.shrink_where_quiet();
                }
                return Ok(stream);
            }
        }
        drop(inside);
        self.lease_where_none_is_free(device, workload, choice)
    }

    #[cold]
    fn lease_where_none_is_free(
        &self,
        device: &CudaDevice,
        workload: WorkloadType,
        choice: Choice<'_>,
    ) -> Result<Arc<CudaStream>> {
        let ones = Default::default();
        let weights = match choice {
            Choice::LeastLoaded(weights) => weights,
            Choice::InTurn => &ones,
        };
        // Whoever is last to find a full lane loses the stream that it made; whoever finds an emptied one puts it there.
        let mut made = None;
        loop {
            let shared = {
                let inside = self.slots.enter();
                let allowed = self.allowed(workload);
                let there = inside.filled() & allowed;
                let index = self.least_loaded(&inside, there, weights);
                let shared = index.and_then(|index| {
                    self.mark(index, workload);
                    inside.look(index, Arc::clone)
                });
                let is_full = there == allowed;
                match shared {
                    Some(shared) if is_full || (made.is_some() && !is_busy_besides(&shared)) => {
                        return Ok(shared);
                    }
                    shared => shared,
                }
            };
            let stream = match made.take() {
                Some(stream) => stream,
                None => match CudaStream::new_with_priority(device, self.priority) {
                    Ok(stream) => Arc::new(stream),
                    // A stream with work before ours, or a broken one for its error, is better than none.
                    Err(error) => return shared.ok_or(error),
                },
            };
            drop(shared);
            if let Some(index) = self.slots.put(self.allowed(workload), &stream) {
                self.mark(index, workload);
                *self.changed.lock() = Instant::now();
                return Ok(stream);
            }
            made = Some(stream);
        }
    }

    fn mark(&self, index: usize, workload: WorkloadType) {
        if let Some(last) = self.last.get(index) {
            last.store(workload as u8, Ordering::Relaxed);
        }
    }

    /// The place with the fewest leases and then the least time of work outstanding; of equal ones the next in turn. A broken
    /// stream has nothing outstanding; it is taken last, for its error.
    fn least_loaded(&self, inside: &Inside<'_, CudaStream>, there: u64, weights: &Weights) -> Option<usize> {
        let turn = in_turn(inside, there)? as u32;
        let mut rest = there.rotate_right(turn);
        let mut best: Option<((bool, usize, u64), usize)> = None;
        while rest != 0 {
            let index = ((rest.trailing_zeros() + turn) % 64) as usize;
            rest &= rest - 1;
            let load = inside.look(index, |stream| {
                let outstanding = stream.outstanding();
                let time = if outstanding == 0 {
                    0
                } else {
                    outstanding.saturating_mul(self.weight(index, weights))
                };
                (stream.own.check().is_err(), Arc::strong_count(stream) - 1, time)
            });
            let Some(load) = load else { continue };
            if load == (false, 0, 0) {
                return Some(index);
            }
            if best.is_none_or(|(least, _)| load < least) {
                best = Some((load, index));
            }
        }
        best.map(|(_, index)| index)
    }

    fn weight(&self, index: usize, weights: &Weights) -> u64 {
        let last = self.last.get(index).map_or(0, |last| last.load(Ordering::Relaxed));
        weights.get(usize::from(last)).map_or(1, |weight| weight.load(Ordering::Relaxed).max(1))
    }

    #[cold]
    fn shrink_where_quiet(&self) {
        let Some(mut changed) = self.changed.try_lock() else { return };
        if changed.elapsed() < self.quiet {
            return;
        }
        *changed = Instant::now();
        drop(changed);
        // Without asking the driver: a lease must stay cheap.
        self.retire(1, |stream| stream.outstanding() == 0);
    }

    /// Retires every idle stream above the least number; answers how many.
    pub(crate) fn trim(&self) -> usize {
        self.retire(usize::MAX, |stream| {
            let (outstanding, timeline) = (stream.outstanding(), stream.timeline());
            // An error means that the stream does nothing any more.
            outstanding == 0 || timeline.poll(timeline.reached().saturating_add(outstanding)).unwrap_or(true)
        })
    }

    fn retire(&self, most: usize, is_idle: impl Fn(&CudaStream) -> bool) -> usize {
        let mut retired = 0;
        let useful = WORKLOADS.into_iter().fold(0, |all, workload| all | self.allowed(workload));
        // Those that the strategy does not use any more go first; the later ones before the earlier.
        for unused in [true, false] {
            for index in (0..self.last.len()).rev() {
                let idle = {
                    let inside = self.slots.enter();
                    let needed = (inside.filled() & useful).count_ones() as usize <= self.least;
                    let skip = (useful & bit(index) == 0) != unused || (!unused && needed);
                    let idle = |stream: &Arc<CudaStream>| Arc::strong_count(stream) == 1 && is_idle(stream);
                    !skip && inside.look(index, idle) == Some(true)
                };
                // The driver's stream goes here, outside the lock.
                if idle && retired < most && self.slots.take(index).is_some() {
                    retired += 1;
                }
            }
        }
        retired
    }

    /// What can be said of each stream. Runs `look` without a lock; nothing is retired meanwhile.
    pub(crate) fn look(&self, among: u64, mut look: impl FnMut(&Arc<CudaStream>)) {
        let inside = self.slots.enter();
        for index in 0..self.last.len() {
            if among & bit(index) != 0 {
                inside.look(index, &mut look);
            }
        }
    }

    /// How many streams there are.
    pub(crate) fn streams(&self) -> usize {
        self.slots.enter().filled().count_ones() as usize
    }

    /// How many of a workload's streams could be made.
    pub(crate) fn room(&self, workload: WorkloadType) -> bool {
        self.allowed(workload) & !self.slots.enter().filled() != 0
    }
}

/// Leased or with work outstanding, as far as is known without asking the driver.
#[inline]
fn is_busy(stream: &Arc<CudaStream>) -> bool {
    Arc::strong_count(stream) > 1 || stream.outstanding() > 0
}

/// As [`is_busy`], for one that the caller holds already.
fn is_busy_besides(stream: &Arc<CudaStream>) -> bool {
    Arc::strong_count(stream) > 2 || stream.outstanding() > 0
}

/// The next place in turn.
#[inline]
fn in_turn(inside: &Inside<'_, CudaStream>, there: u64) -> Option<usize> {
    let count = there.count_ones();
    if count == 0 {
        return None;
    }
    // A ticket's lower half turns as well.
    let turn = inside.ticket() as u32 % count;
    let mut rest = there;
    for _ in 0..turn {
        rest &= rest - 1;
    }
    Some(rest.trailing_zeros() as usize)
}
