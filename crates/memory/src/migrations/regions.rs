//! Records of one device by address, and their sums over a range.

use std::{collections::BTreeMap, ops::Range};

use super::MigrationCounts;

/// Maximum number of regions; further records only count in the total.
const MOST: usize = 1 << 18;
/// The smallest page size: a fault's record names a byte of its page, usually the first.
const PAGE: u64 = 4096;

/// One record of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) address: u64,
    pub(crate) event: Event,
    pub(crate) times: (u64, u64),
}

/// A recorded event, with its device if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    ToDevice { device: u32, bytes: u64, by_faults: bool },
    ToHost { device: u32, bytes: u64 },
    GpuFault { device: u32, groups: u64 },
    CpuFault,
}

/// Counts since the last reset.
#[derive(Debug)]
pub(crate) struct Regions {
    device: u32,
    total: MigrationCounts,
    /// By start address and length.
    found: BTreeMap<(u64, u64), MigrationCounts>,
    /// Length of the longest region.
    longest: u64,
    /// Number of records in the total but in no region.
    unplaced: u64,
}

impl Regions {
    pub(crate) fn of(device: u32) -> Self {
        Self { device, total: MigrationCounts::default(), found: BTreeMap::new(), longest: 0, unplaced: 0 }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::of(self.device);
    }

    pub(crate) fn add_lost(&mut self, records: u64) {
        self.total.lost = self.total.lost.saturating_add(records);
    }

    pub(crate) fn add(&mut self, record: Record) {
        let mut happened = MigrationCounts::default();
        let page = record.address & !(PAGE - 1);
        let (device, address, bytes) = match record.event {
            Event::ToDevice { device, bytes, by_faults } => {
                happened.to_device = 1;
                happened.to_device_by_faults = u64::from(by_faults);
                happened.bytes_to_device = bytes;
                (device, record.address, bytes)
            }
            Event::ToHost { device, bytes } => {
                happened.to_host = 1;
                happened.bytes_to_host = bytes;
                (device, record.address, bytes)
            }
            Event::GpuFault { device, groups } => {
                happened.gpu_fault_groups = groups;
                (device, page, PAGE)
            }
            // Host faults belong to no device.
            Event::CpuFault => {
                happened.cpu_faults = 1;
                (self.device, page, PAGE)
            }
        };
        if device != self.device {
            return;
        }
        add_counts(&mut self.total, &happened);
        let key = (address, bytes);
        if let Some(known) = self.found.get_mut(&key) {
            add_counts(known, &happened);
        } else if self.found.len() < MOST {
            self.longest = self.longest.max(bytes);
            self.found.insert(key, happened);
        } else {
            self.unplaced = self.unplaced.saturating_add(1);
        }
    }

    pub(crate) fn total(&self) -> MigrationCounts {
        self.total
    }

    /// Returns the counts of the range. A migration that extends beyond it counts with the bytes inside; a fault counts
    /// for every range that contains a byte of its page.
    pub(crate) fn within(&self, range: &Range<u64>) -> MigrationCounts {
        let mut sum = MigrationCounts { lost: self.total.lost, ..MigrationCounts::default() };
        sum.lost = sum.lost.saturating_add(self.unplaced);
        let first = range.start.saturating_sub(self.longest);
        if range.is_empty() {
            return sum;
        }
        for ((start, bytes), counts) in self.found.range((first, 0)..(range.end, 0)) {
            let end = start.saturating_add(*bytes);
            let common = end.min(range.end).saturating_sub((*start).max(range.start));
            if common == 0 {
                continue;
            }
            add_counts(
                &mut sum,
                &MigrationCounts {
                    bytes_to_device: common.saturating_mul(counts.to_device),
                    bytes_to_host: common.saturating_mul(counts.to_host),
                    ..*counts
                },
            );
        }
        sum
    }
}

fn add_counts(sum: &mut MigrationCounts, more: &MigrationCounts) {
    let pairs = [
        (&mut sum.to_device, more.to_device),
        (&mut sum.to_device_by_faults, more.to_device_by_faults),
        (&mut sum.bytes_to_device, more.bytes_to_device),
        (&mut sum.to_host, more.to_host),
        (&mut sum.bytes_to_host, more.bytes_to_host),
        (&mut sum.gpu_fault_groups, more.gpu_fault_groups),
        (&mut sum.cpu_faults, more.cpu_faults),
        (&mut sum.lost, more.lost),
    ];
    for (sum, more) in pairs {
        *sum = sum.saturating_add(more);
    }
}

#[cfg(test)]
#[path = "../../tests/unit/regions.rs"]
mod tests;
