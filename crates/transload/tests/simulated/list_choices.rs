//! Lists on planted machines, by virtual time: a calibration leads to the faster of copy engines and copy kernel.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use transload::{
    CrossBackendTransferManager, DeviceId, ErrorKind, MemoryKind, RawBuffer, TransferMethod,
    backend::{CalibrationOptions, CostBasis, ListWay, Place, TransferPath},
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig},
};
use transload_cuda_sim::{SimDevice, SimDeviceBuilder};
use transload_cuda_sys::trace;

type Pair = (RawBuffer, RawBuffer);

const LARGEST: usize = 1 << 20;
/// Bytes of the largest list.
const LIST: usize = 4 << 20;
/// Number of pieces and their length: none is measured by a calibration.
const SHAPES: [(usize, usize); 8] =
    [(1, 700), (3, 300), (10, 8000), (100, 24 << 10), (700, 3000), (40, 100_000), (9, 400_000), (2, 2 << 20)];

struct Machine {
    sim: SimDevice,
    manager: CrossBackendTransferManager,
}

impl Machine {
    fn of(plant: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder) -> Self {
        let machine = Self::uncalibrated(plant);
        machine.manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        machine.calibrated()
    }

    /// Without the host, whose paths take most of a calibration.
    fn within_device(plant: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder) -> Self {
        Self::uncalibrated(plant).calibrated()
    }

    fn uncalibrated(plant: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder) -> Self {
        transload_cuda_sim::install().unwrap();
        let sim = plant(SimDevice::builder().total_memory(64 << 20)).build();
        let manager = CrossBackendTransferManager::builder().refinement(false).build();
        let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
        manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
        Self { sim, manager }
    }

    fn calibrated(self) -> Self {
        let sim = self.sim;
        // Short kernels: a poll takes as long as some of them in virtual time, before copies go on.
        let options = CalibrationOptions::new().largest(LARGEST as u64).budget(Duration::from_secs(60));
        let options = options.kernel(Duration::from_micros(5));
        let found = self.manager.calibrate(&options.clock(move || sim.now())).unwrap();
        assert_eq!(found.unfinished, []);
        self
    }

    fn allocate(&self, kind: MemoryKind) -> RawBuffer {
        let device = DeviceId::Cuda(self.sim.ordinal());
        self.manager.allocate_for(device, kind, LIST).unwrap()
    }

    /// Returns the way that is chosen for each shape after `exclusive`, and asserts that no other is faster.
    fn ways(&self, from: MemoryKind, to: MemoryKind) -> Vec<Option<ListWay>> {
        let (from, to) = (self.allocate(from), self.allocate(to));
        let way = |(count, length): (usize, usize)| {
            let part = |of: &RawBuffer, at: usize| of.slice(at * length..(at + 1) * length).unwrap();
            // In order on the host, and scattered on the device.
            let is_down = to.place().device.is_cpu();
            let pair = |at: usize| {
                let there = (1 + at * 7919) % count;
                let (at, there) = if is_down { (there, at) } else { (at, there) };
                (part(&from, at), part(&to, there))
            };
            let pairs: Vec<Pair> = (0..count).map(pair).collect();
            // Other threads advance the virtual time a little: the least counts.
            let time = |way: ListWay| {
                let run = |_| {
                    let begun = self.sim.now();
                    let copied = self.manager.copy_many(&pairs).way(way).wait();
                    // Within the device there is no host memory of which stretches could be copied.
                    let has_way = way != ListWay::ThroughDevice || from.place() != to.place();
                    let refused = copied.map_err(|failed| failed.error.kind()).err();
                    assert_eq!(refused, (!has_way).then_some(ErrorKind::Unsupported));
                    if has_way { (self.sim.now() - begun).as_secs_f64() } else { f64::INFINITY }
                };
                (0..3).map(run).fold(f64::INFINITY, f64::min)
            };
            let times = ListWay::ALL.map(|way| (way, time(way)));
            let list = (count as u64, length as u64);
            let plan = self.manager.plan_many(from.place(), to.place(), list, true).unwrap();
            let best = times.iter().map(|(_, time)| *time).fold(f64::INFINITY, f64::min);
            let way = plan.way.unwrap_or(ListWay::OneByOne);
            let chosen = times.iter().find(|(of, _)| *of == way).unwrap().1;
            assert!(chosen <= 1.1 * best + 4e-6, "{count} × {length}: {chosen} of {times:?}: {plan}");
            assert_eq!(plan.basis, CostBasis::Measured, "{plan}");
            plan.way
        };
        SHAPES.map(way).to_vec()
    }
}

