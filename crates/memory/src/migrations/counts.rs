//! What was counted.

use std::fmt;

/// Migrations and page faults of unified memory.
///
/// How much one migration or one fault covers is the driver's choice: it moves up to 2 MiB at once, and puts faults that come
/// together into one group. A group's record names one address of it, so what another buffer's record names may have been this
/// one's (seen on driver 580). What faults *brought* is told by each migration's own record: that no fault brought anything is
/// a promise, and other numbers compare runs on one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationCounts {
    /// Migrations from the host to the device, prefetched or by faults.
    pub to_device: u64,
    /// Their bytes.
    pub bytes_to_device: u64,
    /// How many of them page faults caused, rather than a prefetch.
    pub to_device_by_faults: u64,
    /// Migrations from the device to the host.
    pub to_host: u64,
    /// Their bytes.
    pub bytes_to_host: u64,
    /// Groups of page faults of the device's kernels whose records name an address of the range.
    pub gpu_fault_groups: u64,
    /// Page faults of the host.
    pub cpu_faults: u64,
    /// Records that the driver or the tracker had no room for. Where this is not 0, the other numbers are lower bounds.
    pub lost: u64,
}

impl MigrationCounts {
    /// Whether nobody had to wait for a page that lay elsewhere: no fault of either side is known, none brought anything, and no
    /// record was lost. A device's first touch of memory that lies nowhere yet brings nothing; of a part of a buffer it may
    /// be missed.
    #[must_use]
    pub fn is_without_faults(&self) -> bool {
        let Self { to_device_by_faults, gpu_fault_groups, cpu_faults, lost, .. } = *self;
        [to_device_by_faults, gpu_fault_groups, cpu_faults, lost] == [0; 4]
    }
}

impl fmt::Display for MigrationCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to_device, bytes_to_device, to_device_by_faults, to_host, bytes_to_host, .. } = self;
        let Self { gpu_fault_groups, cpu_faults, lost, .. } = self;
        write!(
            f,
            "{to_device} migrations ({bytes_to_device} bytes) to the device, {to_device_by_faults} of them by faults, {to_host} ({bytes_to_host} bytes) to the host, \
             {gpu_fault_groups} groups of GPU page faults, {cpu_faults} CPU page faults"
        )?;
        if *lost > 0 {
            write!(f, "; {lost} records were lost, so these are lower bounds")?;
        }
        Ok(())
    }
}
