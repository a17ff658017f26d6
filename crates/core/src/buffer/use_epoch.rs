//! The last user of unified memory, and how often the user changed.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::DeviceId;

/// Packed: low 16 bits the last user, the rest a count of user changes.
#[derive(Debug, Default)]
pub(crate) struct UseEpoch(AtomicU64);

/// Bits for the user.
const WIDTH: u32 = 16;
const USER: u64 = (1 << WIDTH) - 1;
const MOVE: u64 = 1 << WIDTH;
/// Unknown user: the next use always counts as a change.
const UNKNOWN: u64 = 0;

/// Returns 1 for the host, and CUDA devices from 2 on.
#[inline]
fn number_of(device: DeviceId) -> u64 {
    match device {
        DeviceId::Cpu => 1,
        DeviceId::Cuda(ordinal) => {
            Some(u64::from(ordinal) + 2).filter(|number| *number <= USER).unwrap_or(UNKNOWN)
        }
        _ => UNKNOWN,
    }
}

impl UseEpoch {
    #[inline]
    pub(crate) fn use_epoch_for(&self, device: DeviceId) -> u64 {
        next(self.0.load(Ordering::Acquire), number_of(device)) >> WIDTH
    }

    /// Writes nothing if the user is unchanged, so that the cache line stays shared.
    #[inline]
    pub(crate) fn record_use_by(&self, device: DeviceId) {
        let (now, user) = (self.0.load(Ordering::Relaxed), number_of(device));
        if next(now, user) != now {
            self.change(user);
        }
    }

    pub(crate) fn record_unknown_use(&self) {
        self.change(UNKNOWN);
    }

    #[inline(never)]
    fn change(&self, user: u64) {
        let _always = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| Some(next(now, user)));
    }
}

#[inline]
fn next(now: u64, user: u64) -> u64 {
    if now & USER == user && user != UNKNOWN { now } else { (now & !USER).wrapping_add(MOVE) | user }
}
