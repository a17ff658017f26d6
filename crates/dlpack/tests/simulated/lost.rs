//! Exports to a device that is lost, and imports of the host's memory next to one, or to one that has no context.

use transload_core::{Access, MemoryKind};
use transload_cuda_sim::harness;
use transload_dlpack::{Export, Importer, ManagedTensor};
use transload_memory::CudaDevice;
use transload_streams::CudaStream;

use crate::producer::Said;

#[test]
fn loan_to_lost_device_ends_at_once() {
    const ILLEGAL_ADDRESS: u32 = 700;
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let setup = crate::unchecked(test);
    let theirs = CudaStream::new(&setup.device).unwrap();
    let there = setup.device(4096);
    let tensor = Export::of::<f32>(&there).for_stream(&theirs).versioned().unwrap();
    assert!(there.lend(Access::Read).is_err(), "the consumer has it");
    setup.test.sim().unwrap().poison(ILLEGAL_ADDRESS);
    drop(tensor);
    assert!(there.lend(Access::Write).is_ok());
}

/// Imports 64 of the host's floats.
fn import_floats(importer: &Importer, floats: *mut f32) -> MemoryKind {
    let (raw, deleted) = Said::floats(floats, 64).versioned();
    // SAFETY: the test's own memory, which is there until the import is dropped.
    let tensor = unsafe { ManagedTensor::from_raw(raw, &[]) }.unwrap();
    let kind = importer.import(tensor).unwrap().buffer().place().kind;
    importer.drain().unwrap();
    assert_eq!(deleted.times(), 1);
    kind
}

#[test]
fn import_of_host_memory_creates_no_context() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let importer = Importer::new().with_device(&CudaDevice::new(test.ordinal()).unwrap());
    let mut floats = [1.0_f32; 64];
    assert_eq!(import_floats(&importer, floats.as_mut_ptr()), MemoryKind::Pageable);
    assert_eq!(test.sim().unwrap().live_objects().contexts, 0);
}

#[test]
fn import_of_host_memory_ignores_errors_of_the_driver() {
    const OUT_OF_MEMORY: u32 = 2;
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let (setup, sim) = (crate::unchecked(test), test.sim().unwrap());
    let pinned = setup.pinned(&[0; 256]);
    let floats = pinned.host_address().unwrap().as_ptr().cast();
    assert_eq!(import_floats(&setup.importer, floats), MemoryKind::Pinned);
    sim.fail_call(Some("cuPointerGetAttribute"), 1, OUT_OF_MEMORY);
    assert_eq!(import_floats(&setup.importer, floats), MemoryKind::Pageable);
}
