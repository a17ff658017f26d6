//! The driver's state, behind one lock.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::ThreadId,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    access::AccessLog,
    address_space::AddressSpace,
    api::external::External,
    clock::Clock,
    code::{self, CuResult},
    faults::Faults,
    graph::Graphs,
    host_kernel::HostKernel,
    live_objects::LiveObjects,
    memory::{Kind, Memory},
    op::{Op, Point},
    options::SimDeviceBuilder,
    rng::Rng,
    timing::Engines,
};

/// Number of completed operations that [`SimDevice::executed`](crate::SimDevice::executed) keeps, and of times of events.
const EXECUTED_KEPT: usize = 65_536;

/// The locked state. The lock is never held while a host function runs.
pub(crate) type Guard = MutexGuard<'static, State>;

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

/// Notified when a host function returns, work completes or a free has finished.
pub(crate) static CHANGED: Condvar = Condvar::new();

/// Whether any device needs announced host accesses.
pub(crate) static TRACKS_HOST_ACCESSES: AtomicBool = AtomicBool::new(false);

pub(crate) fn lock() -> Guard {
    STATE.lock()
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) initialised: bool,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: BTreeMap<u64, Context>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) events: BTreeMap<u64, Event>,
    pub(crate) pools: BTreeMap<u64, Pool>,
    pub(crate) modules: BTreeMap<u64, Module>,
    pub(crate) functions: BTreeMap<u64, Function>,
    pub(crate) graphs: Graphs,
    pub(crate) memory: Memory,
    pub(crate) external: BTreeMap<u64, External>,
    pub(crate) sequence: u64,
    /// Whether any device records accesses.
    pub(crate) recording: bool,
    pub(crate) host_clock: Clock,
    /// Number of queued waits for words.
    pub(crate) words: usize,
    /// The clock of the last write of each word that a stream wrote: a host that reads it knows of the work before.
    pub(crate) written_words: BTreeMap<u64, Arc<Clock>>,
    next_handle: u64,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) options: SimDeviceBuilder,
    pub(crate) rng: Rng,
    pub(crate) space: AddressSpace,
    /// Bytes of device memory in use.
    pub(crate) used: u64,
    pub(crate) primary: Option<Primary>,
    pub(crate) default_pool: u64,
    /// The host's virtual time as this device last saw it, in nanoseconds.
    pub(crate) now: u64,
    pub(crate) engines: Engines,
    pub(crate) faults: Faults,
    pub(crate) log: AccessLog,
    pub(crate) executed: VecDeque<(u32, &'static str)>,
    /// Streams and times of the last events with timing.
    pub(crate) event_times: VecDeque<(u32, u64)>,
    pub(crate) next_stream_number: u32,
    pub(crate) forbidden_accesses: Vec<usize>,
    /// Host functions that a thread waited for too long, by stream and position, with their reports.
    pub(crate) deadlocks: Vec<((u64, u64), String)>,
    /// The thread whose call frees memory and waits for the device; calls of other threads block meanwhile.
    pub(crate) freeing: Option<ThreadId>,
    /// Consecutive queries that ran nothing.
    pub(crate) idle_queries: u32,
}

#[derive(Debug)]
pub(crate) struct Primary {
    pub(crate) context: u64,
    pub(crate) retained: u64,
}

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: u32,
    pub(crate) legacy: u64,
    pub(crate) per_thread: BTreeMap<u64, u64>,
    /// Devices to whose memory this context enabled peer access.
    pub(crate) peers: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    Legacy,
    /// Synchronises implicitly with the legacy default stream.
    Blocking,
    NonBlocking,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: u64,
    pub(crate) device: u32,
    pub(crate) number: u32,
    pub(crate) kind: StreamKind,
    pub(crate) priority: i32,
    /// Whether `cuStreamCreate` created it.
    pub(crate) created: bool,
    pub(crate) destroyed: bool,
    pub(crate) queue: VecDeque<Op>,
    pub(crate) enqueued: u64,
    pub(crate) completed: u64,
    /// Whether a step of its head is running.
    pub(crate) busy: bool,
    /// Virtual time at which its last completed operation ended.
    pub(crate) time: u64,
    /// Whether that was an event that has a time: what follows it [begins later](crate::timing::after_event).
    pub(crate) is_after_event: bool,
    pub(crate) clock: Clock,
}

#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) context: u64,
    pub(crate) device: u32,
    pub(crate) timing: bool,
    pub(crate) generation: u64,
    pub(crate) record: Option<Point>,
    pub(crate) time: Option<u64>,
    pub(crate) clock: Option<Arc<Clock>>,
}

#[derive(Debug, Default)]
pub(crate) struct Pool {
    pub(crate) device: u32,
    pub(crate) created: bool,
    pub(crate) destroyed: bool,
    pub(crate) threshold: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    /// The reuse attributes (1 to 3). Stored only: this pool never reuses memory out of order.
    pub(crate) reuse: [i32; 3],
    pub(crate) access: BTreeMap<u32, u32>,
}

