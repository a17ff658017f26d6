//! Records of one device by address, and what they add up to for a range.

use std::{collections::BTreeMap, ops::Range};

use super::MigrationCounts;

/// How many regions are told apart; what comes beyond that counts in the total only.
const MOST: usize = 1 << 18;
/// The smallest page of any device or host: a fault's record names a byte of its page, mostly the first.
const PAGE: u64 = 4096;

/// One record of the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) address: u64,
    pub(super) event: Event,
}

/// What happened, and on which device where it is one device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    ToDevice { device: u32, bytes: u64, by_faults: bool },
    ToHost { device: u32, bytes: u64 },
    GpuFault { device: u32, groups: u64 },
    CpuFault,
}

/// The records since the last clearing.
#[derive(Debug)]
pub(super) struct Regions {
    device: u32,
    total: MigrationCounts,
    /// By first byte and length.
    found: BTreeMap<(u64, u64), MigrationCounts>,
    /// The longest of them.
    longest: u64,
    /// Records that are in the total, and in no region.
    unplaced: u64,
}

impl Regions {
    pub(super) fn of(device: u32) -> Self {
        Self { device, total: MigrationCounts::default(), found: BTreeMap::new(), longest: 0, unplaced: 0 }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::of(self.device);
    }

    pub(super) fn lose(&mut self, records: u64) {
        self.total.lost = self.total.lost.saturating_add(records);
    }

    pub(super) fn add(&mut self, record: Record) {
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
            // The host's faults are no device's.
            Event::CpuFault => {
                happened.cpu_faults = 1;
                (self.device, page, PAGE)
            }
        };
        if device != self.device {
            return;
        }
        grow(&mut self.total, &happened);
        let key = (address, bytes);
        if let Some(known) = self.found.get_mut(&key) {
            grow(known, &happened);
        } else if self.found.len() < MOST {
            self.longest = self.longest.max(bytes);
            self.found.insert(key, happened);
        } else {
            self.unplaced = self.unplaced.saturating_add(1);
        }
    }

    pub(super) fn total(&self) -> MigrationCounts {
        self.total
    }

    /// What touched the range. Of a migration that reaches beyond it, the bytes within count; a fault counts for every range
    /// that has a byte of its page.
    pub(super) fn within(&self, range: &Range<u64>) -> MigrationCounts {
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
            grow(
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

fn grow(sum: &mut MigrationCounts, more: &MigrationCounts) {
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
mod tests {
    use super::*;

    fn moved(address: u64, bytes: u64) -> Record {
        Record { address, event: Event::ToDevice { device: 0, bytes, by_faults: false } }
    }

    #[test]
    fn a_migration_that_reaches_beyond_a_range_counts_with_the_bytes_within() {
        let mut regions = Regions::of(0);
        regions.add(moved(1000, 500));
        regions.add(moved(1000, 500));
        regions.add(moved(2000, 10));
        let counts = regions.within(&(1400..2005));
        assert_eq!((counts.to_device, counts.bytes_to_device), (3, 205));
        assert_eq!(regions.within(&(1500..2000)), MigrationCounts::default());
        assert_eq!(regions.within(&(1200..1200)), MigrationCounts::default());
        assert_eq!(regions.total().bytes_to_device, 1010);
    }

    #[test]
    fn what_faults_brought_is_told_apart_from_what_was_prefetched() {
        let mut regions = Regions::of(0);
        regions.add(moved(0, 500));
        assert!(regions.within(&(0..500)).is_without_faults());
        let event = Event::ToDevice { device: 0, bytes: 500, by_faults: true };
        regions.add(Record { address: 0, event });
        let counts = regions.within(&(400..500));
        assert_eq!((counts.to_device, counts.to_device_by_faults), (2, 1));
        assert!(!counts.is_without_faults());
    }

    #[test]
    fn another_devices_records_do_not_count_and_the_hosts_faults_do() {
        let mut regions = Regions::of(1);
        regions.add(moved(0, 500));
        regions.add(Record { address: 7, event: Event::GpuFault { device: 0, groups: 3 } });
        assert_eq!(regions.total(), MigrationCounts::default());
        regions.add(Record { address: 7, event: Event::GpuFault { device: 1, groups: 3 } });
        regions.add(Record { address: 7, event: Event::CpuFault });
        let counts = regions.within(&(7..8));
        assert_eq!((counts.gpu_fault_groups, counts.cpu_faults), (3, 1));
        assert!(!counts.is_without_faults());
        assert!(!regions.within(&(PAGE - 1..PAGE)).is_without_faults(), "of the same page");
        assert!(regions.within(&(PAGE..2 * PAGE)).is_without_faults(), "the next page");
    }

    #[test]
    fn memory_stays_bounded_and_says_that_ranges_are_lower_bounds_then() {
        let mut regions = Regions::of(0);
        for address in 0..MOST as u64 + 5 {
            regions.add(moved(address * 10, 10));
        }
        assert_eq!(regions.found.len(), MOST);
        assert_eq!((regions.total().to_device, regions.total().lost), (MOST as u64 + 5, 0));
        assert_eq!(regions.within(&(0..10)).lost, 5);
        assert!(!regions.within(&(0..10)).is_without_faults());
        regions.lose(2);
        assert_eq!((regions.total().lost, regions.within(&(0..10)).lost), (2, 7));
        regions.clear();
        assert_eq!(regions.total(), MigrationCounts::default());
    }

    #[test]
    fn addresses_at_the_end_of_the_space_do_not_overflow() {
        let mut regions = Regions::of(0);
        regions.add(moved(u64::MAX - 5, u64::MAX));
        regions.add(moved(u64::MAX - 5, u64::MAX));
        assert_eq!(regions.within(&(u64::MAX - 6..u64::MAX)).bytes_to_device, 10);
        assert_eq!(regions.total().bytes_to_device, u64::MAX);
    }
}
