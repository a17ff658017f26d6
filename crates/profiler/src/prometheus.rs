//! Feature `prometheus`: what a profiler counted, as metrics of a registry of the user's.

use std::fmt::Error;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

use crate::StreamProfiler;

/// Metrics of a profiler, to be registered with a registry of the crate `prometheus-client`. Nothing is registered by itself.
///
/// Each scrape makes a [report](StreamProfiler::get_comprehensive_report). Metrics begin with `transload_`. Counts of operations are complete;
/// times and busy times are those of timed operations, and transfers those that were sampled, and all that failed.
///
/// ```
/// use prometheus_client::{encoding::text, registry::Registry};
/// use transload_profiler::{ProfilerOptions, PrometheusCollector, StreamProfiler};
///
/// let profiler = StreamProfiler::new(ProfilerOptions::new());
/// let mut registry = Registry::default();
/// registry.register_collector(Box::new(PrometheusCollector::new(&profiler)));
/// let mut page = String::new();
/// text::encode(&mut page, &registry)?;
/// assert!(page.contains("transload_records_lost_total 0.0\n"), "{page}");
/// # Ok::<(), std::fmt::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PrometheusCollector {
    profiler: StreamProfiler,
}

impl PrometheusCollector {
    /// Creates the collector of a profiler, which it keeps alive.
    #[must_use]
    pub fn new(profiler: &StreamProfiler) -> Self {
        Self { profiler: profiler.clone() }
    }
}

/// Labels of a series, and its value.
type Series<const N: usize> = ([(&'static str, String); N], f64);

/// Encodes a metric; series with the same labels are one.
fn family<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, unit): (&str, &str, Option<Unit>),
    kind: MetricType,
    series: impl Iterator<Item = Series<N>>,
) -> Result<(), Error> {
    let mut sums = std::collections::BTreeMap::new();
    series.for_each(|(labels, value)| *sums.entry(labels).or_insert(0.0) += value);
    let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
    for (labels, value) in sums {
        let one = metric.encode_family(&labels)?;
        match kind {
            MetricType::Gauge => ConstGauge::new(value).encode(one)?,
            _ => ConstCounter::new(value).encode(one)?,
        }
    }
    Ok(())
}

impl Collector for PrometheusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        const COUNTER: MetricType = MetricType::Counter;
        let report = self.profiler.get_comprehensive_report();
        let encoder = &mut encoder;
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;

        let kinds =
            || report.streams.iter().flat_map(|it| it.kinds.iter().map(move |kind| (it.device, kind)));
        let of_kind = |(device, kind): (transload_core::DeviceId, &crate::KindReport)| {
            [("device", device.to_string()), ("kind", kind.kind.name().to_owned())]
        };
        let about = (
            "transload_operations",
            "Operations that were enqueued, and waits of streams as a kind of their own",
            None,
        );
        family(encoder, about, COUNTER, kinds().map(|it| (of_kind(it), it.1.operations as f64)))?;
        let about = ("transload_operations", "Bytes of these operations", Some(Unit::Bytes));
        family(encoder, about, COUNTER, kinds().map(|it| (of_kind(it), it.1.bytes as f64)))?;
        let about = ("transload_timed_operations", "Operations that were timed", None);
        family(encoder, about, COUNTER, kinds().map(|it| (of_kind(it), it.1.running.count as f64)))?;
        let about = ("transload_timed_operations", "Time of the timed operations", Some(Unit::Seconds));
        family(encoder, about, COUNTER, kinds().map(|it| (of_kind(it), seconds(it.1.running.total_ns))))?;

        let directions = || {
            report
                .directions
                .iter()
                .map(|it| ([("device", it.device.to_string()), ("direction", it.direction.to_string())], it))
        };
        let about = ("transload_moved", "Bytes of timed operations", Some(Unit::Bytes));
        family(encoder, about, COUNTER, directions().map(|(labels, it)| (labels, it.timed_bytes as f64)))?;
        let about = ("transload_busy", "Time in which a timed operation ran", Some(Unit::Seconds));
        family(encoder, about, COUNTER, directions().map(|(labels, it)| (labels, seconds(it.busy_ns))))?;

        let paths = || {
            report.paths.iter().map(|it| {
                let (src, dst) = (it.path.src.to_string(), it.path.dst.to_string());
                ([("src", src), ("dst", dst), ("method", it.method.name().to_owned())], it)
            })
        };
        let about = ("transload_sampled_transfers", "Sampled transfers that completed", None);
        family(encoder, about, COUNTER, paths().map(|(labels, it)| (labels, it.sampled as f64)))?;
        let about = ("transload_failed_transfers", "Transfers that failed", None);
        family(encoder, about, COUNTER, paths().map(|(labels, it)| (labels, it.failed as f64)))?;
        let about = (
            "transload_dropped_transfers",
            "Sampled transfers whose handles were dropped before their end",
            None,
        );
        family(encoder, about, COUNTER, paths().map(|(labels, it)| (labels, it.abandoned as f64)))?;

        let about = ("transload_allocated", "Bytes that a backend has allocated", Some(Unit::Bytes));
        let memory = self.profiler.memory().into_iter();
        family(
            encoder,
            about,
            MetricType::Gauge,
            memory.map(|(backend, bytes)| ([("backend", backend.to_owned())], bytes as f64)),
        )?;
        let about = ("transload_records_lost", "Records for which the profiler had no room", None);
        family(encoder, about, COUNTER, std::iter::once(([], report.lost as f64)))
    }
}
