//! The lists of a pair of devices: what matters most of all its paths, before any is measured further.

use std::time::Duration;

use transload_core::{MemoryKind, Place, RawBuffer, Result, TransferPath};

use super::{
    ListCalibration,
    measure::{Run, Stop, paths},
    measure_lists::{self, has_ways, of_part},
    measure_memory::shortage,
};

/// The largest buffers of lists beside kernels, in bytes.
const BESIDE: u64 = 64 << 20;

/// What is measured of the lists of all paths, one part after another: a path that lacks the first keeps what was known of another machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ListPart {
    /// The fewest lengths on an idle device.
    Fewest,
    /// Beside kernels, as most lists go.
    Beside,
    /// The other lengths on an idle device, as many as there is time for.
    Further,
}

impl ListPart {
    pub(super) const ALL: [Self; 3] = [Self::Fewest, Self::Beside, Self::Further];
}

impl Run<'_> {
    /// Measures a part of the lists of a pair of devices by buffers of up to `largest` bytes. With half of the memory free they would
    /// have `wanted`.
    pub(super) fn lists_of(
        &mut self,
        all: &[(Place, Place)],
        (largest, wanted): (&Result<u64>, u64),
        part: ListPart,
    ) {
        let mut all = all.to_vec();
        // Pinned memory stands for mapped memory, and is what lists are mostly of.
        all.sort_by_key(|(a, _)| match a.kind {
            MemoryKind::Pinned => 0,
            MemoryKind::Mapped => 1,
            _ => 2,
        });
        let singles: Vec<_> = self.calibration.paths.iter().map(|measured| measured.path).collect();
        let idle = self.calibration.lists.iter().filter(|list| list.exclusive);
        let begun: Vec<_> = idle.map(|list| list.path).collect();
        let is_measured = |path: &TransferPath| {
            let is_part = match part {
                ListPart::Fewest => true,
                ListPart::Beside => path.src.device.is_cpu() != path.dst.device.is_cpu(),
                ListPart::Further => begun.contains(path),
            };
            is_part && has_ways(self.manager, *path) && singles.contains(path)
        };
        let measured_of = |(a, b): &(Place, Place)| -> Vec<_> {
            paths(*a, *b).zip([false, true]).filter(|(path, _)| is_measured(path)).collect()
        };
        let mut left = all.iter().map(|ends| measured_of(ends).len() as u32).sum::<u32>();
        for (a, b) in &all {
            let measured = measured_of(&(*a, *b));
            if measured.is_empty() {
                continue;
            }
            let largest_of = |most: u64| match part {
                ListPart::Beside => most.min(BESIDE),
                _ => measure_lists::largest(TransferPath::new(*a, *b), most),
            };
            let mut both = None;
            for (path, turned) in measured {
                let most = measure_lists::largest(path, self.options.largest);
                let count = |part| of_part(most, part).iter().map(Vec::len).sum::<usize>();
                let done = self.done + count(part);
                let time = self.deadline.saturating_sub(self.now()) / left.max(1);
                left = left.saturating_sub(1);
                let measured = match (self.of_pinned(path, part), self.check()) {
                    (Some(known), _) => Ok(known),
                    // The path is finished, if less fine.
                    (None, Err(Stop::Budget)) if part == ListPart::Further => Ok(self.lists_begun(path)),
                    (None, Err(stop)) => Err(stop),
                    (None, Ok(())) => {
                        let both = both.get_or_insert_with(|| {
                            let both =
                                largest.clone().and_then(|largest| self.buffers(*a, *b, largest_of(largest)));
                            // The lists that were measured with more memory say more than shorter ones.
                            both.and_then(|(a, b)| shortage(&a, largest_of(wanted)).map_or(Ok((a, b)), Err))
                        });
                        match both {
                            Err(error) => Err(Stop::Failed(error.clone())),
                            Ok((a, b)) => {
                                let ends = if turned { (&*b, &*a) } else { (&*a, &*b) };
                                self.part_of(path, ends, (part, time))
                            }
                        }
                    }
                };
                if part == ListPart::Further {
                    // What is whole, or what an earlier calibration knew, replaces what was begun.
                    self.calibration.lists.retain(|list| (list.path, list.exclusive) != (path, true));
                }
                match measured {
                    Ok(lists) => {
                        let has_no_ways = part == ListPart::Fewest && lists.is_empty();
                        self.done = done + if has_no_ways { count(ListPart::Further) } else { 0 };
                        self.calibration.lists.extend(lists);
                    }
                    // It is known that it lacks something.
                    Err(_) if self.calibration.unfinished.iter().any(|it| it.path == path) => {}
                    Err(stop) => self.unfinished(path, true, &stop),
                }
            }
        }
    }

    fn part_of(
        &mut self,
        path: TransferPath,
        ends: (&RawBuffer, &RawBuffer),
        (part, time): (ListPart, Duration),
    ) -> Result<Vec<ListCalibration>, Stop> {
        let device = [path.src.device, path.dst.device].into_iter().find(|device| !device.is_cpu());
        match (part, device) {
            // Half of the time is for further lists on an idle device.
            (ListPart::Beside, Some(device)) => self.lists_beside(path, ends, (device, time / 2)),
            _ => self.lists(path, ends, (part, time)),
        }
    }

    /// Returns the lists of a path on an idle device, as far as they are measured.
    pub(super) fn lists_begun(&self, path: TransferPath) -> Vec<ListCalibration> {
        let begun = self.calibration.lists.iter().filter(|list| (list.path, list.exclusive) == (path, true));
        begun.cloned().collect()
    }

    /// Returns the lists of a path of mapped memory, if those of pinned memory were measured: to copies it is the same.
    fn of_pinned(&self, path: TransferPath, part: ListPart) -> Option<Vec<ListCalibration>> {
        let pinned = |place: Place| match place.kind {
            MemoryKind::Mapped => Place::new(place.device, MemoryKind::Pinned),
            _ => place,
        };
        let of = TransferPath::new(pinned(path.src), pinned(path.dst));
        let wanted = (of, part != ListPart::Beside);
        let known =
            self.calibration.lists.iter().filter(|list| of != path && (list.path, list.exclusive) == wanted);
        let known: Vec<_> = known.map(|list| ListCalibration { path, ..list.clone() }).collect();
        (!known.is_empty()).then_some(known)
    }
}