const ENGINE: Option<ListWay> = Some(ListWay::CopyEngine);
const KERNEL: Option<ListWay> = Some(ListWay::CopyKernel);
const THROUGH: Option<ListWay> = Some(ListWay::ThroughDevice);
const ENDS: [(MemoryKind, MemoryKind); 2] =
    [(MemoryKind::Pinned, MemoryKind::Device), (MemoryKind::Device, MemoryKind::Mapped)];

#[test]
fn engines_slow_per_piece_leave_short_pieces_to_the_kernel() {
    let machine = Machine::of(|sim| sim.batch_piece_ns(1700).kernel_host_link(Some(40.0)));
    for (from, to) in ENDS {
        let ways = machine.ways(from, to);
        // Two long pieces go by engines, as a list or one by one.
        assert!(!ways[3..5].contains(&ENGINE) && ![KERNEL, THROUGH].contains(&ways[7]), "{ways:?}");
    }
}

#[test]
fn slow_kernel_leaves_all_but_the_least_to_the_engines() {
    let machine = Machine::of(|sim| sim.kernel_host_link(Some(4.0)));
    for (from, to) in ENDS {
        assert!(!machine.ways(from, to)[2..].contains(&KERNEL));
    }
}

#[test]
fn links_decide_where_pieces_cost_the_same() {
    // Bytes are all that counts on the slow link, and pieces on the fast one.
    let slow = Machine::of(|sim| sim.host_link(1.0).batch_piece_ns(100));
    slow.ways(MemoryKind::Pinned, MemoryKind::Device);
    let fast = Machine::of(|sim| sim.host_link(500.0).batch_piece_ns(1700).kernel_host_link(Some(40.0)));
    let ways = fast.ways(MemoryKind::Pinned, MemoryKind::Device);
    assert!(ways[4] != ENGINE && !ways[5..].contains(&KERNEL), "{ways:?}");
}

#[test]
fn device_local_lists_are_chosen_by_their_time() {
    // The engine begins a copy soon, or takes a while for each piece.
    for (latency, piece, kernel) in [(1, 0, false), (6, 1000, true)] {
        let latency = Duration::from_micros(latency);
        let machine = Machine::within_device(|sim| sim.latency(latency).batch_piece_ns(piece));
        assert_eq!(machine.ways(MemoryKind::Device, MemoryKind::Device)[4] == KERNEL, kernel);
    }
}

#[test]
fn few_pieces_that_a_queue_copies_one_by_one_have_times_of_their_own() {
    let machine = Machine::within_device(|sim| sim.latency(Duration::from_nanos(1900)));
    let there = Place::new(DeviceId::Cuda(machine.sim.ordinal()), MemoryKind::Device);
    // Three pieces take the engine three times as long as one, and four as long as one.
    let way = |pieces| machine.manager.plan_many(there, there, (pieces, 8000), true).unwrap().way;
    assert_eq!([3, 4].map(way), [KERNEL, ENGINE]);
}

#[test]
fn lists_within_a_device_are_measured_beyond_its_caches() {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().total_memory(1 << 30).build();
    let manager = CrossBackendTransferManager::builder().refinement(false).build();
    let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
    manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
    let options = CalibrationOptions::new().largest(64 << 20).budget(Duration::from_secs(60));
    let found = manager.calibrate(&options.clock(move || sim.now())).unwrap();
    let longest =
        found.lists.iter().flat_map(|list| &list.times).map(|list| list.pieces * list.time.bytes).max();
    assert_eq!(longest, Some(64 << 20));
}