#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: u64,
    /// Whether its code is loaded on the device.
    pub(crate) is_loaded: bool,
    pub(crate) host_kernels: BTreeMap<String, HostKernel>,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) module: u64,
    pub(crate) context: u64,
    pub(crate) name: String,
    pub(crate) host_kernel: HostKernel,
}

impl State {
    /// Returns a new handle. Handles are never dereferenced or reused, and differ from the small numbers of default
    /// streams.
    pub(crate) fn new_handle(&mut self) -> u64 {
        self.next_handle += 1;
        0x00E0_0000_0000_0000 + self.next_handle * 16
    }

    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    pub(crate) fn add_device(&mut self, options: SimDeviceBuilder) -> u32 {
        let ordinal = u32::try_from(self.devices.len()).unwrap_or(u32::MAX);
        let pool = self.new_handle();
        self.pools.insert(pool, Pool::new(ordinal, false));
        self.recording |= options.record;
        // Residency depends on host accesses, too.
        let is_timed = options.host_copy_gbps.is_some();
        if options.record || options.managed || !options.concurrent_managed || is_timed {
            TRACKS_HOST_ACCESSES.store(true, Ordering::Release);
        }
        self.devices.push(Device {
            rng: Rng::new(options.seed),
            space: AddressSpace::reserve(options.total_memory as u64, ordinal),
            used: 0,
            primary: None,
            default_pool: pool,
            now: 0,
            engines: Engines::default(),
            faults: Faults::default(),
            log: AccessLog::new(options.record),
            executed: VecDeque::new(),
            event_times: VecDeque::new(),
            next_stream_number: 0,
            forbidden_accesses: Vec::new(),
            deadlocks: Vec::new(),
            freeing: None,
            idle_queries: 0,
            options,
        });
        ordinal
    }

    pub(crate) fn device(&self, ordinal: u32) -> &Device {
        &self.devices[ordinal as usize]
    }

    /// Returns the host's virtual time as the device sees it.
    pub(crate) fn now(&mut self, ordinal: u32) -> u64 {
        let device = self.device_mut(ordinal);
        if let Some(pace) = device.options.pace {
            device.now = device.now.max(pace.now());
        }
        device.now
    }

    pub(crate) fn device_mut(&mut self, ordinal: u32) -> &mut Device {
        &mut self.devices[ordinal as usize]
    }

    pub(crate) fn add_stream(
        &mut self,
        context: u64,
        device: u32,
        kind: StreamKind,
        priority: i32,
        created: bool,
    ) -> u64 {
        let handle = self.new_handle();
        let owner = self.device_mut(device);
        let number = owner.next_stream_number;
        owner.next_stream_number += 1;
        let time = owner.now;
        self.streams.insert(
            handle,
            Stream {
                context,
                device,
                number,
                kind,
                priority,
                created,
                destroyed: false,
                queue: VecDeque::new(),
                enqueued: 0,
                completed: 0,
                busy: false,
                time,
                is_after_event: false,
                clock: Clock::new(),
            },
        );
        handle
    }

    /// Retains the primary context of a device; creates it if necessary.
    pub(crate) fn retain_primary(&mut self, device: u32) -> u64 {
        if let Some(primary) = &mut self.device_mut(device).primary {
            primary.retained += 1;
            return primary.context;
        }
        let context = self.new_handle();
        let legacy = self.add_stream(context, device, StreamKind::Legacy, 0, false);
        let entry = Context { device, legacy, per_thread: BTreeMap::new(), peers: BTreeSet::new() };
        self.contexts.insert(context, entry);
        self.device_mut(device).primary = Some(Primary { context, retained: 1 });
        context
    }

    /// Removes a context, whose work is complete, and everything in it.
    pub(crate) fn destroy_context(&mut self, context: u64) {
        let Some(gone) = self.contexts.remove(&context) else { return };
        let device = gone.device;
        // Include streams destroyed earlier, which only the host's clock still contains.
        let is_gone = |id: &u64| self.streams.get(id).is_none_or(|stream| stream.context == context);
        let known = self.host_clock.actors().filter(|actor| *actor != crate::clock::HOST);
        let streams: BTreeSet<u64> = self.streams.keys().copied().chain(known).filter(is_gone).collect();
        for stream in &streams {
            self.streams.remove(stream);
            self.host_clock.forget(*stream);
        }
        for other in &mut self.devices {
            other.log.forget_actors(&streams);
        }
        self.events.retain(|_, event| event.context != context);
        self.modules.retain(|_, module| module.context != context);
        self.functions.retain(|_, function| function.context != context);
        self.graphs.forget_context(context);
        // Pool memory belongs to the device and outlives the context.
        let own = self.memory.iter().filter(|one| one.context == context);
        let own = own.filter(|one| !matches!(one.kind, Kind::Pool(_))).map(|one| one.base);
        for base in own.collect::<Vec<_>>() {
            self.release(base);
        }
        let owner = self.device_mut(device);
        owner.primary = None;
        owner.faults.sticky = None;
    }

