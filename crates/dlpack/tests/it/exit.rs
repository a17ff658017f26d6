//! A process that exits while tensors are exported and imported.

use std::env;

use transload_backend_cpu::CpuBackend;
use transload_core::{Backend, DeviceId, MemoryKind};
use transload_dlpack::{Export, Importer, ManagedTensor};

use crate::producer::Said;

const INSIDE: &str = "TRANSLOAD_DLPACK_EXITS";

#[test]
fn a_process_ends_with_live_tensors() {
    if env::var_os(INSIDE).is_some() {
        leave_things_open();
        std::process::exit(0);
    }
    let mut this = crate::programs::this_program();
    let this =
        this.args(["--exact", "exit::a_process_ends_with_live_tensors", "--nocapture"]).env(INSIDE, "1");
    let output = this.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", output.status);
}

fn leave_things_open() {
    let backend = CpuBackend::new().unwrap();
    let buffer = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 64).unwrap();
    std::mem::forget(Export::of::<u8>(&buffer).versioned().unwrap());
    let data = Box::leak(Box::new([0.0_f32; 16])).as_mut_ptr();
    // SAFETY: the data lives as long as the process.
    let theirs = unsafe { ManagedTensor::from_raw(Said::floats(data, 16).versioned().0, &[]) }.unwrap();
    std::mem::forget(Importer::new().import(theirs).unwrap());
    #[cfg(any(target_os = "linux", windows))]
    on_a_device();
}

#[cfg(any(target_os = "linux", windows))]
fn on_a_device() {
    use transload_core::Pattern;
    use transload_streams::CudaStream;

    let setup = crate::setup::Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let there = setup.device(1 << 20);
    drop(stream.memset_async(&there, Pattern::U8(1)));
    std::mem::forget(Export::of::<u8>(&there).for_stream(&stream).versioned().unwrap());
    std::mem::forget((setup, stream));
}
