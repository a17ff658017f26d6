//! Metrics for a registry of the user's.

use prometheus_client::{encoding::text, registry::Registry};
use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, MemoryKind, Operation, StreamPriority, Timing, WorkloadType, submit,
};
use transload_profiler::{PrometheusCollector, StreamReport};

use crate::timing_all;

fn page(registry: &Registry) -> String {
    let mut page = String::new();
    text::encode(&mut page, registry).unwrap();
    page
}

#[test]
fn registered_collector_says_what_was_counted() {
    let backend = CpuBackend::new().unwrap();
    let profiler = timing_all();
    profiler.attach(&(backend.clone() as _)).unwrap();
    profiler.enable().unwrap();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(PrometheusCollector::new(&profiler)));
    assert!(page(&registry).contains("transload_allocated_bytes{backend=\"cpu\"} 0.0\n"));

    let allocate = || backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 1 << 20).unwrap();
    let (src, dst) = (allocate(), allocate());
    // Of two queues, which are not told apart.
    for _ in 0..2 {
        let queue = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
        submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap().wait().unwrap();
    }
    let page = page(&registry);
    for line in [
        "# TYPE transload_operations counter\n",
        "transload_operations_total{device=\"cpu\",kind=\"copy\"} 2.0\n",
        "transload_operations_bytes_total{device=\"cpu\",kind=\"copy\"} 2097152.0\n",
        "transload_timed_operations_total{device=\"cpu\",kind=\"copy\"} 2.0\n",
        "transload_moved_bytes_total{device=\"cpu\",direction=\"within\"} 2097152.0\n",
        "transload_allocated_bytes{backend=\"cpu\"} 2097152.0\n",
        "transload_records_lost_total 0.0\n",
    ] {
        assert!(page.contains(line), "{line} is not in: {page}");
    }
    let running = |stream: &StreamReport| stream.kinds[0].running.total_ns;
    let running: u64 = profiler.get_comprehensive_report().streams.iter().map(running).sum();
    let (_, seconds) =
        page.split_once("transload_timed_operations_seconds_total{device=\"cpu\",kind=\"copy\"} ").unwrap();
    let seconds: f64 = seconds.lines().next().unwrap().parse().unwrap();
    assert!((seconds * 1e9 - running as f64).abs() < 1.0, "{running} ns: {page}");
}
