//! The managed memory that all managers of one device have promised together: a bound that each kept by itself would be none.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

/// Bytes of one device of this process. A process has one driver, which numbers its devices once, so the ordinal names it;
/// simulated devices have ordinals of their own as well.
#[derive(Debug, Default)]
pub(crate) struct Promised {
    bytes: AtomicU64,
}

impl Promised {
    /// What is kept for a device, by whoever asks.
    pub(crate) fn of(ordinal: u32) -> Arc<Self> {
        static DEVICES: Mutex<Vec<(u32, Weak<Promised>)>> = Mutex::new(Vec::new());
        let mut devices = DEVICES.lock();
        devices.retain(|(_, promised)| promised.strong_count() > 0);
        if let Some(known) =
            devices.iter().find(|(of, _)| *of == ordinal).and_then(|(_, known)| known.upgrade())
        {
            return known;
        }
        let promised = Arc::<Self>::default();
        devices.push((ordinal, Arc::downgrade(&promised)));
        promised
    }

    /// Adds so many, where all then are at most `most`; else answers how many there are.
    pub(crate) fn add(&self, bytes: u64, most: u64) -> Result<(), u64> {
        let within = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= most);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).map(|_| ())
    }

    pub(crate) fn sub(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_one_device_share_a_count_and_it_ends_with_the_last_of_them() {
        const DEVICE: u32 = 4_000_000_000;
        let (one, two, other) = (Promised::of(DEVICE), Promised::of(DEVICE), Promised::of(DEVICE + 1));
        assert_eq!((one.add(60, 100), two.add(60, 100), other.add(60, 100)), (Ok(()), Err(60), Ok(())));
        one.sub(60);
        assert_eq!(two.add(60, 100), Ok(()));
        assert_eq!(one.add(u64::MAX, u64::MAX), Err(60));
        drop((one, two));
        assert_eq!(Promised::of(DEVICE).add(100, 100), Ok(()));
    }
}
