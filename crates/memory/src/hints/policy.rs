//! What a range of unified memory is for, in one word, as the advice that follows from it.

use std::fmt;

use transload_core::{DeviceId, MemoryAdvice, RawBuffer, Result};
use transload_cuda_sys::{Device, Driver, attribute};

use super::{ManagedMemoryHints, MemoryLocation, advise::place_of};

/// How pages of a range should move. What a policy says is added to what was advised before, and a preference replaces an
/// earlier one; [`Reset`](Self::Reset) takes everything back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MigrationPolicy {
    /// The driver's own ways: no advice is given, and none taken back.
    #[default]
    Default,
    /// Read by many, seldom written: each reader may keep a copy.
    ReadMostly,
    /// Stays on the device with this ordinal; others reach it there.
    PreferDevice(u32),
    /// Stays on the host; devices reach it there.
    PreferHost,
    /// Is kept mapped for the device with this ordinal, wherever the pages are.
    AccessedBy(u32),
    /// Takes all earlier advice on the range back.
    Reset,
}

impl MigrationPolicy {
    /// The advice to give, in order, each with the place that it is about; `None` where advice is about no place.
    ///
    /// [`Reset`](Self::Reset) takes the access of the host back and that of every device of the process that there can be
    /// advice about, so it asks the driver for these; without a driver there is only the host.
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

    /// Whether it is the driver's own way, which needs no advice.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::Default
    }
}

/// The devices that the driver takes advice about: no other can have been advised. Where a device does not say, the advice
/// itself is what fails.
fn devices_with_hints() -> impl Iterator<Item = u32> {
    let can = |ordinal: &u32| {
        Device::new(*ordinal).and_then(|device| device.attribute(attribute::CONCURRENT_MANAGED_ACCESS))
            != Ok(0)
    };
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

/// Applies a policy to a buffer, or a slice of one, of unified memory: [`ManagedMemoryHints::apply_policy`] in one call.
///
/// # Errors
/// As for [`advise`](crate::advise). Advice given before the error stays.
pub fn apply_migration_policy(buffer: &RawBuffer, policy: MigrationPolicy) -> Result<()> {
    ManagedMemoryHints::from_unified(buffer)?.apply_policy(policy)
}