#[test]
fn lists_for_which_little_time_is_left_are_measured_at_fewer_lengths() {
    transload_cuda_sim::install().unwrap();
    let lengths_within = |budget: Duration| {
        let sim = SimDevice::builder().total_memory(1 << 30).build();
        let manager = CrossBackendTransferManager::builder().refinement(false).build();
        let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
        manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
        let options = CalibrationOptions::new().largest(16 << 20).budget(budget);
        let found = manager.calibrate(&options.clock(move || sim.now())).unwrap();
        let mut lengths: Vec<_> =
            found.lists.iter().take(1).flat_map(|list| &list.times).map(|list| list.time.bytes).collect();
        lengths.dedup();
        assert_eq!(found.unfinished.is_empty(), !lengths.is_empty());
        lengths
    };
    let all = lengths_within(Duration::from_secs(60));
    assert!(all.len() > 3 && all.is_sorted(), "{all:?}");
    let budgets = (0..30).map(|step| Duration::from_millis(2).mul_f64(1.25_f64.powi(step)));
    let found = budgets.map(lengths_within).find(|found| !found.is_empty()).unwrap();
    assert_eq!((found.first(), found.last()), (all.first(), all.last()));
    assert!(found.len() < all.len(), "{found:?}");
}

/// A manager of a device with so much memory, and options that measure by the virtual time.
fn unmeasured(
    sim: SimDevice,
    config: CudaBackendConfig,
) -> (CrossBackendTransferManager, CalibrationOptions) {
    let manager = CrossBackendTransferManager::builder().refinement(false).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(CudaBackend::open(&config.with_devices([sim.ordinal()])).unwrap()).unwrap();
    let options = CalibrationOptions::new().budget(Duration::from_secs(60)).kernel(Duration::from_micros(5));
    (manager, options.clock(move || sim.now()))
}

/// Else the last ones would keep what was known of another machine, where the first took long.
#[test]
fn lists_of_every_path_are_measured_before_any_is_measured_further() {
    transload_cuda_sim::install().unwrap();
    let mut partly = 0;
    for step in 0..5 {
        let sim = SimDevice::builder().total_memory(1 << 30).build();
        let (manager, options) = unmeasured(sim, CudaBackendConfig::default());
        let budget = Duration::from_millis(20).mul_f64(1.5_f64.powi(step));
        let found = manager.calibrate(&options.largest(4 << 20).budget(budget)).unwrap();
        let of = |path, exclusive| -> Vec<_> {
            found.lists.iter().filter(|list| (list.path, list.exclusive) == (path, exclusive)).collect()
        };
        let lengths = |path| {
            let mut lengths: Vec<_> =
                of(path, true).iter().flat_map(|list| &list.times).map(|list| list.time.bytes).collect();
            lengths.sort_unstable();
            lengths.dedup();
            lengths.len()
        };
        // Those within the device have a time of their own.
        let measured = found.paths.iter().map(|measured| measured.path);
        let paths: Vec<_> =
            measured.filter(|path| path.src.device.is_cpu() != path.dst.device.is_cpu()).collect();
        let is_further = |path: &TransferPath| lengths(*path) > 2 || !of(*path, false).is_empty();
        if paths.iter().any(is_further) {
            assert!(
                paths.len() == 6 && paths.iter().all(|path| lengths(*path) >= 2),
                "{budget:?}: {:?}",
                found.unfinished
            );
            let is_unfinished = |path: &TransferPath| found.unfinished.iter().any(|it| it.path == *path);
            partly += usize::from(paths.iter().any(|path| is_unfinished(path) || lengths(*path) < 5));
        }
    }
    assert!(partly > 0, "no budget was too short for all");
}

