//! A sink is attached to all devices of a backend, or to none.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{Backend, ErrorKind, OperationRecord, OperationSampling, OperationSink};
use transload_cuda_sim::harness::{self, TestDevice};

#[derive(Default)]
struct Counter(AtomicUsize);

impl OperationSink for Counter {
    fn operation(&self, _: OperationRecord) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn sink_of_one_device_keeps_another_from_all() {
    let Some(tests) = harness::devices(2) else { return };
    let config = CudaBackendConfig::default().with_devices(tests.iter().map(TestDevice::ordinal));
    let backend = CudaBackend::open(&config).unwrap();
    let [one, two] = [0, 1].map(|index| backend.device(tests[index].ordinal()).unwrap().profile().sink());
    let [theirs, ours]: [Arc<dyn OperationSink>; 2] = [(); 2].map(|()| Arc::new(Counter::default()) as _);
    for (taken, free) in [(one, two), (two, one)] {
        taken.attach(Arc::clone(&theirs), OperationSampling::ALL).unwrap();
        let refused = backend.attach_sink(&ours, OperationSampling::ALL).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused:?}");
        assert!(taken.is_attached() && !free.is_attached());
        backend.detach_sink(&ours);
        assert!(taken.is_attached(), "only its own sink is detached");
        taken.detach(&theirs);
    }
    backend.attach_sink(&ours, OperationSampling::ALL).unwrap();
    assert_eq!(backend.attach_sink(&ours, OperationSampling::ALL).unwrap_err().kind(), ErrorKind::Busy);
    assert!(one.is_attached() && two.is_attached(), "a sink that is attached stays so");
    backend.detach_sink(&ours);
    assert!(!one.is_attached() && !two.is_attached());
}
