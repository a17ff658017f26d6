//! Links that were idle while copies to use them were queued: by the engines' exact spans.

use std::collections::BTreeMap;

use transload_core::{DeviceId, TransferPath};

use crate::{Direction, busy::BusyTime};

/// From how long a wait on a copy counts as queued: longer than a launch takes.
const QUEUED_FROM_NS: i64 = 100_000;

/// Copies of a path that were queued.
#[derive(Default)]
pub(crate) struct Queued {
    pub(crate) copies: u64,
    pub(crate) bytes: u64,
    /// Sum of their exact spans.
    pub(crate) took_ns: u64,
    pub(crate) is_simulated: bool,
    /// When the link was in use, or any of them was queued.
    used_or_wanted: BusyTime,
}

/// Times are those of the host's clock.
#[derive(Default)]
pub(crate) struct IdleLinks {
    /// When the copy engine of a direction worked, for whomever.
    used: BTreeMap<(DeviceId, Direction), BusyTime>,
    queued: BTreeMap<(DeviceId, TransferPath), Queued>,
}

/// How long a link was idle while copies were queued.
pub(crate) struct IdleLink<'a> {
    pub(crate) device: DeviceId,
    pub(crate) path: TransferPath,
    pub(crate) queued: &'a Queued,
    pub(crate) idle_ns: u64,
    /// From the first to the last copy of the direction.
    pub(crate) whole_ns: u64,
}

impl IdleLinks {
    /// Takes a span in which a copy engine worked.
    pub(crate) fn used(&mut self, device: DeviceId, direction: Direction, (begin, end): (i64, i64)) {
        self.used.entry((device, direction)).or_default().add(begin, end);
        let paths = self
            .queued
            .iter_mut()
            .filter(|((of, path), _)| *of == device && link(device, *path) == direction);
        paths.for_each(|(_, queued)| queued.used_or_wanted.add(begin, end));
    }

    /// Takes a copy by a copy engine that was enqueued at `enqueued` and ran in `span`. One that waited briefly was not queued.
    pub(crate) fn copied(
        &mut self,
        (device, is_simulated): (DeviceId, bool),
        (path, bytes): (TransferPath, u64),
        enqueued: i64,
        (begin, end): (i64, i64),
    ) {
        if begin - enqueued < QUEUED_FROM_NS {
            return;
        }
        let used = self.used.get(&(device, link(device, path)));
        let queued = self.queued.entry((device, path)).or_insert_with(|| Queued {
            used_or_wanted: used.cloned().unwrap_or_default(),
            is_simulated,
            ..Queued::default()
        });
        queued.copies += 1;
        queued.bytes = queued.bytes.saturating_add(bytes);
        queued.took_ns = queued.took_ns.saturating_add((end - begin).max(0).cast_unsigned());
        queued.used_or_wanted.add(enqueued, begin);
    }

    /// Returns the links of which that is known.
    pub(crate) fn idle(&self) -> impl Iterator<Item = IdleLink<'_>> {
        self.queued.iter().filter_map(|((device, path), queued)| {
            let used = self.used.get(&(*device, link(*device, *path)))?.summary();
            let both = queued.used_or_wanted.summary();
            let is_known = !used.is_cut && !both.is_cut;
            let idle_ns = both.union.saturating_sub(used.union);
            is_known.then_some(IdleLink {
                device: *device,
                path: *path,
                queued,
                idle_ns,
                whole_ns: both.whole,
            })
        })
    }
}

/// Returns the direction in which records have the copies of a path: between two devices they are like those within one.
fn link(device: DeviceId, path: TransferPath) -> Direction {
    let is_between = !path.src.device.is_cpu() && !path.dst.device.is_cpu();
    match is_between && !transload_core::mutant!("profiler/links-between-devices") {
        true => Direction::Within,
        false => Direction::of_path(device, path),
    }
}

#[cfg(test)]
mod tests {
    use transload_core::{MemoryKind, Place};

    use super::*;

    #[test]
    fn link_is_idle_while_copies_are_queued_and_none_runs() {
        let device = DeviceId::Other("gpu", 0);
        let place = |device, kind| Place::new(device, kind);
        let path =
            TransferPath::new(place(DeviceId::Cpu, MemoryKind::Pinned), place(device, MemoryKind::Device));
        let mut links = IdleLinks::default();
        let up = Direction::ToDevice;
        let ms = |from: i64, to: i64| (from * 1_000_000, to * 1_000_000);
        links.used(device, up, ms(0, 10));
        let copied = |links: &mut IdleLinks, enqueued: i64, span| {
            links.used(device, up, span);
            links.copied((device, false), (path, 100), enqueued, span);
        };
        // Queued from 5 to 30, of which the link is in use until 10, and another one from 15 to 20.
        copied(&mut links, 5_000_000, ms(30, 40));
        links.used(device, up, ms(15, 20));
        // Queued meanwhile, and until that one ended.
        copied(&mut links, 25_000_000, ms(40, 41));
        // Not queued.
        copied(&mut links, 49_999_000, ms(50, 60));
        links.used(device, Direction::FromDevice, ms(10, 30));
        let [IdleLink { queued, idle_ns, whole_ns, .. }] = &links.idle().collect::<Vec<_>>()[..] else {
            panic!()
        };
        assert_eq!((queued.copies, queued.bytes, queued.took_ns), (2, 200, 11_000_000));
        assert_eq!((*idle_ns, *whole_ns), (15_000_000, 60_000_000));
    }

    #[test]
    fn copies_between_two_devices_wait_for_each_other_and_for_no_download() {
        let [one, other] = [0, 1].map(|number| DeviceId::Other("gpu", number));
        let place = |device| Place::new(device, MemoryKind::Device);
        let path = TransferPath::new(place(one), place(other));
        let mut links = IdleLinks::default();
        links.used(one, Direction::FromDevice, (0, 1));
        for number in 0..4 {
            let span = (number * 1_000_000, (number + 1) * 1_000_000);
            links.used(one, Direction::Within, span);
            links.copied((one, false), (path, 100), 0, span);
        }
        let idle: Vec<_> = links.idle().map(|link| (link.queued.copies, link.idle_ns)).collect();
        assert_eq!(idle, [(3, 0)]);
    }
}