/// Few lists would replace the many of an earlier calibration.
#[test]
fn path_whose_lists_are_cancelled_has_none_of_them() {
    transload_cuda_sim::install().unwrap();
    let cancelled_at = |share: Option<f64>| {
        let sim = SimDevice::builder().total_memory(1 << 30).build();
        let (manager, options) = unmeasured(sim, CudaBackendConfig::default());
        let seen = Arc::new(AtomicUsize::new(0));
        let (calls, last) = (Arc::clone(&seen), share.map(|share| (share * 1e9) as usize));
        let options = options.largest(1 << 20).progress(move |at| {
            calls.fetch_add(1, Ordering::Relaxed);
            let is_over = last.is_some_and(|last| at.done * 1_000_000_000 >= at.total * last);
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (manager.calibrate(&options).unwrap(), seen.load(Ordering::Relaxed))
    };
    let (whole, all) = cancelled_at(None);
    assert_eq!(whole.unfinished, []);
    for share in [0.6, 0.8, 0.95] {
        let (found, seen) = cancelled_at(Some(share));
        assert!(seen < all && !found.unfinished.is_empty(), "{share}");
        for list in found.lists.iter().filter(|list| list.exclusive) {
            assert!(found.unfinished.iter().all(|unfinished| unfinished.path != list.path), "{share}");
            // Each machine has a number of its own.
            let key = |list: &transload::backend::ListCalibration| {
                let kinds = [list.path.src, list.path.dst].map(|place| (place.kind, place.device.is_cpu()));
                (kinds, list.way, list.exclusive)
            };
            let wanted = whole.lists.iter().find(|other| key(other) == key(list)).unwrap();
            assert_eq!(list.times.len(), wanted.times.len(), "{share}: {}", list.path);
        }
    }
}

#[test]
fn calibration_has_none_of_its_memory_registered() {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().total_memory(1 << 30).build();
    let (manager, options) = unmeasured(sim, CudaBackendConfig::default());
    let trace = trace::start();
    let options = options.largest(32 << 20);
    // Where threads of other tests keep the processors busy, polls advance the virtual time further.
    let budgets = [500, 4_000, 60_000].map(Duration::from_millis);
    let mut all =
        budgets.into_iter().map(|budget| manager.calibrate(&options.clone().budget(budget)).unwrap());
    assert!(all.any(|found| found.unfinished.is_empty()));
    manager.drain().unwrap();
    let (calls, this) = (trace.calls(), thread::current().id());
    // By the executor: this thread registers what it allocates as pinned memory. Others test beside it, with other lengths.
    let is_of_calibration = |call: &&trace::Call| {
        call.name == "cuMemHostRegister_v2" && call.thread != this && call.arguments[1] == 16 << 20
    };
    let registered: Vec<_> = calls.iter().filter(is_of_calibration).collect();
    assert!(registered.is_empty(), "pageable memory is measured as it is: {registered:?}");
}

#[test]
fn pageable_memory_is_measured_without_staging_where_no_memory_is_pinned() {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().total_memory(1 << 30).build();
    let (manager, options) = unmeasured(sim, CudaBackendConfig::default().with_pinned_limit(2 << 20));
    let found = manager.calibrate(&options.largest(4 << 20)).unwrap();
    let pageable = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    let there = Place::new(DeviceId::Cuda(sim.ordinal()), MemoryKind::Device);
    for path in [TransferPath::new(pageable, there), TransferPath::new(there, pageable)] {
        let of_path = found.paths.iter().find(|measured| measured.path == path).expect("it is measured");
        let methods: Vec<_> = of_path.methods.iter().map(|curve| curve.method).collect();
        assert_eq!(methods, [TransferMethod::DirectCopy]);
    }
}

#[test]
fn calibration_too_short_for_lists_leaves_their_costs() {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().total_memory(1 << 30).build();
    let (manager, options) = unmeasured(sim, CudaBackendConfig::default());
    let _long = manager.calibrate(&options.clone().largest(1 << 20)).unwrap();
    let measured = manager.list_costs();
    assert!(measured.iter().any(|(_, basis)| *basis == CostBasis::Measured));
    let _short = manager.calibrate(&options.largest(1 << 10)).unwrap();
    assert_eq!(manager.list_costs(), measured);
}

/// By the built-in table, which has the time of one that is long enough for the rate of staging.
#[test]
fn long_lists_from_a_device_to_pageable_memory_are_one_staged_transfer() {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().build();
    let (manager, _) = unmeasured(sim, CudaBackendConfig::default());
    let there = Place::new(DeviceId::Cuda(sim.ordinal()), MemoryKind::Device);
    let pageable = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    for exclusive in [false, true] {
        let plan = manager.plan_many(there, pageable, (300, 1 << 20), exclusive).unwrap();
        assert_eq!(
            (plan.method, plan.way),
            (TransferMethod::HostStaged, Some(ListWay::CopyEngine)),
            "{plan}"
        );
    }
}

#[test]
fn plan_of_few_or_long_pieces_goes_through_no_device_memory() {
    let machine = Machine::of(|sim| sim.batch_piece_ns(20_000).kernel_host_link(Some(1.0)));
    let (near, far) = (machine.allocate(MemoryKind::Pinned), machine.allocate(MemoryKind::Device));
    let mut planned = Vec::new();
    for (pieces, bytes) in SHAPES.into_iter().chain([(3, 1 << 20), (3, 4096), (4, 4096), (4, 1 << 20)]) {
        let plan = machine
            .manager
            .plan_many(near.place(), far.place(), (pieces as u64, bytes as u64), true)
            .unwrap();
        let part = |of: &RawBuffer, at: usize| of.slice(at * bytes..(at + 1) * bytes).unwrap();
        let pairs: Vec<Pair> = (0..pieces).map(|at| (part(&near, at), part(&far, pieces - 1 - at))).collect();
        let report = machine.manager.copy_many(&pairs).exclusive().wait().unwrap();
        let is_planned = plan.way == Some(ListWay::ThroughDevice);
        assert_eq!(is_planned, report.groups[0].through_device, "{pieces} of {bytes} bytes: {plan}");
        planned.push(is_planned);
    }
    assert!(planned.contains(&true) && planned.contains(&false), "{planned:?}");
}

#[test]
fn beside_kernels_lists_go_by_what_was_measured_there() {
    // Alone, the kernel is somewhat faster than the engine, or several times; beside other kernels it delays them by its own time.
    for (piece, beside) in [(4500, TransferMethod::DirectCopy), (20_000, TransferMethod::ZeroCopy)] {
        let expected =
            [(TransferMethod::ZeroCopy, false), (beside, false), (TransferMethod::DirectCopy, true)];
        // How far a poll advances kernels before copies depends on the threads of this machine: a calibration may see twice the time.
        let found: Vec<_> =
            (0..20).map(|_| chosen_beside_kernels(piece)).take_while(|it| *it != expected).collect();
        assert!(found.len() < 20, "{piece} ns a piece: {found:?}");
    }
}

/// Calibrates a machine whose engine takes so long for a piece. Returns how lists of every second piece of the host's memory go, exclusive and
/// not, and one of all pieces, of which engines copy long stretches.
fn chosen_beside_kernels(piece: u64) -> [(TransferMethod, bool); 3] {
    let machine = Machine::of(|sim| sim.batch_piece_ns(piece).kernel_host_link(Some(1.0)));
    let (near, far) = (machine.allocate(MemoryKind::Pinned), machine.allocate(MemoryKind::Device));
    let copied = |step: usize, exclusive: bool| {
        let part = |of: &RawBuffer, at: usize| of.slice(at * 4096..(at + 1) * 4096).unwrap();
        let pairs: Vec<Pair> = (0..128).map(|at| (part(&near, step * at), part(&far, 127 - at))).collect();
        let copy = machine.manager.copy_many(&pairs);
        let copy = if exclusive { copy.exclusive() } else { copy };
        let report = copy.wait().unwrap();
        (report.groups[0].method, report.groups[0].through_device)
    };
    let plan =
        |exclusive| machine.manager.plan_many(near.place(), far.place(), (128, 4096), exclusive).unwrap();
    assert!([true, false].into_iter().all(|exclusive| plan(exclusive).basis == CostBasis::Measured));
    let beside = machine.manager.list_costs().into_iter().filter(|(cost, _)| !cost.exclusive);
    let beside: Vec<_> = beside.collect();
    assert!(!beside.is_empty() && beside.iter().all(|(_, basis)| *basis == CostBasis::Measured));
    [copied(2, true), copied(2, false), copied(1, false)]
}

#[test]
fn way_that_a_path_does_not_have_is_refused() {
    transload_cuda_sim::install().unwrap();
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    let [first, second] = [1, 2].map(|_| manager.allocate(host.device, host.kind, 64).unwrap());
    for way in ListWay::ALL.into_iter().filter(|way| *way != ListWay::OneByOne) {
        let pairs = vec![(first.clone(), second.clone())];
        let failed = manager.copy_many(pairs).way(way).wait().unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::Unsupported, "{failed}");
    }
}
