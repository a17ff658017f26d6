//! Which pages of managed memory moved, and which accesses had to wait for that: counted page by page.

use std::ops::{AddAssign, Range};

use crate::{
    api::cupti,
    device::Residency,
    memory::{Managed, PAGE},
};

/// What delta to pages of managed memory since it was allocated. A page of the software driver has 64 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migrations {
    /// Pages that moved from the host to a device.
    pub to_device: u64,
    /// Pages that moved from a device to the host.
    pub to_host: u64,
    /// Pages that were not on the device when a kernel touched them.
    pub gpu_faults: u64,
    /// Pages that were not on the host when the host touched them.
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

/// Who wants the pages elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Somebody touched them: each page that is elsewhere is a fault.
    Access,
    /// A prefetch, or a driver that moves everything before a launch.
    Prefetch,
}

impl Managed {
    /// Moves the pages of a range, and counts them. `base` is the allocation's address.
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
