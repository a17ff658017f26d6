//! The method ZeroCopy: small urgent transfers that bypass a copy engine's queue; and sharing without copies.

use std::time::Duration;

use transload::{
    DeviceId, ErrorKind, MemoryKind, Place, RawBuffer, StreamPriority, Transfer, TransferMethod,
    TransferOptions, TransferReport,
    backend::{ListWay, Operation, RejectReason, Timing, submit},
    cuda::{CudaDevice, CudaStream},
};
use transload_cuda_sys::{ffi, trace};

use crate::{
    cuda::{Setup, noise},
    gate::{Gate, within},
};

const HIGH: TransferOptions = TransferOptions::new().priority(StreamPriority::High);

/// The thread's calls that move bytes or launch kernels.
fn moving(trace: &trace::Trace) -> Vec<trace::Call> {
    let mut calls = trace.calls_of_this_thread();
    calls.retain(|call| call.name.starts_with("cuMem") || call.name.starts_with("cuLaunch"));
    calls
}

/// Returns how many kernels were launched on a device: concurrent tests have others.
fn launches(trace: &trace::Trace, device: &CudaDevice) -> usize {
    let own = device.context().unwrap().as_raw();
    let is_own = |launch: &trace::Call| {
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is valid. Of a stream that another test has destroyed the software driver knows that; on a GPU tests run one
        // after another.
        let code = unsafe { ffi::cuStreamGetCtx(launch.arguments[8] as _, &raw mut context) };
        code == 0 && context == own
    };
    trace.calls().iter().filter(|call| call.name == "cuLaunchKernel" && is_own(call)).count()
}

/// A source and a destination of large copies in one direction, and a gate that holds them.
struct Large {
    src: RawBuffer,
    dst: RawBuffer,
    other: RawBuffer,
    stream: CudaStream,
}

impl Large {
    /// Created before any gate is closed, because some driver calls block behind one.
    fn new(setup: &Setup, bytes: usize, up: bool) -> Self {
        let (near, far) = if up {
            (MemoryKind::Pinned, MemoryKind::Device)
        } else {
            (MemoryKind::Device, MemoryKind::Pinned)
        };
        let (src, dst) = (setup.allocate(near, bytes), setup.allocate(far, bytes));
        let device = CudaDevice::new(setup.device.ordinal()).unwrap();
        Self { src, dst, other: setup.allocate(far, 1), stream: CudaStream::new(&device).unwrap() }
    }

    /// Copies from the source cannot start before the gate opens.
    fn hold(&self, gate: &Gate) {
        gate.hold([&self.stream]);
        let first = self.src.slice(..1).unwrap();
        let write = Operation::Copy { src: &self.other, dst: &first };
        drop(submit(&self.stream, &write, Timing::Off).unwrap());
    }

    /// The whole source, at low priority.
    fn send(&self, setup: &Setup) -> Transfer {
        let options = TransferOptions::new().priority(StreamPriority::Low);
        setup.manager.copy(&self.src, &self.dst).options(options).submit()
    }
}

/// Returns the only call that enqueued an urgent transfer, and its report.
fn urgent(setup: &Setup, src: &RawBuffer, dst: &RawBuffer) -> (&'static str, TransferReport) {
    let plan = setup.manager.plan(src.place(), dst.place(), src.len() as u64, &HIGH).unwrap();
    let trace = trace::start();
    let transfer = setup.manager.copy(src, dst).options(HIGH).submit();
    let calls = moving(&trace);
    drop(trace);
    assert_eq!(calls.len(), 1, "{calls:?}");
    let report = transfer.wait().unwrap();
    assert_eq!((report.lane, report.simulated), (setup.device, setup.test.is_simulated()));
    assert!(plan.agrees_with(&report) && plan.queued == report.queued, "{plan}\n{report}");
    (calls[0].name, report)
}