    /// Removes an allocation. Memory reserved by a pool stays in the pool until a synchronisation.
    pub(crate) fn release(&mut self, base: u64) {
        let Some(gone) = self.memory.remove(base) else { return };
        let recording = self.recording;
        let owner = self.device_mut(gone.device);
        if recording {
            // The range is reused without history.
            owner.log.forget_range(gone.base, gone.bytes);
        }
        let taken = match gone.kind {
            Kind::Device => &mut owner.used,
            Kind::Pool(pool) => match self.pools.get_mut(&pool) {
                Some(pool) => &mut pool.used,
                None => return,
            },
            _ => return,
        };
        *taken = taken.saturating_sub(charged_bytes(gone.bytes));
    }

    pub(crate) fn stream(&self, stream: u64) -> CuResult<&Stream> {
        self.streams.get(&stream).ok_or(code::INVALID_HANDLE)
    }

    /// Destroys a stream; work in flight on it still completes.
    pub(crate) fn destroy_stream(&mut self, stream: u64) {
        let Some(own) = self.streams.get_mut(&stream) else { return };
        own.destroyed = true;
        if own.queue.is_empty() && !own.busy {
            self.streams.remove(&stream);
        }
    }

    pub(crate) fn event(&self, event: u64) -> CuResult<&Event> {
        self.events.get(&event).ok_or(code::INVALID_HANDLE)
    }

    pub(crate) fn function(&self, function: u64) -> CuResult<&Function> {
        self.functions.get(&function).ok_or(code::INVALID_HANDLE)
    }

    pub(crate) fn pool(&self, pool: u64) -> CuResult<&Pool> {
        self.pools.get(&pool).ok_or(code::INVALID_VALUE)
    }

    /// Returns whether the devices can access each other's memory.
    pub(crate) fn are_peers(&self, one: u32, other: u32) -> bool {
        one != other && self.device(one).options.peers && self.device(other).options.peers
    }

    pub(crate) fn record_executed(&mut self, device: u32, stream: u32, name: &'static str) {
        keep(&mut self.device_mut(device).executed, (stream, name));
    }

    /// Returns whether it is an event that has a time.
    pub(crate) fn record_event_time(
        &mut self,
        (device, stream): (u32, u32),
        (event, generation): (u64, u64),
        time: u64,
    ) -> bool {
        let Some(event) = self.events.get_mut(&event) else { return false };
        let has_time = event.timing;
        if event.generation == generation {
            event.time = Some(time);
            if has_time {
                keep(&mut self.device_mut(device).event_times, (stream, time));
            }
        }
        has_time
    }

    /// Resolves a stream handle: null, legacy and per-thread handles refer to default streams of the context.
    pub(crate) fn resolve_stream(&mut self, context: Option<u64>, handle: u64, thread: u64) -> CuResult<u64> {
        if handle > 2 {
            let known = self.streams.get(&handle).filter(|stream| !stream.destroyed);
            return known.map(|_| handle).ok_or(code::INVALID_HANDLE);
        }
        let context = context.ok_or(code::INVALID_CONTEXT)?;
        let found = self.contexts.get(&context).ok_or(code::CONTEXT_IS_DESTROYED)?;
        if handle < 2 {
            return Ok(found.legacy);
        }
        if let Some(stream) = found.per_thread.get(&thread) {
            return Ok(*stream);
        }
        let device = found.device;
        let stream = self.add_stream(context, device, StreamKind::Blocking, 0, false);
        if let Some(found) = self.contexts.get_mut(&context) {
            found.per_thread.insert(thread, stream);
        }
        Ok(stream)
    }

    pub(crate) fn live_objects(&self, device: u32) -> LiveObjects {
        let mut live = LiveObjects {
            contexts: self.contexts.values().filter(|context| context.device == device).count(),
            streams: self
                .streams
                .values()
                .filter(|stream| stream.device == device && stream.created && !stream.destroyed)
                .count(),
            events: self.events.values().filter(|event| event.device == device).count(),
            pools: self
                .pools
                .values()
                .filter(|pool| pool.device == device && pool.created && !pool.destroyed)
                .count(),
            modules: self
                .modules
                .values()
                .filter(|module| self.contexts.get(&module.context).is_some_and(|at| at.device == device))
                .count(),
            external: self.external.values().filter(|external| external.device == device).count(),
            ..LiveObjects::default()
        };
        (live.graphs, live.graph_execs) = self.graphs.count(device);
        for allocation in self.memory.iter().filter(|one| one.device == device) {
            match allocation.kind {
                Kind::Device | Kind::Pool(_) => {
                    live.device_allocations += 1;
                    live.bytes += allocation.bytes;
                }
                Kind::Pinned { .. } => live.pinned += 1,
                Kind::Registered { .. } => live.registered += 1,
                Kind::Managed(_) => live.managed += 1,
            }
        }
        live
    }
}

impl Pool {
    pub(crate) fn new(device: u32, created: bool) -> Self {
        Self { device, created, reuse: [1; 3], ..Self::default() }
    }
}

/// Returns the device memory that an allocation occupies, in bytes.
pub(crate) fn charged_bytes(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(crate::address_space::ALIGNMENT)
}

fn keep<T>(last: &mut VecDeque<T>, one: T) {
    if last.len() == EXECUTED_KEPT {
        last.pop_front();
    }
    last.push_back(one);
}
