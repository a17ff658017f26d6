//! Which device used unified memory last, and how often that changed.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::DeviceId;

/// Both in one number: below, who used it last; above, how often that was another one than before.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts(AtomicU64);

/// Bits for the user.
const WIDTH: u32 = 16;
const USER: u64 = (1 << WIDTH) - 1;
const MOVE: u64 = 1 << WIDTH;
/// Somebody, it is not known where: the next user is always another one.
const SOMEBODY: u64 = 0;

/// 1 for the host, from 2 on CUDA's devices.
#[inline]
fn number_of(device: DeviceId) -> u64 {
    match device {
        DeviceId::Cpu => 1,
        DeviceId::Cuda(ordinal) => {
            Some(u64::from(ordinal) + 2).filter(|number| *number <= USER).unwrap_or(SOMEBODY)
        }
        _ => SOMEBODY,
    }
}

impl Whereabouts {
    #[inline]
    pub(crate) fn moves_until_use_by(&self, device: DeviceId) -> u64 {
        next(self.0.load(Ordering::Acquire), number_of(device)) >> WIDTH
    }

    /// Where it is the same as before nothing is written: other processors keep what they know.
    #[inline]
    pub(crate) fn used_by(&self, device: DeviceId) {
        let (now, user) = (self.0.load(Ordering::Relaxed), number_of(device));
        if next(now, user) != now {
            self.change(user);
        }
    }

    pub(crate) fn used_somewhere(&self) {
        self.change(SOMEBODY);
    }

    #[inline(never)]
    fn change(&self, user: u64) {
        let _always = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| Some(next(now, user)));
    }
}

#[inline]
fn next(now: u64, user: u64) -> u64 {
    if now & USER == user && user != SOMEBODY { now } else { (now & !USER).wrapping_add(MOVE) | user }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: DeviceId = DeviceId::Cuda(0);

    #[test]
    fn a_device_that_alone_uses_it_sees_one_number() {
        let memory = Whereabouts::default();
        let first = memory.moves_until_use_by(NEAR);
        for _ in 0..3 {
            memory.used_by(NEAR);
            assert_eq!(memory.moves_until_use_by(NEAR), first);
        }
    }

    #[test]
    fn whoever_else_uses_it_is_seen_however_often_and_only_until_the_next_use() {
        for other in [DeviceId::Cpu, DeviceId::Cuda(1), DeviceId::Wgpu(0), DeviceId::Cuda(u32::MAX)] {
            let memory = Whereabouts::default();
            memory.used_by(NEAR);
            let before = memory.moves_until_use_by(NEAR);
            for _ in 0..3 {
                memory.used_by(other);
                assert_ne!(memory.moves_until_use_by(NEAR), before, "{other}");
            }
            let expected = memory.moves_until_use_by(NEAR);
            memory.used_by(NEAR);
            assert_eq!(memory.moves_until_use_by(NEAR), expected, "the use itself was counted");
        }
    }

    #[test]
    fn a_loan_is_seen_even_between_two_others() {
        let memory = Whereabouts::default();
        memory.used_by(NEAR);
        let before = memory.moves_until_use_by(NEAR);
        memory.used_somewhere();
        let lent = memory.moves_until_use_by(NEAR);
        memory.used_somewhere();
        assert!(before < lent && lent < memory.moves_until_use_by(NEAR));
    }
}