#[test]
fn urgent_transfer_uses_kernel_after_queued_copies_only() {
    within(Duration::from_secs(60), || {
        let setup = Setup::new();
        let device = CudaDevice::new(setup.device.ordinal()).unwrap();
        let queued = 48 << 20;
        for (kind, size) in
            [(MemoryKind::Mapped, 4096), (MemoryKind::Pinned, 65_537), (MemoryKind::Pinned, 1 << 20)]
        {
            let content = noise(size, size as u64);
            let source = setup.filled(kind, &content);
            let there = setup.allocate(MemoryKind::Device, size);
            let back = setup.filled(kind, &vec![0xEE; size]);
            // The first transfers create streams and events and load the kernel.
            for (src, dst) in [(&source, &there), (&there, &back)] {
                setup.manager.prepare(src.place(), dst.place(), &HIGH).unwrap();
                setup.manager.copy(src, dst).options(HIGH).wait().unwrap();
            }
            for (up, src, dst) in [(true, &source, &there), (false, &there, &back)] {
                let engine = if up { "cuMemcpyHtoDAsync_v2" } else { "cuMemcpyDtoHAsync_v2" };
                let (call, report) = urgent(&setup, src, dst);
                assert_eq!((call, report.method, report.queued), (engine, TransferMethod::DirectCopy, 0));
                // Memory whose free waits for the device must not be freed while the gate is closed.
                setup.manager.drain().unwrap();
                let large = Large::new(&setup, queued, up);
                let gate = Gate::closed(&device);
                large.hold(&gate);
                let low = large.send(&setup);
                let (call, report) = urgent(&setup, src, dst);
                let expected = ("cuLaunchKernel", TransferMethod::ZeroCopy, queued as u64);
                assert_eq!((call, report.method, report.queued), expected, "{kind}, {size} bytes");
                let text = "48 MiB queued for the copy engine";
                assert!(report.to_string().contains(text), "{report}");
                let plan = setup.manager.plan(src.place(), dst.place(), size as u64, &HIGH).unwrap();
                assert!(plan.to_string().contains(text), "{plan}");
                assert!(
                    plan.to_string().contains("faster, but waits for a copy engine: DirectCopy"),
                    "{plan}"
                );
                // The other direction has its own engine.
                let (from, to) = if up { (&there, &back) } else { (&source, &there) };
                assert_eq!(urgent(&setup, from, to).1.method, TransferMethod::DirectCopy);
                // Nor does a list bypass the engine that it is to go by.
                let list = setup.manager.copy_many(vec![(src.clone(), dst.clone())]);
                let list = list.options(HIGH).way(ListWay::CopyEngine).submit();
                gate.open();
                low.wait().unwrap();
                assert_eq!(list.wait().unwrap().groups[0].method, TransferMethod::DirectCopy);
                assert_eq!(urgent(&setup, src, dst).1.queued, 0);
            }
            assert!(*back.read().unwrap() == content[..], "{kind}, {size} bytes");
        }
    });
}

#[test]
fn urgent_pageable_transfer_is_staged_by_kernel() {
    within(Duration::from_secs(60), || {
        let setup = Setup::new();
        let device = CudaDevice::new(setup.device.ordinal()).unwrap();
        let size = 300_001;
        let content = noise(size, 17);
        let source = setup.filled(MemoryKind::Pageable, &content);
        let there = setup.allocate(MemoryKind::Device, size);
        let back = setup.filled(MemoryKind::Pageable, &vec![0xEE; size]);
        // Copies, and returns the launches on the device with the report.
        let launching = |src, dst, options: &TransferOptions| {
            let trace = trace::start();
            let report = setup.manager.copy(src, dst).options(*options).wait().unwrap();
            (launches(&trace, &device), report)
        };
        let staged = HIGH.forbid(TransferMethod::DirectCopy);
        for (up, src, dst) in [(true, &source, &there), (false, &there, &back)] {
            setup.manager.prepare(src.place(), dst.place(), &HIGH).unwrap();
            // Creates the staging buffers, with the engine, as nothing is queued.
            assert_eq!(launching(src, dst, &staged).0, 0);
            // Not by draining, which frees the staging buffers.
            dst.wait_idle().unwrap();
            let large = Large::new(&setup, 48 << 20, up);
            let gate = Gate::closed(&device);
            large.hold(&gate);
            let low = large.send(&setup);
            // One for each 256 KiB, of an upload one for what the host has stored since the last.
            let (launched, report) = launching(src, dst, &HIGH);
            assert!(launched == 2 || up && launched == 1, "{launched}");
            assert_eq!((report.method, report.queued), (TransferMethod::HostStaged, 48 << 20), "{report}");
            assert_eq!(launching(src, dst, &staged.forbid(TransferMethod::ZeroCopy)).0, 0);
            gate.open();
            low.wait().unwrap();
        }
        assert!(*back.read().unwrap() == content[..]);
    });
}

