//! Dropped buffers that a thread keeps, by length. `tests/loom_allocator` checks this file.

use std::collections::VecDeque;

use transload_core::mutant;

use super::arena::size_class_counts::{CLASSES, class};
use crate::sync::Mutex;

/// Lengths that a shard keeps buffers of; a power of two.
const BINS: usize = 32;
/// The most buffers of one length that a shard keeps, and the most bytes of them, but always one buffer.
const KEPT: usize = 256;
const KEPT_BYTES: usize = 256 << 20;

/// What one thread keeps. Alone in its cache lines. `S` is a dropped buffer.
#[repr(align(128))]
pub(crate) struct Shard<S> {
    state: Mutex<State<S>>,
}

struct State<S> {
    /// The allocator's last handle was dropped: nothing is kept any more.
    is_closed: bool,
    /// None before the first one is kept.
    bins: Vec<Bin<S>>,
    /// Requests served, by the class of their size.
    served: [u64; CLASSES],
}

/// Kept buffers of one length.
struct Bin<S> {
    len: usize,
    idle: Vec<S>,
    /// In flight when they were dropped.
    busy: VecDeque<S>,
}

/// What a shard has for a request.
pub(crate) enum Kept<S> {
    Idle(S),
    /// The one that was dropped first; perhaps nothing uses it any more.
    Busy(S),
    Nothing,
}

/// What a kept buffer is known to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Nothing uses it.
    Idle,
    /// Dropped just now, while in flight.
    Busy,
    /// AllocatedBlock, and found to be in flight still.
    StillBusy,
}

impl<S> Bin<S> {
    fn take_all(&mut self) -> impl Iterator<Item = S> + use<S> {
        std::mem::take(&mut self.idle).into_iter().chain(std::mem::take(&mut self.busy))
    }
}

/// Where the bin of a length is.
#[inline]
fn bin_of(len: usize) -> usize {
    /// 2^64 divided by the golden ratio: neighbouring lengths come apart.
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

    /// Requests served so far, by the class of their size.
    pub(crate) fn served(&self) -> [u64; CLASSES] {
        self.state.lock().served
    }

    /// Keeps a buffer of a length. Returns what there is no room for: the buffer, or those that were in its place. Does not touch
    /// the shard after another thread can take the buffer, which may have the last reference to the allocator.
    #[inline]
    pub(crate) fn put(&self, len: usize, spare: S, in_use: Use) -> Vec<S> {
        let mut state = self.state.lock();
        let mut out = Vec::new();
        if in_use == Use::StillBusy {
            // It served no request.
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

    /// Takes everything out. With `close` nothing is kept from now on.
    pub(crate) fn take_all(&self, close: bool) -> Vec<S> {
        let mut state = self.state.lock();
        state.is_closed |= close;
        state.bins.iter_mut().flat_map(Bin::take_all).collect()
    }
}
