//! Migration policies: named combinations of advice.

use std::fmt;

use transload_core::{DeviceId, MemoryAdvice, RawBuffer, Result};
use transload_cuda_sys::{Device, Driver, attribute};

use super::{ManagedMemoryHints, MemoryLocation, advise::place_of};
use crate::CudaDevice;

/// How pages of a range should migrate. A policy is added to earlier advice, and a preferred location replaces an
/// earlier one; [`Reset`](Self::Reset) removes all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MigrationPolicy {
    /// The driver's default: no advice is given or removed.
    #[default]
    Default,
    /// Read by many, seldom written: each reader may keep a copy.
    ReadMostly,
    /// Preferred on the device with this ordinal; others access it there.
    PreferDevice(u32),
    /// Preferred on the host; devices access it there.
    PreferHost,
    /// Kept mapped for the device with this ordinal, wherever the pages are.
    AccessedBy(u32),
    /// Removes all earlier advice on the range.
    Reset,
}

impl MigrationPolicy {
    /// Returns the advice to give, in order, each with the location that it names, if any.
    ///
    /// [`Reset`](Self::Reset) removes the host and every device that supports hints as accessors, so it queries the
    /// driver for these; without a driver, only the host.
    #[must_use]
    pub fn to_advice_pairs(&self) -> Vec<(MemoryAdvice, Option<MemoryLocation>)> {
        let advice = match *self {
            Self::Default => Vec::new(),
            Self::ReadMostly => vec![MemoryAdvice::SetReadMostly],
            Self::PreferDevice(ordinal) => vec![MemoryAdvice::SetPreferredLocation(DeviceId::Cuda(ordinal))],
            Self::PreferHost => vec![MemoryAdvice::SetPreferredLocation(DeviceId::Cpu)],
            Self::AccessedBy(ordinal) => vec![MemoryAdvice::SetAccessedBy(DeviceId::Cuda(ordinal))],
            Self::Reset => [MemoryAdvice::UnsetReadMostly, MemoryAdvice::UnsetPreferredLocation]
                .into_iter()
                .chain([MemoryAdvice::UnsetAccessedBy(DeviceId::Cpu)])
                .chain(
                    devices_with_hints()
                        .map(|ordinal| MemoryAdvice::UnsetAccessedBy(DeviceId::Cuda(ordinal))),
                )
                .collect(),
        };
        let located = |advice| (advice, place_of(advice).and_then(|place| place.try_into().ok()));
        advice.into_iter().map(located).collect()
    }

    /// Returns whether this is the driver's default, which needs no advice.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::Default
    }
}

/// Returns the devices that support hints: no other can have been advised. If the query fails, include the device: the
/// advice itself reports the error.
fn devices_with_hints() -> impl Iterator<Item = u32> {
    let can = |ordinal: &u32| {
        Device::new(*ordinal).and_then(|device| device.attribute(attribute::CONCURRENT_MANAGED_ACCESS))
            != Ok(0)
    };
    // Without a driver no device was advised.
    let count = Driver::get().and_then(Driver::device_count).unwrap_or(0);
    (0..count).filter(can)
}

impl fmt::Display for MigrationPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::ReadMostly => f.write_str("read mostly"),
            Self::PreferDevice(ordinal) => write!(f, "prefer cuda:{ordinal}"),
            Self::PreferHost => f.write_str("prefer cpu"),
            Self::AccessedBy(ordinal) => write!(f, "accessed by cuda:{ordinal}"),
            Self::Reset => f.write_str("reset"),
        }
    }
}

/// Applies a policy to `byte_size` bytes of managed memory at a raw address, in the device's context. For prefetches of
/// raw regions, see [`ManagedMemoryHints::for_buffer`] and [`PrefetchPlan`](crate::PrefetchPlan).
///
/// # Errors
/// As for [`ManagedMemoryHints::for_buffer`] and [`ManagedMemoryHints::apply_policy`].
pub fn apply_migration_policy_raw(
    device: &CudaDevice,
    ptr: u64,
    byte_size: usize,
    policy: MigrationPolicy,
) -> Result<()> {
    ManagedMemoryHints::for_buffer(device, ptr, byte_size)?.apply_policy(policy)
}

/// Applies a policy to a unified-memory buffer or slice, like [`ManagedMemoryHints::apply_policy`].
///
/// # Errors
/// As for [`advise`](crate::advise). Advice given before the error stays.
pub fn apply_migration_policy(buffer: &RawBuffer, policy: MigrationPolicy) -> Result<()> {
    ManagedMemoryHints::from_unified(buffer)?.apply_policy(policy)
}
