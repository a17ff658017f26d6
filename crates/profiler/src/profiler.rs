//! The profiler: what users call, and its thread.

use std::{
    borrow::Cow,
    fmt,
    io::Write,
    ops::Deref,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use transload_core::{
    Backend, Error, ErrorKind, KnownCosts, MemoryKind, Observer, OperationKind, OperationSink, Queue,
    RawBuffer, Result,
};

#[cfg(feature = "nvtx")]
use crate::nvtx;
use crate::{
    OperationGuard, ProfilerOptions, ProfilerReport, StreamReport, TraceFormat, TraceOptions, TraceSummary,
    Unit,
    collecting::{Collecting, Signal},
    collector::Collector,
    costs::Costs,
    gauges::Gauges,
    idle_pinned::Reading,
    inbox::{Inbox, Message, NamedOperation, NamedTime, QueueKey},
    pending::OpenBegin,
    timeline::TimelineTrace,
    unavailable::{self, UnavailableDevice},
};

/// Measures what streams do: counts all operations of the attached backends, times some of them on the device, and takes what the user
/// records. Clones are handles of one profiler. All methods may be called from any thread.
///
/// It is disabled at first. While it is, queues pay one relaxed load an operation for it. Its own thread, which starts when it is first
/// enabled, reads the times: no submission waits for that.
///
/// ```
/// use transload_backend_cpu::CpuBackend;
/// use transload_core::{
///     Backend, DeviceId, MemoryKind, Operation, StreamPriority, Timing, WorkloadType, submit,
/// };
/// use transload_profiler::{ProfilerOptions, StreamProfiler};
///
/// let backend = CpuBackend::new()?;
/// let profiler = StreamProfiler::new(ProfilerOptions::new());
/// profiler.attach(&(backend.clone() as _));
/// profiler.enable()?;
///
/// let allocate = || backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 8 << 20);
/// let (src, dst) = (allocate()?, allocate()?);
/// let queue = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory)?;
/// submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?.wait()?;
///
/// let report = profiler.get_stream_report(&*queue).unwrap();
/// assert_eq!((report.operations(), report.kinds[0].bytes), (1, 8 << 20));
/// println!("{report}");
/// # Ok::<(), transload_core::Error>(())
/// ```
#[derive(Clone)]
pub struct StreamProfiler {
    shared: Arc<Handle>,
}

/// What all handles have in common. Dropping it disables the profiler at once, also while its thread collects.
struct Handle(Arc<Shared>);

struct Shared {
    options: ProfilerOptions,
    inbox: Arc<Inbox>,
    collector: Mutex<Collector>,
    /// Backends to be profiled. Also held while they are attached or detached.
    backends: Mutex<Backends>,
    gauges: Mutex<Gauges>,
    costs: Costs,
    thread: Mutex<Option<Collecting>>,
}

#[derive(Default)]
struct Backends {
    known: Vec<Weak<dyn Backend>>,
    /// Their devices that are not profiled.
    unavailable: Vec<UnavailableDevice>,
    enabled: bool,
}

impl StreamProfiler {
    /// Creates a profiler, disabled.
    #[must_use]
    pub fn new(options: ProfilerOptions) -> Self {
        let collector = Mutex::new(Collector::new(Instant::now(), options.capacity));
        let inbox = Arc::new(Inbox::new(options.capacity, options.sampling));
        let (backends, gauges, thread) = (Mutex::default(), Mutex::default(), Mutex::default());
        let shared = Shared { options, inbox, collector, backends, gauges, costs: Costs::default(), thread };
        Self { shared: Arc::new(Handle(Arc::new(shared))) }
    }

    /// Adds a backend, whose queues are profiled while the profiler is enabled. It is not kept alive. Does nothing if it was added before.
    ///
    /// # Errors
    /// If the profiler is enabled, those of [`enable`](Self::enable); the backend is not added then.
    pub fn attach(&self, backend: &Arc<dyn Backend>) -> Result<()> {
        let mut backends = self.shared.backends.lock();
        let added = Arc::downgrade(backend);
        if backends.known.iter().any(|known| known.ptr_eq(&added)) {
            return Ok(());
        }
        if backends.enabled {
            let left_out = unavailable::attach(backend, &self.sink(), self.shared.options.sampling)?;
            backends.unavailable.extend(left_out);
        }
        backends.known.push(added);
        Ok(())
    }

    /// Returns the observer to make a transfer manager with, for reports and rows of whole transfers.
    #[must_use]
    pub fn observer(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.shared.inbox) as _
    }

    /// Adds a value that traces show as a counter, next to the allocated bytes of each attached backend; a second one of a name has ` (2)` added to it. While a trace is written, the profiler's
    /// thread calls `read` some two hundred times a second, and each report calls it once; `None`, or a value that is infinite or no number, adds no point. It must be quick and must not call the profiler.
    pub fn add_gauge(
        &self,
        name: impl Into<String>,
        unit: Unit,
        read: impl FnMut() -> Option<f64> + Send + 'static,
    ) {
        self.shared.gauges.lock().add(name.into(), unit, Box::new(read));
    }

    /// Sets where the costs come from that [advice](ProfilerReport::advice) rests on, such as `CrossBackendTransferManager::costs_reader`. Without
    /// it, advice rests on what was timed alone. Each report calls `read` once, which must not call the profiler; after `None`, what it returned last is used.
    pub fn set_costs(&self, read: impl FnMut() -> Option<KnownCosts> + Send + 'static) {
        self.shared.costs.set(read);
    }

    /// Returns the allocated bytes of the attached backends, by name.
    #[cfg(feature = "prometheus")]
    pub(crate) fn memory(&self) -> std::collections::BTreeMap<&'static str, u64> {
        crate::gauges::memory(&self.shared.alive())
    }

    fn sink(&self) -> Arc<dyn OperationSink> {
        Arc::clone(&self.shared.inbox) as _
    }

    /// Counts and samples operations that are enqueued from now on. Does nothing if it is enabled.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if another profiler is enabled for an attached backend; [`ErrorKind::Unsupported`] if no device of the backends
    /// can be profiled; [`ErrorKind::Interrupted`] if no thread can be started. It stays disabled then. A device that cannot be profiled
    /// next to others is [unavailable](ProfilerReport::unavailable).
    pub fn enable(&self) -> Result<()> {
        let mut backends = self.shared.backends.lock();
        if backends.enabled {
            return Ok(());
        }
        self.start_thread()?;
        backends.known.retain(|backend| backend.strong_count() > 0);
        let alive: Vec<_> = backends.known.iter().filter_map(Weak::upgrade).collect();
        let attach = |backend| unavailable::attach(backend, &self.sink(), self.shared.options.sampling);
        let attached = alive.iter().map(attach).collect::<Result<Vec<_>>>().map(|all| all.concat());
        backends.unavailable = attached
            .and_then(|left_out| unavailable::check(&alive, &left_out).map(|()| left_out))
            .inspect_err(|_| alive.iter().for_each(|backend| backend.detach_sink(&self.sink())))?;
        // From now on their caches tell what was not used.
        alive.iter().for_each(|backend| _ = backend.idle_pinned_bytes());
        self.shared.collector.lock().resume();
        self.shared.inbox.open(true);
        backends.enabled = true;
        self.shared.signal(Signal::Collect);
        Ok(())
    }

    /// Stops counting and sampling. What was recorded stays; operations that are in flight are still resolved. Does nothing if it is
    /// disabled.
    pub fn disable(&self) {
        self.shared.disable();
    }

    /// Returns whether it is enabled.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.shared.inbox.is_open()
    }

    /// Records what the engines of the attached backends' devices do, by their drivers' own records, until the profiler is disabled: exact spans next to those of
    /// events, which include waiting for an engine, by copy engine or multiprocessors. The work of the whole process is recorded. Reports and traces have it from now
    /// on. For CUDA this takes NVIDIA's CUPTI, and makes each driver call slower.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it is recorded already; [`ErrorKind::InvalidArgument`] if the profiler is disabled; [`ErrorKind::Unsupported`] if no attached backend can, with
    /// each one's cause: CUPTI is not found, of an unknown version, or used by another tool.
    pub fn record_engines(&self) -> Result<()> {
        let backends = self.shared.backends.lock();
        if !backends.enabled {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "enable the profiler before engines are recorded",
            ));
        }
        if self.shared.collector.lock().records_engines() {
            return Err(Error::new(ErrorKind::Busy, "engines are recorded already"));
        }
        let mut refused = String::new();
        for backend in backends.known.iter().filter_map(Weak::upgrade) {
            let simulated = is_simulated(&*backend);
            let recording = backend.record_engines();
            let added = recording.and_then(|it| self.shared.collector.lock().record_engines(it, simulated));
            if let Err(error) = added {
                refused.push_str(&format!("; {}: {error}", backend.name()));
            }
        }
        if self.shared.collector.lock().records_engines() {
            return Ok(());
        }
        let text = format!("no attached backend records engines{refused}");
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// Has reports and traces tell later migrations and page faults of a buffer of unified memory apart, by a name. The buffer is not kept alive: what is
    /// allocated at its place later has its name, until that is named itself. Once 4,096 were named, later ones of a name count with the last of it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for other memory, or if 4,096 other names are those of buffers, or of what migrated.
    pub fn name_buffer(&self, buffer: &RawBuffer, name: impl Into<String>) -> Result<()> {
        let is_unified = buffer.place().kind == MemoryKind::Unified;
        let Some(address) = buffer.device_address().filter(|_| is_unified) else {
            let text = format!("{} memory does not migrate; only unified memory does", buffer.place());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        let range = address..address.saturating_add(buffer.len() as u64);
        match self.shared.collector.lock().engines.migrations.name(name.into(), range) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::InvalidArgument, "too many buffers have names")),
        }
    }

    /// Passes ranges to the tool whose library the variable `NVTX_INJECTION64_PATH` names, such as Nsight Systems: one for each operation of
    /// the caller, until its guard is dropped, and one for each transfer that the sampling takes, of managers that have the profiler as their observer,
    /// from its submission until its end is seen or its handle is dropped. So it is as long as the profiler is enabled; disabling it ends the ranges of transfers. Returns `false`
    /// if there is no tool. The library is loaded once in a process, and stays.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the library cannot be loaded, refuses, or takes no ranges.
    #[cfg(feature = "nvtx")]
    pub fn enable_nvtx(&self) -> Result<bool> {
        let Some(tool) = nvtx::Tool::load()? else { return Ok(false) };
        let backends = self.shared.backends.lock();
        self.shared.inbox.set_ranges(nvtx::Ranges::new(tool), backends.enabled);
        Ok(true)
    }

    /// Begins an operation of the caller on a queue, such as launches by its raw handle, and stamps the queue. The end is stamped when the
    /// guard is dropped, or by [`OperationGuard::end`]. If the profiler is disabled, nothing is recorded. The begin is as exact as the end however long the guard lives, unless the
    /// profiler is disabled meanwhile: CUDA tells an instant of T seconds ago in steps of up to T/8 µs.
    ///
    /// # Errors
    /// Those of [`Queue::stamp`].
    pub fn operation<'a>(
        &self,
        queue: &'a dyn Queue,
        name: impl Into<Cow<'static, str>>,
    ) -> Result<OperationGuard<'a>> {
        let mut guard = OperationGuard {
            profiler: self.clone(),
            queue,
            begun: None,
            #[cfg(feature = "nvtx")]
            range: None,
        };
        if self.is_enabled() {
            let named = NamedOperation::new(key(queue), name.into(), OperationKind::Kernel, 0);
            let begin = queue.stamp()?;
            #[cfg(feature = "nvtx")]
            {
                guard.range =
                    self.shared.inbox.ranges().map(|it| nvtx::Range::start(it.tool, &named.name, 0));
            }
            let begin = OpenBegin::new(begin);
            self.shared.inbox.begun(&begin);
            guard.begun = Some((named, begin));
        }
        Ok(guard)
    }

    /// Counts an operation of the caller on a queue. Without a duration it has none in reports.
    pub fn record_operation(
        &self,
        queue: &dyn Queue,
        name: impl Into<Cow<'static, str>>,
        duration: Option<Duration>,
    ) {
        self.record(queue, name.into(), (OperationKind::Kernel, 0), duration);
    }

    /// Counts a copy of the caller's, of so many bytes, like [`record_operation`](Self::record_operation).
    pub fn record_memory_transfer(&self, queue: &dyn Queue, bytes: u64, duration: Option<Duration>) {
        self.record(queue, Cow::Borrowed("copy"), (OperationKind::Copy, bytes), duration);
    }

    /// Counts a launch of the caller's, like [`record_operation`](Self::record_operation).
    pub fn record_kernel_launch(
        &self,
        queue: &dyn Queue,
        name: impl Into<Cow<'static, str>>,
        duration: Option<Duration>,
    ) {
        self.record(queue, name.into(), (OperationKind::Kernel, 0), duration);
    }

    fn record(
        &self,
        queue: &dyn Queue,
        name: Cow<'static, str>,
        (kind, bytes): (OperationKind, u64),
        duration: Option<Duration>,
    ) {
        if self.is_enabled() {
            let mut named = NamedOperation::new(key(queue), name, kind, bytes);
            named.time = duration.map_or(NamedTime::Counted, NamedTime::Given);
            self.push(named);
        }
    }

    pub(crate) fn push(&self, named: NamedOperation) {
        let inbox = &self.shared.inbox;
        inbox.push(Message::Named(named, inbox.this_thread()));
        if !self.is_enabled() {
            // It was begun before.
            self.shared.signal(Signal::Collect);
        }
    }

    /// Returns the report of a queue's stream; `None` if it had no operation. Reads the clocks, which takes some ten microseconds a
    /// device; does not wait for work in flight, except for the clock of a Vulkan device that the host cannot read.
    #[must_use]
    pub fn get_stream_report(&self, queue: &dyn Queue) -> Option<StreamReport> {
        let collector = self.shared.collect(true);
        collector.stream_report(queue.timeline().id(), self.shared.options.sampling, self.shared.inbox.lost())
    }

    /// Returns the report of everything since the profiler was made, like [`get_stream_report`](Self::get_stream_report).
    #[must_use]
    pub fn get_comprehensive_report(&self) -> ProfilerReport {
        let costs = self.shared.costs.read();
        let unavailable = self.shared.backends.lock().unavailable.clone();
        let collector = self.shared.collect(true);
        let report = collector.report(self.shared.options.sampling, self.shared.inbox.lost(), &costs);
        ProfilerReport { unavailable, ..report }
    }

    /// Writes operations whose times become known from now on to a trace. `out` is called by the profiler's thread, and by calls that return
    /// a report, disable the profiler or end the trace. These wait for each other, so `out` must not call the profiler; no submission waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if a trace is being written; those of [`TraceWriter::new`](crate::TraceWriter::new).
    pub fn start_trace(
        &self,
        out: impl Write + Send + 'static,
        format: TraceFormat,
        options: TraceOptions,
    ) -> Result<()> {
        let mut collector = self.shared.collector.lock();
        if collector.trace.is_some() {
            return Err(Error::new(ErrorKind::Busy, "a trace is being written; finish it first"));
        }
        let trace = TimelineTrace::new(Box::new(out), format, options)?;
        collector.begin_trace(trace, self.shared.inbox.lost());
        self.shared.gauges.lock().are_read = true;
        drop(collector);
        drop(self.shared.collect(true));
        self.shared.signal(Signal::Collect);
        Ok(())
    }

    /// Ends the trace with what is complete by now: synchronise first what should be in it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] without a trace; [`ErrorKind::Io`] if it could not be written, of which the part that was written opens.
    pub fn finish_trace(&self) -> Result<TraceSummary> {
        let costs = self.shared.costs.read();
        let mut collector = self.shared.collect(true);
        let none = || Error::new(ErrorKind::InvalidArgument, "no trace was started");
        let finished = collector.finish_trace(self.shared.inbox.lost(), &costs).ok_or_else(none)?;
        self.shared.gauges.lock().are_read = false;
        finished
    }

    fn start_thread(&self) -> Result<()> {
        let mut thread = self.shared.thread.lock();
        if thread.is_none() {
            let shared = Arc::clone(&self.shared.0);
            *thread = Some(Collecting::start(move || {
                shared.collect(false).is_waiting() || shared.inbox.is_open()
            })?);
        }
        Ok(())
    }
}

