//! Migrations and page faults of unified memory, next to the buffers that the user named.

use std::{collections::BTreeMap, fmt, ops::Range};

use transload_core::{DeviceId, Migration, PageFaults};

use crate::{busy::BusyTime, report::time};

/// Buffers that are told apart.
const NAMED: usize = 4096;

/// Migrations and page faults between the host and one device, of a buffer or of all memory. The driver decides how much one covers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MigrationReport {
    /// The device; the host for its page faults.
    pub device: DeviceId,
    /// The buffer's name; `None` for all memory.
    pub buffer: Option<String>,
    /// Migrations to the device.
    pub to_device: u64,
    /// Their bytes.
    pub bytes_to_device: u64,
    /// How many of them page faults caused.
    pub to_device_by_faults: u64,
    /// Migrations to the host.
    pub to_host: u64,
    /// Their bytes.
    pub bytes_to_host: u64,
    /// Page faults of the host, or groups of them of the device.
    pub faults: u64,
    /// Time in which at least one migration was under way.
    pub busy_ns: u64,
}

impl fmt::Display for MigrationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, buffer, to_device, bytes_to_device, to_device_by_faults, .. } = self;
        match buffer {
            Some(name) => write!(f, "migrations of {name:?}")?,
            None => f.write_str("migrations of all unified memory")?,
        }
        if device.is_cpu() {
            return write!(f, ": {} page faults of the host", self.faults);
        }
        write!(
            f,
            " and {device}: {to_device} ({bytes_to_device} bytes) to the device, {to_device_by_faults} of them by faults"
        )?;
        write!(f, ", {} ({} bytes) to the host", self.to_host, self.bytes_to_host)?;
        write!(f, ", {} groups of page faults; busy {}", self.faults, time(self.busy_ns))
    }
}

struct Totals {
    report: MigrationReport,
    busy: BusyTime,
}

impl Totals {
    fn of(device: DeviceId) -> Self {
        let report = MigrationReport {
            device,
            buffer: None,
            to_device: 0,
            bytes_to_device: 0,
            to_device_by_faults: 0,
            to_host: 0,
            bytes_to_host: 0,
            faults: 0,
            busy_ns: 0,
        };
        Self { report, busy: BusyTime::default() }
    }
}

/// What was recorded.
#[derive(Default)]
pub(crate) struct Migrations {
    named: Vec<(String, Range<u64>)>,
    /// By device, and by the index of a named buffer.
    totals: BTreeMap<(DeviceId, Option<usize>), Totals>,
}

impl Migrations {
    /// Tells later records of a range apart. Returns `false` if there is no room.
    pub(crate) fn name(&mut self, name: String, range: Range<u64>) -> bool {
        let has_room = self.named.len() < NAMED;
        if has_room {
            self.named.push((name, range));
        }
        has_room
    }

    /// Returns the name of the buffer at an address, the last one that was named.
    pub(crate) fn name_of(&self, address: u64) -> Option<&str> {
        let named = self.named.iter().rev().find(|(_, range)| range.contains(&address));
        named.map(|(name, _)| &name[..])
    }

    /// Takes a migration that was under way in `span`.
    pub(crate) fn migrated(&mut self, migration: &Migration, span: (i64, i64)) {
        let Migration { device, to_device, by_fault, address, bytes, .. } = *migration;
        self.each(device, address..address.saturating_add(bytes), |totals, bytes| {
            let report = &mut totals.report;
            let (count, sum) = match to_device {
                true => (&mut report.to_device, &mut report.bytes_to_device),
                false => (&mut report.to_host, &mut report.bytes_to_host),
            };
            *count += 1;
            *sum = sum.saturating_add(bytes);
            report.to_device_by_faults += u64::from(to_device && by_fault);
            totals.busy.add(span.0, span.1);
        });
    }

    pub(crate) fn faulted(&mut self, faults: &PageFaults) {
        let PageFaults { device, address, count } = *faults;
        let range = address..address.saturating_add(1);
        self.each(device.unwrap_or(DeviceId::Cpu), range, |totals, _| totals.report.faults += count);
    }

    /// Calls `add` for all memory, and for each named buffer that has some of the range, with the number of its bytes.
    fn each(&mut self, device: DeviceId, range: Range<u64>, mut add: impl FnMut(&mut Totals, u64)) {
        add(self.totals.entry((device, None)).or_insert_with(|| Totals::of(device)), range.end - range.start);
        for (index, (_, named)) in self.named.iter().enumerate() {
            let (start, end) = (named.start.max(range.start), named.end.min(range.end));
            if start < end {
                add(
                    self.totals.entry((device, Some(index))).or_insert_with(|| Totals::of(device)),
                    end - start,
                );
            }
        }
    }

    pub(crate) fn reports(&self) -> Vec<MigrationReport> {
        let reports = self.totals.iter().map(|((_, index), Totals { report, busy })| {
            let named = index.and_then(|index| self.named.get(index));
            let buffer = named.map(|(name, _)| name.clone());
            MigrationReport { buffer, busy_ns: busy.summary().union, ..report.clone() }
        });
        reports.collect()
    }
}
