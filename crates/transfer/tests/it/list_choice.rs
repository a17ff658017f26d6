//! The way of a list: by costs over the number of pieces and their length.

use std::time::Duration;

use transload_core::{CostBasis, DeviceId, ErrorKind, ListWay, MemoryKind, Place, TransferPath};
use transload_transfer::{
    Calibration, CalibrationOptions, CrossBackendTransferManager, ListCalibration, Unfinished,
};

use crate::{MOCK, Mock};

fn upload() -> TransferPath {
    TransferPath::new(Place::new(DeviceId::Cpu, MemoryKind::Pinned), Place::new(MOCK, MemoryKind::Device))
}

/// With a device that has copy engines and a kernel.
fn manager() -> CrossBackendTransferManager {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(Mock { in_place: Some(MOCK), ..Mock::default() }.build() as _).unwrap();
    manager
}

/// Lists of 2 and 400 pieces of 4 KiB and of 1 MiB.
fn lists(path: TransferPath, way: ListWay, nanos: fn(u64, u64) -> u64) -> ListCalibration {
    let shapes = [(2, 4096), (400, 4096), (2, 1 << 20), (400, 1 << 20)];
    let time = |(pieces, bytes): (u64, u64)| {
        let seconds = nanos(pieces, bytes) as f64 / 1e9;
        serde_json::json!({
            "pieces": pieces, "bytes": bytes, "median_seconds": seconds, "noise_seconds": 0.0, "repetitions": 5,
        })
    };
    // The mock is a third party's device, which cannot be read back.
    let mut read: ListCalibration = serde_json::from_value(serde_json::json!({
        "path": { "src": "cpu/pinned", "dst": "cuda:0/device" },
        "way": way,
        "times": shapes.map(time),
    }))
    .unwrap();
    read.path = path;
    read
}

#[test]
fn no_list_of_more_pieces_than_were_measured_one_by_one_goes_so() {
    let (manager, path) = (manager(), upload());
    let mut found = Calibration::default();
    // As if beside something that delayed the list.
    found.lists = vec![
        lists(path, ListWay::CopyEngine, |pieces, bytes| pieces * (2000 + bytes / 40)),
        lists(path, ListWay::OneByOne, |pieces, bytes| pieces * (1000 + bytes / 50)),
    ];
    manager.use_calibration(&found).unwrap();
    let way = |pieces| manager.plan_many(path.src, path.dst, (pieces, 4096), true).unwrap().way;
    assert_eq!([16, 17].map(way), [None, Some(ListWay::CopyEngine)]);
    // Not by a kernel that is slower than one by one either.
    found.lists.push(lists(path, ListWay::CopyKernel, |pieces, bytes| pieces * (1500 + bytes / 45)));
    manager.use_calibration(&found).unwrap();
    assert_eq!([16, 17].map(way), [None, Some(ListWay::CopyEngine)]);
    // What the user knows of copy engines counts.
    manager.set_list_costs(vec![found.lists[0].cost().unwrap()]);
    assert_eq!([16, 17].map(way), [None, None]);
}

