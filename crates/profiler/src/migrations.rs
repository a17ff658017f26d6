//! Migrations and page faults of unified memory, next to the buffers that the user named.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
};

use transload_core::{DeviceId, Migration, PageFaults};

use crate::{Advice, AdviceBasis, AdviceKind, busy::BusyTime, report::time};

/// Buffers that are told apart.
const NAMED: usize = 4096;
/// Fewer bytes by faults are not told, and fewer prefetched ones tell no rate.
const LEAST: u64 = 16 << 20;
/// The smallest saving that is told, as a share of the time that faults took.
const LEAST_SAVING: f64 = 0.05;

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
    /// Bytes of those.
    pub bytes_by_faults: u64,
    /// Page faults of the host, or groups of them of the device.
    pub faults: u64,
    /// Time in which at least one group of the device was served, for which its accesses waited. Of the host not known.
    pub faulted_ns: u64,
    /// Time in which at least one migration was under way.
    pub busy_ns: u64,
    /// Whether a record came much later than its work ended, so that the times are lower bounds.
    #[cfg_attr(feature = "serde", serde(default))]
    pub is_cut: bool,
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
        let least = if self.is_cut { "at least " } else { "" };
        write!(f, ", {} groups of page faults, which took {least}{}", self.faults, time(self.faulted_ns))?;
        write!(f, "; busy {least}{}", time(self.busy_ns))
    }
}

fn is_told(report: &MigrationReport) -> bool {
    report.bytes_by_faults >= LEAST && report.faulted_ns > 0
}

struct Totals {
    report: MigrationReport,
    busy: BusyTime,
    /// Migrations to the device that no fault caused.
    prefetched: BusyTime,
    faulted: BusyTime,
    is_simulated: bool,
}

impl Totals {
    fn of(device: DeviceId, index: Option<usize>) -> Self {
        let report = MigrationReport {
            device,
            buffer: None,
            to_device: 0,
            bytes_to_device: 0,
            to_device_by_faults: 0,
            bytes_by_faults: 0,
            to_host: 0,
            bytes_to_host: 0,
            faults: 0,
            faulted_ns: 0,
            busy_ns: 0,
            is_cut: false,
        };
        let [busy, prefetched, faulted] = [(); 3].map(|()| match index {
            None => BusyTime::default(),
            Some(_) => BusyTime::of_many(),
        });
        Self { report, busy, prefetched, faulted, is_simulated: false }
    }
}

/// What was recorded.
#[derive(Default)]
pub(crate) struct Migrations {
    named: Vec<String>,
    /// The places of named buffers, which do not overlap, with their indices.
    places: Vec<(Range<u64>, usize)>,
    /// By device, and by the index of a named buffer.
    totals: BTreeMap<(DeviceId, Option<usize>), Totals>,
}

impl Migrations {
    /// Tells later records of a range apart, also those of an earlier name. Returns `false` if there is no room.
    pub(crate) fn name(&mut self, name: String, range: Range<u64>) -> bool {
        let rest = self.places.iter().flat_map(|(old, index)| {
            let parts = [old.start..old.end.min(range.start), old.start.max(range.end)..old.end];
            parts.map(|part| (part, *index))
        });
        let mut places: Vec<_> = rest.filter(|(part, _)| !part.is_empty()).collect();
        let Some(index) = self.index_of(&name, &places) else { return false };
        places.push((range, index));
        self.places = places;
        match self.named.get_mut(index) {
            Some(of) => *of = name,
            None => self.named.push(name),
        }
        true
    }

    /// Returns the index of a name. Once there are many, that of an earlier buffer of the name, or one that nothing has, neither a place nor what was
    /// recorded. `None` if there is none.
    fn index_of(&self, name: &str, places: &[(Range<u64>, usize)]) -> Option<usize> {
        if self.named.len() < NAMED {
            return Some(self.named.len());
        }
        let known = self.named.iter().rposition(|known| known == name);
        known.filter(|_| !transload_core::mutant!("profiler/names-are-used-again")).or_else(|| {
            let placed = places.iter().map(|(_, index)| *index);
            let used: BTreeSet<usize> =
                placed.chain(self.totals.keys().filter_map(|(_, index)| *index)).collect();
            (0..self.named.len()).find(|index| !used.contains(index))
        })
    }

