//! Where memory keeps its registration with a driver, and the time that it would have saved until then.

use std::{
    any::Any,
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{DeviceId, RawBuffer};

/// A registration of host memory with a driver, so that copy engines access it in place.
pub trait KeptRegistration: Send + Sync {
    /// Returns the [family](DeviceId::family) of the devices whose copy engines access the memory in place.
    fn family(&self) -> &'static str;

    /// Ends the registration, and then drops the owner of the memory, perhaps on another thread. If the driver refuses, the
    /// owner is leaked. Must not block on the device.
    fn end(self: Box<Self>, owner: Box<dyn Any + Send + Sync>);
}

/// The registration of a storage's memory, which lasts until the memory is freed, and the use that it might be worth.
#[derive(Default)]
pub struct RegistrationSlot {
    registration: OnceLock<Box<dyn KeptRegistration>>,
    /// Nanoseconds that a registration would have saved; negative after an attempt.
    missed: AtomicI64,
    /// Bytes copied without a registration.
    copied: AtomicU64,
}

impl RegistrationSlot {
    /// Returns whether the memory is registered. It stays so until it is freed.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.registration.get().is_some()
    }

    /// Returns whether the memory is registered for copy engines of this device's family. Those of other families cannot use that.
    #[must_use]
    pub fn is_registered_for(&self, device: DeviceId) -> bool {
        self.registration.get().is_some_and(|registration| registration.family() == device.family())
    }

    /// Keeps a registration of all of the memory until it is freed. Returns the registration if there already is one.
    ///
    /// # Errors
    /// The registration itself.
    pub fn keep(&self, registration: Box<dyn KeptRegistration>) -> Result<(), Box<dyn KeptRegistration>> {
        self.registration.set(registration)
    }

    /// Counts a copy of `bytes` of the memory's `len` bytes that a registration would have made faster by `saved`. Returns whether to
    /// register now, for `cost`: once the copies so far would have paid for it, and copied all bytes twice. Then it returns
    /// `false` until 16 times as much was missed, since the attempt may fail.
    pub fn is_due(&self, (bytes, len): (u64, u64), saved: Duration, cost: Duration) -> bool {
        const ATTEMPT: i64 = 15;
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let (saved, cost) = (nanos(saved), nanos(cost));
        let copied = self.copied.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let missed = self.missed.fetch_add(saved, Ordering::Relaxed).saturating_add(saved);
        let is_repeated = copied >= len.saturating_mul(2) || crate::mutant!("core/register-repeated-use");
        let next = cost.saturating_mul(-ATTEMPT);
        // Another copy that counts at once decides instead.
        missed >= cost
            && is_repeated
            && !self.is_registered()
            && self.missed.compare_exchange(missed, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Drops the owner of the memory, after the end of the registration if there is one.
    pub fn free<O: Send + Sync + 'static>(&mut self, owner: O) {
        match self.registration.take() {
            Some(registration) => registration.end(Box::new(owner)),
            None => drop(owner),
        }
    }
}

impl RawBuffer {
    /// Returns where a registration of the allocation is kept; see [`Storage::registration_slot`](crate::Storage::registration_slot).
    #[must_use]
    pub fn registration_slot(&self) -> Option<&RegistrationSlot> {
        self.storage()?.registration_slot()
    }

    /// Returns whether the allocation is registered with a driver until it is freed, so that copy engines access it in place.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.registration_slot().is_some_and(RegistrationSlot::is_registered)
    }

    /// Returns whether the allocation is registered until it is freed with the driver of this device's family, whose copy engines
    /// then access it in place.
    #[must_use]
    pub fn is_registered_for(&self, device: DeviceId) -> bool {
        self.registration_slot().is_some_and(|slot| slot.is_registered_for(device))
    }

    /// Returns the device whose driver alone knows the memory, of the host; see [`Storage::maker`](crate::Storage::maker).
    #[must_use]
    pub fn maker(&self) -> Option<DeviceId> {
        self.storage()?.maker()
    }

    /// Returns whether a device's driver knows this memory of the host as pinned or mapped, if that is its kind: wgpu's devices know what they made
    /// themselves, devices of CUDA what no other family made. To all other devices it is pageable memory. Calls no driver.
    #[must_use]
    #[inline]
    pub fn is_known_to(&self, device: DeviceId) -> bool {
        match device.knows_by_address() {
            true => self.device_address().is_some() || self.maker().is_none(),
            false => self.maker() == Some(device),
        }
    }
}

impl fmt::Debug for RegistrationSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationSlot")
            .field("is_registered", &self.is_registered())
            .finish_non_exhaustive()
    }
}
