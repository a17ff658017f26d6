//! A cast that a task drops while another thread is about to submit a part of it. A process of its own: the subscriber is the process's.
#![cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

use std::{
    future::{Future, IntoFuture},
    pin::pin,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Waker},
    thread,
};

use tracing::{Event, Metadata, Subscriber, span};
use transload::{
    CrossBackendTransferManager, DeviceId, FloatType, MemoryKind, RawBuffer,
    backend::events::RING_GROWN,
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig},
};
use transload_core::{Access, Claims};
use transload_cuda_sim::SimDevice;

const ELEMENTS: usize = 1 << 20;

static IS_HELD: AtomicBool = AtomicBool::new(false);
static COMES: Barrier = Barrier::new(2);
static GOES: Barrier = Barrier::new(2);

/// Holds the first thread that has pinned a staging buffer, which is before it claims what it copies.
struct Holder;

impl Subscriber for Holder {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        if event.metadata().name() == RING_GROWN && !IS_HELD.swap(true, Ordering::SeqCst) {
            COMES.wait();
            GOES.wait();
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn dropped_cast_writes_to_no_memory_of_the_next() {
    tracing::subscriber::set_global_default(Holder).unwrap();
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().build();
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
    manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
    let source = |value: f32| -> RawBuffer {
        let buffer = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 4 * ELEMENTS).unwrap();
        buffer.write().unwrap().chunks_mut(4).for_each(|to| to.copy_from_slice(&value.to_le_bytes()));
        buffer
    };
    let device = DeviceId::Cuda(sim.ordinal());
    let there = || manager.allocate_for(device, MemoryKind::Device, 2 * ELEMENTS).unwrap();
    let (from, to) = ([source(1.0), source(2.0)], [there(), there()]);
    let cast = |index: usize| {
        manager.cast((&from[index], FloatType::F32), (&to[index], FloatType::Bf16)).into_future()
    };
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut dropped = pin!(cast(0));
        let is_held = thread::spawn(|| COMES.wait());
        while !is_held.is_finished() {
            assert!(dropped.as_mut().poll(&mut context).is_pending());
            thread::yield_now();
        }
    }
    // So that the next cast is not submitted after its copy.
    let claims = Claims::acquire(&mut [(&to[1], Access::Read)]).unwrap();
    let trace = transload_cuda_sys::trace::start();
    let mut next = pin!(cast(1));
    while !trace.calls().iter().any(|call| call.name == "cuMemcpyHtoDAsync_v2") {
        assert!(next.as_mut().poll(&mut context).is_pending());
        thread::yield_now();
    }
    GOES.wait();
    manager.executor().drain().unwrap();
    drop(claims);
    pollster::block_on(next).unwrap();
    let found = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 2 * ELEMENTS).unwrap();
    manager.copy(&to[1], &found).wait().unwrap();
    // The upper half of 2.0.
    assert!(found.read().unwrap().chunks(2).all(|element| element == [0x00, 0x40]), "elements of the other");
    manager.drain().unwrap();
}