    /// Returns the name of the buffer at an address, the last one that was named.
    pub(crate) fn name_of(&self, address: u64) -> Option<&str> {
        let (_, index) = self.places.iter().find(|(range, _)| range.contains(&address))?;
        self.named.get(*index).map(|name| &name[..])
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
            totals.busy.add(span.0, span.1);
            if to_device && by_fault {
                report.to_device_by_faults += 1;
                report.bytes_by_faults = report.bytes_by_faults.saturating_add(bytes);
            } else if to_device {
                totals.prefetched.add(span.0, span.1);
            }
        });
    }

    /// Takes page faults that were served in a span, if it is known.
    pub(crate) fn faulted(&mut self, faults: &PageFaults, served: Option<(i64, i64)>, simulated: bool) {
        let PageFaults { device, address, count, .. } = *faults;
        let range = address..address.saturating_add(1);
        self.each(device.unwrap_or(DeviceId::Cpu), range, |totals, _| {
            totals.report.faults += count;
            totals.is_simulated = simulated;
            if let Some((begin, end)) = served {
                totals.faulted.add(begin, end);
            }
        });
    }

    /// Calls `add` for all memory, and for each named buffer that has some of the range, with the number of its bytes.
    fn each(&mut self, device: DeviceId, range: Range<u64>, mut add: impl FnMut(&mut Totals, u64)) {
        let mut parts = BTreeMap::from([(None, range.end - range.start)]);
        for (named, index) in &self.places {
            let (start, end) = (named.start.max(range.start), named.end.min(range.end));
            if start < end {
                *parts.entry(Some(*index)).or_default() += end - start;
            }
        }
        for (index, bytes) in parts {
            add(self.totals.entry((device, index)).or_insert_with(|| Totals::of(device, index)), bytes);
        }
    }

    pub(crate) fn reports(&self) -> Vec<MigrationReport> {
        let reports = self.totals.iter().map(|((_, index), Totals { report, busy, faulted, .. })| {
            let buffer = index.and_then(|index| self.named.get(index)).cloned();
            let (busy, faulted) = (busy.summary(), faulted.summary());
            let (busy_ns, faulted_ns, is_cut) = (busy.union, faulted.union, busy.is_cut || faulted.is_cut);
            MigrationReport { buffer, busy_ns, faulted_ns, is_cut, ..report.clone() }
        });
        reports.collect()
    }

    /// Returns which buffers should be prefetched: the named ones, and all memory of a device of which none has a name.
    pub(crate) fn advice(&self) -> impl Iterator<Item = Advice> {
        let reports: Vec<_> = self.reports().into_iter().filter(is_told).collect();
        let is_named = |device| reports.iter().any(|it| it.device == device && it.buffer.is_some());
        let told = reports.iter().filter(|it| it.buffer.is_some() || !is_named(it.device));
        told.filter_map(|report| self.prefetch(report)).collect::<Vec<_>>().into_iter()
    }

    fn prefetch(&self, report: &MigrationReport) -> Option<Advice> {
        let MigrationReport { device, bytes_by_faults, faults, faulted_ns, .. } = *report;
        let all = self.totals.get(&(device, None))?;
        // What migrated without a fault tells how long a prefetch takes.
        let (rate, prefetched) =
            (all.prefetched.summary(), all.report.bytes_to_device.saturating_sub(all.report.bytes_by_faults));
        let would_take = (prefetched >= LEAST && rate.union > 0 && !rate.is_cut)
            .then(|| rate.union as f64 * (bytes_by_faults as f64 / prefetched as f64));
        let saving_ns = would_take.map(|time| faulted_ns.saturating_sub(time as u64));
        let is_worth = saving_ns.is_none_or(|saving| saving as f64 >= LEAST_SAVING * faulted_ns as f64);
        is_worth.then(|| Advice {
            kind: AdviceKind::Prefetch { device, groups: faults },
            buffer: report.buffer.clone(),
            path: None,
            method: None,
            transfers: 0,
            bytes: bytes_by_faults,
            share: 0.0,
            took_ns: faulted_ns,
            whole_ns: all.faulted.summary().whole,
            saving_ns,
            basis: Some(AdviceBasis::Engines),
            simulated: all.is_simulated,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: DeviceId = DeviceId::Cuda(0);
    const MIB: u64 = 1 << 20;

    /// Adds a migration to the device that takes so long for each MiB.
    fn migrate(to: &mut Migrations, address: u64, mib: u64, by_fault: bool, (begin, of_one): (i64, i64)) {
        let (bytes, end) = (mib * MIB, begin + of_one * mib as i64);
        let migration = Migration { device: GPU, to_device: true, by_fault, address, bytes, begin, end };
        to.migrated(&migration, (begin, end));
    }

    fn fault(to: &mut Migrations, device: Option<DeviceId>, address: u64, served: Option<(i64, i64)>) {
        to.faulted(&PageFaults { device, address, count: 1, served }, served, true);
    }

    #[test]
    fn buffers_whose_accesses_waited_for_page_faults_are_advised_to_be_prefetched() {
        let mut found = Migrations::default();
        assert!(found.name("weights".to_owned(), 0..64 * MIB));
        assert_eq!(found.advice().count(), 0);
        migrate(&mut found, 0, 32, true, (1000, 100));
        fault(&mut found, Some(GPU), 0, Some((1000, 4000)));
        fault(&mut found, Some(GPU), 8 * MIB, Some((3000, 5000)));
        fault(&mut found, None, 0, None);
        let [unknown] = &found.advice().collect::<Vec<_>>()[..] else {
            panic!("all memory has the same cause")
        };
        assert_eq!((unknown.bytes, unknown.took_ns, unknown.saving_ns), (32 * MIB, 4000, None));
        assert_eq!(
            unknown.to_string(),
            "accesses of cuda:0 to \"weights\" waited 4.0 µs for 2 groups of page faults, of 32 MiB; \
             prefetch it before; what that saves is not known, by records of the engines (simulated)"
        );
        // At the rate of a prefetch, of another buffer, 32 MiB would take 1,600 ns.
        migrate(&mut found, 64 * MIB, 64, false, (10_000, 50));
        let [known] = &found.advice().collect::<Vec<_>>()[..] else { panic!() };
        assert_eq!(known.saving_ns, Some(2400));
        assert!(known.to_string().contains("prefetched before, they would take 2.4 µs less"), "{known}");
        let of = |device, name: Option<&str>| {
            found
                .reports()
                .into_iter()
                .find(|it| it.device == device && it.buffer.as_deref() == name)
                .unwrap()
        };
        let (all, host) = (of(GPU, None), of(DeviceId::Cpu, Some("weights")));
        assert_eq!((all.faults, all.faulted_ns, all.bytes_by_faults), (2, 4000, 32 * MIB));
        assert_eq!((host.faults, host.faulted_ns), (1, 0), "not known");
    }

    #[test]
    fn name_is_refused_only_while_that_many_are_in_use() {
        let mut found = Migrations::default();
        // One buffer, allocated anew each time.
        assert!((0..=NAMED as u64).all(|time| found.name("cache".to_owned(), time * MIB..(time + 1) * MIB)));
        // Others, of which nothing migrates, in a place that the next one takes.
        assert!((0..2 * NAMED).all(|number| found.name(format!("buffer {number}"), 0..MIB)));
        migrate(&mut found, 0, 1, false, (0, 1));
        let names: Vec<_> = found.reports().into_iter().filter_map(|report| report.buffer).collect();
        assert_eq!(names, [format!("buffer {}", 2 * NAMED - 1)]);
        let mut full = Migrations::default();
        assert!((0..NAMED as u64).all(|at| full.name(format!("buffer {at}"), at * MIB..(at + 1) * MIB)));
        assert!(!full.name("one more".to_owned(), 0..MIB / 2));
        assert_eq!(full.name_of(0), Some("buffer 0"), "it keeps its name");
    }

    #[test]
    fn bytes_of_a_place_are_those_of_the_last_buffer_that_was_named_there() {
        let mut found = Migrations::default();
        assert!(found.name("storage".to_owned(), 0..64 * MIB));
        migrate(&mut found, 0, 64, false, (0, 1));
        assert!(found.name("tensor".to_owned(), 8 * MIB..16 * MIB));
        migrate(&mut found, 0, 64, false, (100, 1));
        assert!(found.name("tensor".to_owned(), 8 * MIB..16 * MIB));
        migrate(&mut found, 8 * MIB, 8, false, (200, 1));
        let told = found.reports().into_iter().map(|it| (it.to_device, it.bytes_to_device / MIB));
        assert_eq!(told.collect::<Vec<_>>(), [(3, 136), (2, 64 + 56), (1, 8), (1, 8)]);
        assert_eq!(
            [0, 8 * MIB, 16 * MIB, 64 * MIB].map(|at| found.name_of(at)),
            [Some("storage"), Some("tensor"), Some("storage"), None]
        );
    }

    #[test]
    fn faults_that_a_prefetch_would_not_beat_or_of_few_bytes_have_no_advice() {
        let mut found = Migrations::default();
        migrate(&mut found, 0, 8, true, (1000, 100));
        fault(&mut found, Some(GPU), 0, Some((1000, 9000)));
        assert_eq!(found.advice().count(), 0, "8 MiB");
        let mut found = Migrations::default();
        migrate(&mut found, 0, 32, false, (0, 100));
        migrate(&mut found, 32 * MIB, 32, true, (5000, 100));
        fault(&mut found, Some(GPU), 32 * MIB, Some((5000, 8200)));
        assert_eq!(found.advice().count(), 0, "as fast as the prefetch");
        let mut prefetched = Migrations::default();
        migrate(&mut prefetched, 0, 64, false, (0, 100));
        assert_eq!(prefetched.advice().count(), 0);
    }
}
