//! A runtime with a CUDA device and the wgpu device of the same GPU, which the software driver and llvmpipe play.

use transload::{
    Array, DeviceId, MemoryKind, Place, Runtime, RuntimeBuilder, TransferMethod, TransferOptions,
    cuda::{CudaBackend, CudaBackendConfig},
    wgpu::{WgpuBackend, WgpuBackendConfig},
};
use transload_cuda_sim::{SimDevice, harness};

#[path = "../../../backend-wgpu/tests/it/exported.rs"]
mod exported;

const MIB: usize = 1 << 20;

/// Returns a runtime with both, and the memory of the CUDA device and of the other.
fn both() -> Option<(Runtime, [Place; 2])> {
    with_both(|builder, cuda, wgpu| builder.cuda(cuda).wgpu(wgpu))
}

fn with_both(
    add: impl FnOnce(RuntimeBuilder, CudaBackendConfig, WgpuBackendConfig) -> RuntimeBuilder,
) -> Option<(Runtime, [Place; 2])> {
    let software = WgpuBackendConfig::default().with_software_adapters();
    let software = software.with_apis(transload::wgpu::wgpu::Backends::VULKAN);
    let looked = Runtime::builder().without("cuda").wgpu(software.clone()).discover().unwrap();
    let Some(uuid) = looked.devices().iter().rev().find_map(|info| info.uuid) else {
        assert!(std::env::var_os("TRANSLOAD_TEST_NEEDS_VULKAN").is_none(), "no Vulkan adapter");
        println!("skipped: no Vulkan adapter");
        return None;
    };
    transload_cuda_sim::install().unwrap();
    // SAFETY: mappings stay.
    let sim = unsafe { SimDevice::builder().uuid(Some(uuid)).external_memory(exported::open) }.build();
    let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
    let rt = add(crate::uncalibrated::builder(), config, software).discover().unwrap();
    let wgpu =
        rt.devices().iter().find(|info| info.id.family() == "wgpu" && info.uuid == Some(uuid)).unwrap().id;
    Some((rt, [DeviceId::Cuda(sim.ordinal()), wgpu].map(|id| Place::new(id, MemoryKind::Device))))
}

#[test]
fn runtime_copies_between_both_without_the_host() {
    both().into_iter().for_each(copies_stay_on_the_gpu);
}

/// The program has opened one or both, and gives them in either order.
#[test]
fn runtime_connects_backends_that_it_is_given() {
    for are_both_given in [false, true] {
        let given = with_both(|builder, cuda, wgpu| {
            let builder = builder.backend(WgpuBackend::open(&wgpu).unwrap());
            match are_both_given {
                true => builder.backend(CudaBackend::open(&cuda).unwrap()),
                false => builder.cuda(cuda),
            }
        });
        given.into_iter().for_each(copies_stay_on_the_gpu);
    }
}

fn copies_stay_on_the_gpu((rt, [theirs, ours]): (Runtime, [Place; 2])) {
    let wgpu = ours.device;
    for (src, dst) in [(theirs, ours), (ours, theirs)] {
        let plan = rt.manager().plan(src, dst, 5 << 20, &TransferOptions::new()).unwrap();
        assert_eq!((plan.method, plan.lane), (TransferMethod::DirectCopy, wgpu), "{plan}");
    }
    let content = harness::noise(5_000_001, 3);
    let there = rt.alloc::<u8>(theirs.device, theirs.kind, content.len()).unwrap();
    let here = rt.alloc::<u8>(ours.device, ours.kind, content.len()).unwrap();
    rt.copy(&rt.host(content.clone()).unwrap(), &there).wait().unwrap();
    let report = rt.copy(&there, &here).wait().unwrap();
    assert_eq!(report.method, TransferMethod::DirectCopy);
    assert!(rt.download(&here).wait().unwrap()[..] == content[..]);
    drop((there, here));
    rt.drain().unwrap();
    for (backend, counts) in rt.manager().resource_counts() {
        assert!(counts.is_empty(), "{backend}: {counts}");
    }
}

#[test]
fn memory_registered_with_cuda_is_pageable_to_the_other() {
    let Some((rt, places)) = both() else { return };
    let host = rt.zeros::<u8>(8 * MIB).unwrap();
    let [theirs, ours]: [Array<u8>; 2] =
        places.map(|place| rt.alloc(place.device, place.kind, 8 * MIB).unwrap());
    let kinds = |src: &Array<u8>, dst: &Array<u8>| {
        let path = rt.copy(src, dst).plan().unwrap().path;
        (path.src.kind, path.dst.kind)
    };
    for _ in 0..25 {
        rt.copy(&host, &theirs).wait().unwrap();
        rt.manager().executor().drain().unwrap();
    }
    let (pageable, device) = (MemoryKind::Pageable, MemoryKind::Device);
    assert_eq!(kinds(&host, &theirs), (MemoryKind::Pinned, device), "registered");
    assert_eq!(kinds(&host, &ours), (pageable, device));
    assert_eq!(kinds(&ours, &host), (device, pageable));
}