#[test]
fn dropped_transfers_leave_queue_count_when_complete() {
    within(Duration::from_secs(60), || {
        let setup = Setup::new();
        let device = CudaDevice::new(setup.device.ordinal()).unwrap();
        let (mapped, there) =
            (Place::new(DeviceId::Cpu, MemoryKind::Mapped), Place::new(setup.device, MemoryKind::Device));
        let queued = || setup.manager.plan(mapped, there, 4096, &HIGH).unwrap().queued;
        let large = [1, 2, 3, 5].map(|mebibytes| Large::new(&setup, mebibytes << 20, true));
        let pairs = [0, 1].map(|index| (large[index].src.clone(), large[index].dst.clone()));
        let recorded = setup.manager.record(&pairs, &TransferOptions::new()).unwrap();
        let gate = Gate::closed(&device);
        large.iter().for_each(|large| large.hold(&gate));
        large[2..].iter().for_each(|large| drop(large.send(&setup)));
        assert_eq!(queued(), 8 << 20);
        // A recording holds them too, for each replay.
        drop(recorded.replay());
        assert_eq!(queued(), 11 << 20);
        drop((recorded, pairs, large));
        gate.open();
        setup.manager.drain().unwrap();
        assert_eq!(queued(), 0);
    });
}

#[test]
fn mapped_memory_uses_copy_engine_by_default() {
    let setup = Setup::new();
    let (mapped, device) =
        (Place::new(DeviceId::Cpu, MemoryKind::Mapped), Place::new(setup.device, MemoryKind::Device));
    let low = TransferOptions::new().priority(StreamPriority::Low);
    for (bytes, options) in [
        (4096, TransferOptions::new()),
        (4096, low),
        ((1 << 20) + 1, HIGH),
        (4096, HIGH.forbid(TransferMethod::ZeroCopy)),
    ] {
        for (src, dst) in [(mapped, device), (device, mapped)] {
            let plan = setup.manager.plan(src, dst, bytes, &options).unwrap();
            assert_eq!(plan.method, TransferMethod::DirectCopy, "{plan}");
        }
    }
}

#[test]
fn forced_kernel_carries_any_size_and_offset() {
    let setup = Setup::new();
    let only = TransferOptions::new().only(TransferMethod::ZeroCopy);
    let size = (5 << 20) + 3;
    let content = noise(size + 40, 3);
    let source = setup.filled(MemoryKind::Mapped, &content);
    for kind in [MemoryKind::Device, MemoryKind::Unified] {
        let there = setup.allocate(kind, size + 40);
        let back = setup.filled(MemoryKind::Mapped, &vec![0xEE; size + 40]);
        let up = setup
            .manager
            .copy(&source.slice(31..31 + size).unwrap(), &there.slice(7..7 + size).unwrap())
            .options(only)
            .submit();
        let down = setup
            .manager
            .copy(&there.slice(7..7 + size).unwrap(), &back.slice(13..13 + size).unwrap())
            .options(only)
            .submit();
        assert_eq!(down.wait().unwrap().method, TransferMethod::ZeroCopy);
        assert_eq!(up.wait().unwrap().method, TransferMethod::ZeroCopy);
        let seen = back.read().unwrap();
        assert!(seen[13..13 + size] == content[31..31 + size], "{kind}");
        assert!(seen[..13].iter().chain(&seen[13 + size..]).all(|byte| *byte == 0xEE), "{kind}");
    }
    drop(source);
}