impl Shared {
    fn signal(&self, next: Signal) {
        self.thread.lock().iter().for_each(|thread| thread.signal(next));
    }

    fn alive(&self) -> Vec<Arc<dyn Backend>> {
        self.backends.lock().known.iter().filter_map(Weak::upgrade).collect()
    }

    /// Calls drivers, for which the backends prepare the thread.
    fn collect(&self, read: bool) -> MutexGuard<'_, Collector> {
        let alive = self.alive();
        let _attached: Vec<_> = alive.iter().map(|backend| backend.attach_thread()).collect();
        let values = self.gauges.lock().read(&alive);
        let mut collector = self.collect_of(&alive, read);
        values.iter().for_each(|value| collector.gauge(value));
        collector
    }

    /// Calls no code of the caller but the output of a trace. The backends have prepared the thread.
    fn collect_of(&self, alive: &[Arc<dyn Backend>], read: bool) -> MutexGuard<'_, Collector> {
        let is_due = self.inbox.is_open() && (read || self.collector.lock().idle_pinned.is_due());
        let idle: Vec<_> = alive
            .iter()
            .filter(|_| is_due)
            .map(|backend| Reading::of(backend, is_simulated(&**backend)))
            .collect();
        let mut collector = self.collector.lock();
        idle.into_iter().for_each(|reading| collector.idle_pinned.add(reading));
        collector.collect(&self.inbox, read);
        collector
    }

    fn disable(&self) {
        let mut backends = self.backends.lock();
        if backends.enabled {
            self.inbox.open(false);
            let sink = Arc::clone(&self.inbox) as Arc<dyn OperationSink>;
            let alive: Vec<_> = backends.known.iter().filter_map(Weak::upgrade).collect();
            let _attached: Vec<_> = alive.iter().map(|backend| backend.attach_thread()).collect();
            // The queues' counts, before another profiler's attachment may clear them, and what came until this one's end.
            drop(self.collect_of(&alive, false));
            alive.iter().for_each(|backend| backend.detach_sink(&sink));
            backends.enabled = false;
            let records_engines = self.collector.lock().records_engines();
            let mut collector = self.collect_of(&alive, records_engines);
            let stopped = collector.stop_engines();
            drop(collector);
            drop(backends);
            drop(stopped);
        }
    }
}

impl Deref for Handle {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.disable();
        self.signal(Signal::Stop);
        let thread = self.thread.lock().take();
        thread.into_iter().for_each(Collecting::join);
    }
}

fn is_simulated(backend: &dyn Backend) -> bool {
    backend.devices().iter().any(|device| device.simulated)
}

fn key(queue: &dyn Queue) -> QueueKey {
    let timeline = queue.timeline();
    QueueKey {
        id: timeline.id(),
        device: queue.device(),
        priority: queue.priority(),
        simulated: timeline.is_simulated(),
    }
}

impl fmt::Debug for StreamProfiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamProfiler").field("enabled", &self.is_enabled()).finish_non_exhaustive()
    }
}
