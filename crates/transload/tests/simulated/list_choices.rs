//! Lists on planted machines, by virtual time: a calibration leads to the faster of copy engines and copy kernel.

use std::time::Duration;

use transload::{
    CrossBackendTransferManager, DeviceId, MemoryKind, RawBuffer, TransferMethod,
    backend::{CalibrationOptions, CostBasis, ListWay, Place},
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig},
};
use transload_cuda_sim::{SimDevice, SimDeviceBuilder};

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
        transload_cuda_sim::install().unwrap();
        let sim = plant(SimDevice::builder()).build();
        let manager = CrossBackendTransferManager::builder().refinement(false).build();
        manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
        manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
        let options = CalibrationOptions::new().largest(LARGEST as u64).budget(Duration::from_secs(60));
        let found = manager.calibrate(&options.clock(move || sim.now())).unwrap();
        assert_eq!(found.unfinished, []);
        Self { sim, manager }
    }

    fn allocate(&self, kind: MemoryKind) -> RawBuffer {
        let device = DeviceId::Cuda(self.sim.ordinal());
        self.manager.allocate_for(device, kind, LIST).unwrap()
    }

    /// Returns whether the kernel is chosen for each shape after `exclusive`, and asserts that no other way is faster.
    fn kernels(&self, from: MemoryKind, to: MemoryKind) -> Vec<bool> {
        let (from, to) = (self.allocate(from), self.allocate(to));
        let kernel = |(count, length): (usize, usize)| {
            let part = |of: &RawBuffer, at: usize| of.slice(at * length..(at + 1) * length).unwrap();
            let pairs: Vec<Pair> =
                (0..count).map(|at| (part(&from, at), part(&to, count - 1 - at))).collect();
            // Other threads advance the virtual time a little: the least counts.
            let time = |way: Option<ListWay>| {
                let run = |_| {
                    let begun = self.sim.now();
                    let copy = self.manager.copy_many(&pairs);
                    let copy = if let Some(way) = way { copy.way(way) } else { copy.exclusive() };
                    copy.wait().unwrap();
                    (self.sim.now() - begun).as_secs_f64()
                };
                (0..3).map(run).fold(f64::INFINITY, f64::min)
            };
            let [engine, kernel] = ListWay::ALL.map(|way| time(Some(way)));
            let list = (count as u64, length as u64);
            let plan = self.manager.plan_many(from.place(), to.place(), list, true).unwrap();
            let chosen = match plan.way {
                Some(ListWay::CopyEngine) => engine,
                Some(ListWay::CopyKernel) => kernel,
                _ => time(None),
            };
            assert!(
                chosen <= 1.1 * engine.min(kernel) + 4e-6,
                "{count} × {length}: {chosen}, by engine {engine}, by kernel {kernel}: {plan}"
            );
            assert_eq!(plan.basis, CostBasis::Measured, "{plan}");
            plan.way == Some(ListWay::CopyKernel)
        };
        SHAPES.map(kernel).to_vec()
    }
}

const ENDS: [(MemoryKind, MemoryKind); 2] =
    [(MemoryKind::Pinned, MemoryKind::Device), (MemoryKind::Device, MemoryKind::Mapped)];

#[test]
fn engines_slow_per_piece_leave_short_pieces_to_the_kernel() {
    let machine = Machine::of(|sim| sim.batch_piece_ns(1700).kernel_host_link(Some(40.0)));
    for (from, to) in ENDS {
        let kernels = machine.kernels(from, to);
        assert!(kernels[3] && kernels[4] && !kernels[7], "{kernels:?}");
    }
}

#[test]
fn slow_kernel_leaves_all_but_the_least_to_the_engines() {
    let machine = Machine::of(|sim| sim.kernel_host_link(Some(4.0)));
    for (from, to) in ENDS {
        assert!(machine.kernels(from, to)[2..].iter().all(|kernel| !kernel));
    }
}

#[test]
fn links_decide_where_pieces_cost_the_same() {
    // Bytes are all that counts on the slow link, and pieces on the fast one.
    let slow = Machine::of(|sim| sim.host_link(1.0).batch_piece_ns(100));
    slow.kernels(MemoryKind::Pinned, MemoryKind::Device);
    let fast = Machine::of(|sim| sim.host_link(500.0).batch_piece_ns(1700).kernel_host_link(Some(40.0)));
    let kernels = fast.kernels(MemoryKind::Pinned, MemoryKind::Device);
    assert!(kernels[4] && kernels[5..].iter().all(|kernel| !kernel), "{kernels:?}");
}

#[test]
fn device_local_lists_are_chosen_by_their_time() {
    // The engine begins a copy soon, or takes a while for each piece.
    for (latency, piece, kernel) in [(1, 0, false), (6, 1000, true)] {
        let latency = Duration::from_micros(latency);
        let machine = Machine::of(|sim| sim.latency(latency).batch_piece_ns(piece));
        assert_eq!(machine.kernels(MemoryKind::Device, MemoryKind::Device)[4], kernel);
    }
}

#[test]
fn calibrated_kernel_is_not_taken_unless_exclusive() {
    let machine = Machine::of(|sim| sim.batch_piece_ns(1700));
    let (from, to) = (machine.allocate(MemoryKind::Pinned), machine.allocate(MemoryKind::Device));
    let pair = |at: usize| -> Pair {
        let part = |of: &RawBuffer, at: usize| of.slice(at * 64..(at + 1) * 64).unwrap();
        (part(&from, at), part(&to, 499 - at))
    };
    let pairs: Vec<Pair> = (0..500).map(pair).collect();
    let copy = || machine.manager.copy_many(&pairs);
    let method = |report: transload::CopyManyReport| report.groups[0].method;
    assert_eq!(method(copy().wait().unwrap()), TransferMethod::DirectCopy);
    assert_eq!(method(copy().exclusive().wait().unwrap()), TransferMethod::ZeroCopy);
    // A way that a path does not have.
    let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    let here = [1, 2].map(|_| machine.manager.allocate(host.device, host.kind, 64).unwrap());
    let [first, second] = here;
    let failed =
        machine.manager.copy_many(vec![(first, second)]).way(ListWay::CopyKernel).wait().unwrap_err();
    assert_eq!(failed.error.kind(), transload::ErrorKind::Unsupported, "{failed}");
}
