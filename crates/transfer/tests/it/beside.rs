//! Calibration beside kernels on a device that the work of others holds.

use std::{
    any::Any,
    ops::ControlFlow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use transload_core::{
    DeviceId, Fence, MemoryKind, Place, Result, Timeline, TimelineId, TransferPath, next_timeline_id,
};
use transload_transfer::{CalibrationOptions, CalibrationProgress, Unfinished, UnfinishedReason};

use crate::{MOCK, Mock, gate::Gate, is_at_rest, watchdog::within, with};

/// Measures by a clock that each look advances.
fn options(
    progress: impl Fn(CalibrationProgress) -> ControlFlow<()> + Send + Sync + 'static,
) -> CalibrationOptions {
    let looks = AtomicU64::new(0);
    let clock = move || Duration::from_micros(10 * looks.fetch_add(1, Ordering::SeqCst));
    CalibrationOptions::new()
        .largest(1 << 20)
        .budget(Duration::from_millis(500))
        .clock(clock)
        .progress(progress)
}

#[test]
fn device_that_is_held_is_not_measured() {
    within("calibration of a device that is held", || {
        let (manager, backend) = with(Mock::default());
        let gate = Gate::new();
        backend.occupy_until(gate.fence());
        let found = manager.calibrate(&options(|_| ControlFlow::Continue(()))).unwrap();
        let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
        let measured: Vec<_> = found.paths.iter().map(|measured| measured.path).collect();
        assert_eq!(measured, [TransferPath::new(host, host)]);
        // Three kinds of host memory both ways, and within the device.
        assert_eq!(found.unfinished.len(), 7);
        let is_spent = |it: &Unfinished| !it.lists_only && matches!(it.reason, UnfinishedReason::Budget);
        assert!(found.unfinished.iter().all(is_spent), "{:?}", found.unfinished);
        // It holds nothing of the device.
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn lists_are_not_begun_on_a_device_that_is_held_by_then() {
    within("lists on a device that is held", || {
        let (manager, backend) = with(Mock::default());
        let gate = Gate::new();
        let [near, far] = [(DeviceId::Cpu, MemoryKind::Pageable), (MOCK, MemoryKind::Device)]
            .map(|(device, kind)| Place::new(device, kind));
        let (down, holding, until) = (TransferPath::new(far, near), Arc::clone(&backend), gate.fence());
        // The last single copies of the host.
        let found = manager.calibrate(&options(move |at| {
            if at.path == down && at.bytes == 1 << 20 {
                holding.occupy_until(until.clone());
            }
            ControlFlow::Continue(())
        }));
        let found = found.unwrap();
        let with_lists = found.unfinished.iter().filter(|unfinished| unfinished.lists_only);
        assert_eq!((with_lists.count(), found.lists.len()), (6, 0), "{:?}", found.unfinished);
        assert!(is_at_rest(&manager));
    });
}

/// Kernels that have ended, of a millisecond each.
struct Ended(TimelineId);

// SAFETY: there is no work that could touch memory.
unsafe impl Timeline for Ended {
    fn id(&self) -> TimelineId {
        self.0
    }

    fn device(&self) -> DeviceId {
        MOCK
    }

    fn reached(&self) -> u64 {
        1
    }

    fn poll(&self, _: u64) -> Result<bool> {
        Ok(true)
    }

    fn wait(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn wake_at(&self, _: u64, _: &Waker) -> bool {
        true
    }

    fn take_duration(&self, _: u64) -> Result<Option<Duration>> {
        Ok(Some(Duration::from_millis(1)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn list_that_does_not_end_ends_with_the_budget() {
    within("a list on a device that is held", || {
        let (manager, backend) = with(Mock::default());
        backend.occupy_until(Fence::new(Arc::new(Ended(next_timeline_id())), 1));
        let gate = Gate::new();
        let [near, far] = [(DeviceId::Cpu, MemoryKind::Pageable), (MOCK, MemoryKind::Device)]
            .map(|(device, kind)| Place::new(device, kind));
        let (down, closing, until) = (TransferPath::new(far, near), Arc::clone(&backend), gate.fence());
        let seen = Mutex::new(Vec::new());
        // Lists come after the single copies of all paths, those beside kernels after the first of an idle device.
        let found = manager.calibrate(&options(move |at| {
            let mut seen = seen.lock().unwrap();
            if seen.last() != Some(&at.path) {
                seen.push(at.path);
                if seen.iter().filter(|path| **path == down).count() == 3 {
                    closing.close_downloads(until.clone());
                }
            }
            ControlFlow::Continue(())
        }));
        let found = found.unwrap();
        assert_eq!(found.paths.len(), 8);
        let reason = found.unfinished.iter().find(|unfinished| unfinished.path == down).unwrap();
        assert!(reason.lists_only && reason.reason == UnfinishedReason::Budget, "{reason:?}");
        gate.open();
        assert!(is_at_rest(&manager));
    });
}
