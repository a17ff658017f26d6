//! A thread's cached buffers by length. `tests/loom_allocator` checks this file.

use std::collections::VecDeque;

use transload_core::mutant;

use super::arena::size_class_counts::{CLASSES, class};
use crate::sync::Mutex;

/// Lengths per shard; a power of two.
const BINS: usize = 32;
/// Maximum buffers per length, and maximum bytes, but always at least one buffer.
const KEPT: usize = 256;
const KEPT_BYTES: usize = 256 << 20;

/// A thread's cached buffers, on cache lines of its own. `S` is a dropped buffer.
#[repr(align(128))]
pub(crate) struct Shard<S> {
    state: Mutex<State<S>>,
}

struct State<S> {
    /// Whether the allocator's last handle was dropped, so nothing is cached any more.
    is_closed: bool,
    /// Empty before the first buffer is cached.
    bins: Vec<Bin<S>>,
    /// Requests served, by the class of their size.
    served: [u64; CLASSES],
}

/// Cached buffers of one length.
struct Bin<S> {
    len: usize,
    idle: Vec<S>,
    /// Dropped while in flight, oldest first.
    busy: VecDeque<S>,
}

/// A shard's result for a request.
pub(crate) enum Kept<S> {
    Idle(S),
    /// The oldest one; its work may be complete by now.
    Busy(S),
    Nothing,
}

/// Known state of a cached buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Nothing uses it.
    Idle,
    /// Dropped while in flight.
    Busy,
    /// Taken, and found to be still in flight.
    StillBusy,
}

impl<S> Bin<S> {
    fn take_all(&mut self) -> impl Iterator<Item = S> + use<S> {
        std::mem::take(&mut self.idle).into_iter().chain(std::mem::take(&mut self.busy))
    }
}

/// Returns the index of the bin for a length.
#[inline]
fn bin_of(len: usize) -> usize {
    /// Fibonacci hashing: 2^64 divided by the golden ratio.
    const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
    ((len as u64).wrapping_mul(SPREAD) >> (u64::BITS - BINS.trailing_zeros())) as usize
}

impl<S> Shard<S> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State { is_closed: false, bins: Vec::new(), served: [0; CLASSES] }) }
    }

    #[inline]
    pub(crate) fn take(&self, len: usize) -> Kept<S> {
        let mut state = self.state.lock();
        let State { bins, served, .. } = &mut *state;
        let Some(bin) = bins.get_mut(bin_of(len)).filter(|bin| bin.len == len) else { return Kept::Nothing };
        let taken = bin.idle.pop().map(Kept::Idle).or_else(|| bin.busy.pop_front().map(Kept::Busy));
        served[class(len as u64)] += u64::from(taken.is_some());
        taken.unwrap_or(Kept::Nothing)
    }

    /// Returns the requests served so far by size class.
    pub(crate) fn served(&self) -> [u64; CLASSES] {
        self.state.lock().served
    }

    /// Caches a buffer. Returns what does not fit: the buffer, or those it replaces. Does not touch the shard after
    /// another thread can take the buffer, which may own the last reference to the allocator.
    #[inline]
    pub(crate) fn put(&self, len: usize, spare: S, in_use: Use) -> Vec<S> {
        let mut state = self.state.lock();
        let mut out = Vec::new();
        if in_use == Use::StillBusy {
            // The take did not serve a request.
            state.served[class(len as u64)] -= 1;
        }
        if state.is_closed && !mutant!("streams/closed-cache-keeps-nothing") {
            out.push(spare);
            return out;
        }
        if state.bins.is_empty() {
            let empty = || Bin { len: 0, idle: Vec::new(), busy: VecDeque::new() };
            state.bins.resize_with(BINS, empty);
        }
        let bin = &mut state.bins[bin_of(len)];
        if bin.len != len {
            bin.len = len;
            out.extend(bin.take_all());
        }
        let kept = bin.idle.len() + bin.busy.len();
        if kept >= KEPT || (kept > 0 && (kept + 1).saturating_mul(len) > KEPT_BYTES) {
            out.push(spare);
            return out;
        }
        match in_use {
            Use::Idle => bin.idle.push(spare),
            Use::Busy => bin.busy.push_back(spare),
            Use::StillBusy => bin.busy.push_front(spare),
        }
        out
    }

    /// Removes all buffers. With `close`, nothing is cached any more.
    pub(crate) fn take_all(&self, close: bool) -> Vec<S> {
        let mut state = self.state.lock();
        state.is_closed |= close;
        state.bins.iter_mut().flat_map(Bin::take_all).collect()
    }
}