#[test]
fn way_of_a_list_is_the_one_predicted_to_be_fastest() {
    let (manager, path) = (manager(), upload());
    let mut found = Calibration::default();
    // A piece takes the engine 1 µs, and the kernel a tenth of that; it has half the rate.
    found.lists = vec![
        lists(path, ListWay::CopyEngine, |pieces, bytes| 6000 + pieces * (1000 + bytes / 50)),
        lists(path, ListWay::CopyKernel, |pieces, bytes| 9000 + pieces * (100 + bytes / 25)),
    ];
    manager.use_calibration(&found).unwrap();
    let way = |list, exclusive| manager.plan_many(path.src, path.dst, list, exclusive).unwrap();
    // 3 µs and 0.02 ns a byte and piece against 0.9 µs a piece.
    for (list, fastest) in [
        ((2, 4096), ListWay::CopyEngine),
        ((8, 4096), ListWay::CopyKernel),
        ((1000, 40_000), ListWay::CopyKernel),
        ((1000, 50_000), ListWay::CopyEngine),
        ((100_000, 512), ListWay::CopyKernel),
        ((3, 1 << 30), ListWay::CopyEngine),
    ] {
        let plan = way(list, true);
        assert_eq!((plan.way, plan.basis), (Some(fastest), CostBasis::Measured), "{plan}");
        // Somebody may compute on the device.
        let beside = way(list, false);
        assert_eq!(beside.way, Some(ListWay::CopyEngine), "{beside}");
        let says = beside.to_string().contains("faster alone, but waits for other kernels: copy kernel");
        assert_eq!(says, fastest == ListWay::CopyKernel, "{beside}");
    }
    // Between measured lists and beyond them.
    for (pieces, bytes) in [(4, 4096), (100, 4096), (400, 200_000), (4000, 1 << 20), (40, 4 << 20)] {
        let predicted = way((pieces, bytes), false).predicted.as_nanos() as f64;
        let exact = (6000 + pieces * (1000 + bytes / 50)) as f64;
        assert!((0.96..=1.01).contains(&(predicted / exact)), "{pieces} × {bytes}: {predicted}, {exact}");
    }
    // The user knows better.
    let mut mine = found.list_costs();
    mine[1].model = mine[0].model.clone();
    manager.set_list_costs(mine);
    manager.use_calibration(&found).unwrap();
    let plan = way((1000, 4096), true);
    assert_eq!((plan.way, plan.basis), (Some(ListWay::CopyEngine), CostBasis::User), "{plan}");
    // More than there can be.
    let most = way((u64::MAX, u64::MAX), true);
    assert!(most.predicted > Duration::from_secs(1 << 40), "{most}");
    let none = manager.plan_many(path.src, path.dst, (0, 4096), true).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn few_pieces_go_one_by_one_if_that_was_measured_to_be_faster() {
    let (manager, path) = (manager(), upload());
    let mut found = Calibration::default();
    found.lists = vec![
        lists(path, ListWay::CopyEngine, |pieces, bytes| 9000 + pieces * (1000 + bytes / 50)),
        lists(path, ListWay::OneByOne, |pieces, bytes| pieces * (3000 + bytes / 50)),
    ];
    manager.use_calibration(&found).unwrap();
    for (list, way, nanos) in [((2, 4096), None, 6162), ((400, 4096), Some(ListWay::CopyEngine), 441_400)] {
        let plan = manager.plan_many(path.src, path.dst, list, false).unwrap();
        assert_eq!((plan.way, plan.basis), (way, CostBasis::Measured), "{plan}");
        assert!(plan.predicted.as_nanos().abs_diff(nanos) < 100, "{plan}");
    }
}

#[test]
fn kernel_copies_unified_memory_only_if_exclusive() {
    let (manager, pinned) = (manager(), upload().src);
    let unified = Place::new(MOCK, MemoryKind::Unified);
    for (src, dst) in [(pinned, unified), (unified, pinned)] {
        let way = |exclusive| manager.plan_many(src, dst, (1000, 4096), exclusive).unwrap().way;
        assert_eq!([false, true].map(way), [None, Some(ListWay::CopyKernel)]);
    }
}

#[test]
fn lists_within_the_host_have_no_way() {
    let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    let (manager, _backend) = crate::beside_cpu();
    let plan = manager.plan_many(host, host, (1000, 4096), true).unwrap();
    assert_eq!((plan.way, plan.alternatives.len()), (None, 0));
    assert!(plan.to_string().contains("by DirectCopy, host threads: about "), "{plan}");
}

#[test]
fn lists_that_can_be_no_measurement_are_refused() {
    let path = upload();
    let changes: [fn(&mut ListCalibration); 11] = [
        |list| list.times.clear(),
        |list| list.times.truncate(1),
        |list| list.times[1].pieces = 2,
        |list| list.times[1].pieces = 0,
        |list| list.times[1].pieces = u64::MAX,
        |list| (list.times[1].pieces, list.times[1].time.bytes) = (1 << 30, 1 << 40),
        |list| list.times[1].time.bytes = 0,
        |list| list.times[1].time.bytes = u64::MAX,
        |list| list.times[1].time.median = Duration::ZERO,
        |list| list.times[1].time.median = Duration::MAX,
        |list| list.times = list.times.repeat(65),
    ];
    for change in changes {
        let mut damaged = Calibration::default();
        let mut list = lists(path, ListWay::CopyKernel, |pieces, _| pieces);
        change(&mut list);
        damaged.lists.push(list);
        let other = CrossBackendTransferManager::new();
        assert_eq!(other.use_calibration(&damaged).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert!(other.list_costs().is_empty(), "nothing of it is used");
    }
}

#[test]
fn unmeasured_lists_keep_an_earlier_calibration() {
    let (mut earlier, mut later) = (Calibration::default(), Calibration::default());
    let engine = |nanos| lists(upload(), ListWay::CopyEngine, nanos);
    earlier.lists =
        vec![engine(|pieces, _| pieces), lists(upload(), ListWay::CopyKernel, |pieces, _| pieces)];
    later.keep_from(earlier.clone());
    assert_eq!(later.lists, earlier.lists);
    // All ways of a path were measured at once.
    let mut again = Calibration::default();
    again.lists = vec![engine(|pieces, _| 2 * pieces)];
    let new = again.clone();
    again.keep_from(earlier);
    assert_eq!(again.lists, new.lists);
}

/// Those of a path whose single copies are newer have their steps in either case.
#[test]
fn kept_lists_cost_what_they_cost_once_stored() {
    let (path, kept, stored) = (upload(), manager(), manager());
    let mut later = kept.calibrate(&CalibrationOptions::new().largest(64 << 10)).unwrap();
    later.lists.clear();
    let mut earlier = Calibration::default();
    earlier.lists = vec![lists(path, ListWay::OneByOne, |pieces, bytes| pieces * (900 + bytes / 9))];
    // Its lists were not measured in time.
    let unfinished = serde_json::json!({ "path": { "src": "cpu/pinned", "dst": "cuda:0/device" }, "lists_only": true, "reason": "budget" });
    let mut unfinished: Unfinished = serde_json::from_value(unfinished).unwrap();
    unfinished.path = path;
    later.unfinished.push(unfinished);
    kept.use_calibration(&later).unwrap();
    kept.use_kept(&later.keep_from(earlier));
    stored.use_calibration(&later).unwrap();
    let costs = |manager: &CrossBackendTransferManager| manager.list_costs();
    assert_eq!(costs(&kept), costs(&stored));
    let [(cost, _)] = &costs(&kept)[..] else { unreachable!("one list was kept") };
    assert_ne!(Some(cost.clone()), later.lists[0].cost(), "not on a line");
}

/// A file may have them in any order.
#[test]
fn order_of_measured_lists_does_not_matter() {
    let (path, manager) = (upload(), manager());
    let mut found = manager.calibrate(&CalibrationOptions::new().largest(64 << 10)).unwrap();
    found.lists = vec![lists(path, ListWay::OneByOne, |pieces, bytes| pieces * (900 + bytes / 9))];
    let sorted = found.list_costs();
    found.lists[0].times.reverse();
    assert_eq!(found.list_costs(), sorted);
    manager.use_calibration(&found).unwrap();
}

#[test]
fn lists_beside_kernels_do_not_replace_those_on_an_idle_device() {
    let engine = |exclusive| {
        let mut list = lists(upload(), ListWay::CopyEngine, |pieces, _| pieces);
        list.exclusive = exclusive;
        list
    };
    let (mut earlier, mut later) = (Calibration::default(), Calibration::default());
    earlier.lists = vec![engine(true), engine(false)];
    // The time was spent before lists on an idle device.
    later.lists = vec![engine(false)];
    later.lists[0].times[0].time.median *= 2;
    let new = later.lists[0].clone();
    later.keep_from(earlier);
    assert_eq!(later.lists, [new, engine(true)]);
}

#[test]
fn way_that_a_later_calibration_lacks_has_no_cost() {
    let (manager, path) = (manager(), upload());
    let of = |way, exclusive| {
        let mut list = lists(path, way, |pieces, _| pieces);
        list.exclusive = exclusive;
        list
    };
    let ways = |manager: &CrossBackendTransferManager| -> Vec<_> {
        manager.list_costs().iter().map(|(cost, _)| (cost.way, cost.exclusive)).collect()
    };
    let (engine, kernel) = (ListWay::CopyEngine, ListWay::CopyKernel);
    let mut earlier = manager.calibrate(&CalibrationOptions::new().largest(64 << 10)).unwrap();
    earlier.lists = vec![of(engine, true), of(kernel, true), of(engine, false), of(kernel, false)];
    manager.use_calibration(&earlier).unwrap();
    assert_eq!(ways(&manager).len(), 4);
    // The kernel cannot be loaded any more.
    let mut later = Calibration::default();
    later.lists = vec![of(engine, false)];
    manager.use_calibration(&later).unwrap();
    assert_eq!(ways(&manager), [(engine, true), (engine, false), (kernel, true)]);
    // Of one way alone no lists are measured.
    later.lists.clear();
    later.paths = earlier.paths.clone();
    later.keep_from(earlier);
    assert_eq!(later.lists, []);
    manager.use_calibration(&later).unwrap();
    assert_eq!(ways(&manager), []);
}
