//! Migration and page-fault counts.

use std::fmt;

/// Migrations and page faults of unified memory.
///
/// The driver decides how much one migration or fault covers: it moves up to 2 MiB at once and groups concurrent
/// faults. A group's record names one address, so a fault of this buffer may be recorded for another one (driver 580).
/// Bytes moved by faults are recorded per migration: that no fault moved anything is exact; other numbers are
/// comparable between runs on one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MigrationCounts {
    /// Number of migrations from the host to the device, by prefetch or by faults.
    pub to_device: u64,
    /// Total bytes of these migrations.
    pub bytes_to_device: u64,
    /// Number of those migrations that page faults caused.
    pub to_device_by_faults: u64,
    /// Number of migrations from the device to the host.
    pub to_host: u64,
    /// Total bytes of these migrations.
    pub bytes_to_host: u64,
    /// Number of groups of device page faults whose records name an address of the range.
    pub gpu_fault_groups: u64,
    /// Number of host page faults.
    pub cpu_faults: u64,
    /// Number of records dropped for lack of space. If not 0, the other numbers are lower bounds.
    pub lost: u64,
}

impl MigrationCounts {
    /// Returns whether no access had to wait for a migration: no page fault is recorded, none moved anything, and no
    /// record was lost. A device's first touch of unpopulated memory moves nothing, and may be missed for part of a
    /// buffer.
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