#[test]
fn the_kernel_runs_on_a_stream_leased_by_the_transfers_priority() {
    let setup = Setup::new();
    let source = setup.filled(MemoryKind::Mapped, &[1; 100]);
    let there = setup.allocate(MemoryKind::Device, 100);
    let stream_of = |priority| {
        let options = TransferOptions::new().only(TransferMethod::ZeroCopy).priority(priority);
        let trace = trace::start();
        setup.manager.copy(&source, &there).options(options).wait().unwrap();
        moving(&trace).into_iter().find(|call| call.name == "cuLaunchKernel").unwrap().arguments[8]
    };
    let (high, low) = (stream_of(StreamPriority::High), stream_of(StreamPriority::Low));
    let device = transload_cuda_sys::Device::new(setup.device.ordinal()).unwrap();
    let context = transload_cuda_sys::Context::primary(device).unwrap();
    let priority = |stream: u64| {
        let handle = std::ptr::with_exposed_provenance_mut(stream as usize);
        // SAFETY: the stream belongs to the manager's backend, which lives.
        unsafe { transload_cuda_sys::Stream::from_raw(&context, handle) }.priority().unwrap()
    };
    assert!(priority(high) < priority(low), "the driver confirms that smaller is more urgent");
}

#[test]
fn zero_copy_rejection_states_reason() {
    let setup = Setup::new();
    let host = |kind| Place::new(DeviceId::Cpu, kind);
    let device = Place::new(setup.device, MemoryKind::Device);
    for (src, dst, expected) in [
        (host(MemoryKind::Pageable), device, RejectReason::NotMapped),
        (device, host(MemoryKind::Pageable), RejectReason::NotMapped),
        (device, device, RejectReason::SameDevice),
        (host(MemoryKind::Pageable), host(MemoryKind::Pageable), RejectReason::NoDevice),
    ] {
        let plan = setup.manager.plan(src, dst, 64, &HIGH).unwrap();
        let of_ours = plan.rejected.iter().find(|rejected| rejected.method == TransferMethod::ZeroCopy);
        assert_eq!(of_ours.map(|rejected| rejected.reason), Some(expected), "{plan}");
    }
}

#[test]
fn sharing_accessible_memory_copies_nothing() {
    let setup = Setup::new();
    for kind in [MemoryKind::Mapped, MemoryKind::Unified, MemoryKind::Device] {
        let buffer = setup.allocate(kind, 10_000).slice(100..9000).unwrap();
        let trace = trace::start();
        let shared = setup.manager.share(&buffer, setup.device).unwrap();
        assert_eq!(moving(&trace), [], "{kind}");
        assert!(!shared.copied, "{kind}");
        assert_eq!((shared.buffer.id(), shared.buffer.len()), (buffer.id(), buffer.len()));
        assert_eq!(shared.buffer.device_address().unwrap(), buffer.device_address().unwrap(), "{kind}");
    }
    // The host uses memory that it can address in place.
    for kind in [MemoryKind::Mapped, MemoryKind::Pinned, MemoryKind::Unified] {
        let buffer = setup.filled(kind, &[5; 300]);
        let shared = setup.manager.share(&buffer, DeviceId::Cpu).unwrap();
        assert!(!shared.copied && shared.buffer.host_address() == buffer.host_address(), "{kind}");
    }
}

#[test]
fn sharing_other_memory_copies_it_and_says_so() {
    let setup = Setup::new();
    let content = noise(300_001, 11);
    for kind in [MemoryKind::Pageable, MemoryKind::Pinned] {
        let source = setup.filled(kind, &content);
        let shared = setup.manager.share(&source.slice(1..).unwrap(), setup.device).unwrap();
        assert!(shared.copied, "{kind}");
        assert_eq!(shared.buffer.place(), Place::new(setup.device, MemoryKind::Device));
        // Uses of the copy are ordered after it.
        let back = setup.manager.share(&shared.buffer, DeviceId::Cpu).unwrap();
        assert!(back.copied && back.buffer.place().device.is_cpu());
        assert!(*back.buffer.read().unwrap() == content[1..], "{kind}");
    }
    let unknown = DeviceId::Cuda(u32::MAX);
    let buffer = setup.allocate(MemoryKind::Mapped, 64);
    assert_eq!(setup.manager.share(&buffer, unknown).unwrap_err().kind(), ErrorKind::UnknownDevice);
    drop(buffer);
}
