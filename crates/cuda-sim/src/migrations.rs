//! Counts migrations and page faults of managed memory, per page.

use std::ops::{AddAssign, Range};

use crate::{
    api::cupti,
    device::Residency,
    memory::{Managed, PAGE},
};

/// Migrations and page faults since the allocation. A page has 64 KiB on the software driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migrations {
    /// Pages migrated from the host to a device.
    pub to_device: u64,
    /// Pages migrated from a device to the host.
    pub to_host: u64,
    /// Pages not resident on the device when a kernel accessed them.
    pub gpu_faults: u64,
    /// Pages not resident on the host when the host accessed them.
    pub cpu_faults: u64,
}

impl AddAssign for Migrations {
    fn add_assign(&mut self, other: Self) {
        self.to_device += other.to_device;
        self.to_host += other.to_host;
        self.gpu_faults += other.gpu_faults;
        self.cpu_faults += other.cpu_faults;
    }
}

/// The cause of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// An access: each page that is not resident is a page fault.
    Access,
    /// A prefetch, or a driver that migrates everything before a launch.
    Prefetch,
}

impl Managed {
    /// Migrates the pages of a range and counts the migrations. `base` is the allocation's address.
    pub(crate) fn migrate(&mut self, base: u64, offset: u64, bytes: u64, to: Residency, cause: Cause) {
        for page in self.pages_of(offset, bytes) {
            let from = self.at(page as u64 * PAGE);
            if from == to {
                continue;
            }
            let mut delta = Migrations::default();
            match (from, to) {
                (Residency::Host, Residency::Device(_)) => delta.to_device = 1,
                (Residency::Device(_), Residency::Host) => delta.to_host = 1,
                _ => {}
            }
            match (cause, to) {
                (Cause::Access, Residency::Device(_)) => delta.gpu_faults = 1,
                (Cause::Access, Residency::Host) => delta.cpu_faults = 1,
                _ => {}
            }
            let device = match (from, to) {
                (_, Residency::Device(device)) | (Residency::Device(device), _) => device,
                _ => 0,
            };
            cupti::record_migration(base + page as u64 * PAGE, device, delta);
            self.counted[page] += delta;
            self.pages[page] = to;
        }
    }

    pub(crate) fn migrations(&self, range: Range<usize>) -> Migrations {
        let mut sum = Migrations::default();
        self.counted.get(range).unwrap_or_default().iter().for_each(|page| sum += *page);
        sum
    }
}
