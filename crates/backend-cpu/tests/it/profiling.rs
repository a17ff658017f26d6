//! A sink that panics.

use std::sync::Arc;

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, MemoryKind, Operation, OperationRecord, OperationSampling, OperationSink,
    StreamPriority, Timing, WorkloadType, submit,
};

struct Panicking;

impl OperationSink for Panicking {
    fn operation(&self, _: OperationRecord) {
        panic!("a sink's panic");
    }
}

#[test]
fn panic_of_a_sink_leaves_the_queue_usable() {
    let backend: Arc<dyn Backend> = CpuBackend::new().unwrap();
    backend.attach_sink(&(Arc::new(Panicking) as _), OperationSampling::ALL).unwrap();
    let queue = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    // Inline, by a task, and by several.
    for bytes in [100, 1 << 20, 16 << 20, 100] {
        let allocate = || backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap();
        let (src, dst) = (allocate(), allocate());
        src.write().unwrap().fill(7);
        let operation = Operation::Copy { src: &src, dst: &dst };
        submit(&*queue, &operation, Timing::Off).unwrap().wait().unwrap();
        assert!(dst.read().unwrap().iter().all(|byte| *byte == 7), "{bytes} bytes");
    }
}
