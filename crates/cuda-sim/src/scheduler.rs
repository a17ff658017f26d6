//! Runs enqueued work late, in a seeded random order among those that CUDA's ordering rules allow.
//!
//! Enqueueing runs nothing. Work runs when a call waits for it; other ready work of the device then runs too, as drawn
//! from the seed. A large copy runs in pieces, interleaved with other work.

use std::{
    backtrace::Backtrace,
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::MutexGuard;

use crate::{
    access::{AccessKind, AccessRecord, Actor, ClockedAccess},
    activities,
    api::{self, cupti},
    clock::Clock,
    code,
    execute::{self, Progress},
    graph::Node,
    op::{Op, Point, Work},
    state::{CHANGED, Guard, State, Stream, StreamKind},
    timing,
};

/// Like [`enqueue_after`], but without further dependencies.
pub(crate) fn enqueue(guard: &mut Guard, stream: u64, name: &'static str, work: Work) -> Point {
    enqueue_after(guard, stream, name, work, Vec::new(), None)
}

/// Like [`append`], but first blocks while the stream's launch queue is full.
pub(crate) fn enqueue_after(
    guard: &mut Guard,
    stream: u64,
    name: &'static str,
    work: Work,
    after: Vec<Point>,
    known: Option<&Clock>,
) -> Point {
    if let Some(own) = guard.streams.get(&stream)
        && !guard.graphs.is_capturing(stream)
    {
        let depth = guard.device(own.device).options.launch_queue;
        let position = (own.enqueued + 1).saturating_sub(depth);
        run_until(guard, Point { stream, position });
    }
    append(guard, stream, name, work, after, known)
}

/// Appends an operation to a stream and returns its position. `after` lists dependencies besides the stream's order,
/// `known` is their vector clock.
pub(crate) fn append(
    state: &mut State,
    stream: u64,
    name: &'static str,
    work: Work,
    mut after: Vec<Point>,
    known: Option<&Clock>,
) -> Point {
    let Some(own) = state.streams.get(&stream) else { return Point { stream, position: 0 } };
    let (context, device) = (own.context, own.device);
    if state.graphs.is_capturing(stream) {
        state.graphs.append(stream, Node { name, work, after: BTreeSet::new(), context, device });
        return end_of(state, stream);
    }
    let sequence = state.next_sequence();
    let barrier = implicit_barrier(state, stream);
    let clock = state.recording.then(|| Arc::new(step_clock(state, stream, &barrier, known)));
    after.extend(barrier);
    after.retain(|point| !is_reached(state, *point));
    state.words += usize::from(matches!(work, Work::Word { .. }));
    match &clock {
        // What the host does until it writes the word comes first, but is not known yet.
        Some(clock) if state.words == 0 || !follows_word(state, stream, &after, &mut BTreeSet::new()) => {
            check(state, stream, name, sequence, &work, clock);
        }
        _ => {}
    }
    let enqueued_at = state.now(device);
    let Some(target) = state.streams.get_mut(&stream) else { return Point { stream, position: 0 } };
    target.enqueued += 1;
    let position = target.enqueued;
    let copied = match &work {
        Work::Copies(copies) => (copies.iter().map(|copy| copy.bytes() as u64).sum(), copies.len() as u64),
        _ => (0, 0),
    };
    let (call, cost) = (cupti::record_call(), None);
    target.queue.push_back(Op { name, position, after, enqueued_at, clock, work, cost, call, copied });
    Point { stream, position }
}

/// Bytes of a word that a stream writes.
const WORD_BYTES: usize = 4;

/// Returns whether a queued wait for a word comes before the next operation of a stream, which has these dependencies.
fn follows_word(state: &State, stream: u64, after: &[Point], seen: &mut BTreeSet<u64>) -> bool {
    let Some(own) = state.streams.get(&stream).filter(|_| seen.insert(stream)) else { return false };
    let is_word = |op: &Op| matches!(op.work, Work::Word { .. });
    own.queue.iter().any(is_word)
        || own
            .queue
            .iter()
            .flat_map(|op| &op.after)
            .chain(after)
            .any(|point| !is_reached(state, *point) && follows_word(state, point.stream, &[], seen))
}

/// Returns whether an operation is no wait for a word that the host has not written yet.
fn is_written(state: &State, device: u32, op: &Op) -> bool {
    let Work::Word { address, value, equal } = op.work else { return true };
    // The operation fails if the word was freed.
    let Ok(word) = state.memory.touch(address, 4) else { return true };
    // SAFETY: the four bytes are live, and aligned, as was checked when the operation was enqueued. The host writes them by atomic
    // operations.
    let word = unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }.load(Ordering::Acquire);
    state.device(device).faults.sticky.is_some()
        || if equal { word == value } else { word.wrapping_sub(value).cast_signed() >= 0 }
}

/// Returns the points that the legacy default stream's implicit synchronisation makes an operation of `stream` wait
/// for.
fn implicit_barrier(state: &State, stream: u64) -> Vec<Point> {
    let Some(own) = state.streams.get(&stream) else { return Vec::new() };
    let wanted = match own.kind {
        StreamKind::NonBlocking => return Vec::new(),
        StreamKind::Legacy => StreamKind::Blocking,
        StreamKind::Blocking => StreamKind::Legacy,
    };
    let others =
        state.streams.iter().filter(|(_, other)| other.context == own.context && other.kind == wanted);
    others.map(|(id, other)| Point { stream: *id, position: other.enqueued }).collect()
}

fn step_clock(state: &mut State, stream: u64, barrier: &[Point], known: Option<&Clock>) -> Clock {
    let mut clock = state.streams.get(&stream).map(|own| own.clock.clone()).unwrap_or_default();
    clock.join(&state.host_clock);
    for point in barrier {
        if let Some(other) = state.streams.get(&point.stream) {
            clock.join(&other.clock);
        }
    }
    if let Some(known) = known {
        clock.join(known);
    }
    clock.tick(stream);
    // Later host accesses do not happen before this operation.
    state.host_clock.tick(crate::clock::HOST);
    if let Some(own) = state.streams.get_mut(&stream) {
        own.clock = clock.clone();
    }
    clock
}

fn check(state: &mut State, stream: u64, name: &'static str, sequence: u64, work: &Work, clock: &Arc<Clock>) {
    let Some(own) = state.streams.get(&stream) else { return };
    let actor = Actor::Stream { device: own.device, stream: own.number };
    let acting = own.device;
    for (address, bytes, kind) in work.accesses(&state.memory) {
        let record = AccessRecord { actor, operation: name, sequence, address, bytes, kind };
        let owner = state.memory.find(address).map(|found| found.device);
        match owner {
            Some(owner) => {
                let access = ClockedAccess {
                    record,
                    by: stream,
                    step: clock.of(stream),
                    clock: Some(Arc::clone(clock)),
                };
                state.device_mut(owner).log.check(access, clock);
            }
            None => state.device_mut(acting).log.record(record),
        }
    }
}

/// Records and checks a host access. In a host function it counts as an access of the stream.
pub(crate) fn host_access(
    state: &mut State,
    operation: &'static str,
    address: u64,
    bytes: usize,
    kind: AccessKind,
) {
    if !state.recording {
        return;
    }
    if kind == AccessKind::Read && bytes == WORD_BYTES {
        let known = state.written_words.get(&address).cloned();
        join_host_clock(state, known.as_deref());
    }
    let Some(owner) = state.memory.find(address).map(|found| found.device) else { return };
    let sequence = state.next_sequence();
    let callback = api::running_callback();
    let (actor, by, clock) = match &callback {
        Some(running) => (running.actor, running.stream, running.clock.clone()),
        None => (Actor::Host(std::thread::current().id()), crate::clock::HOST, None),
    };
    let record = AccessRecord { actor, operation, sequence, address, bytes, kind };
    let State { devices, host_clock, .. } = state;
    if by == crate::clock::HOST && host_clock.of(by) == 0 {
        host_clock.tick(by);
    }
    let current = clock.as_deref().unwrap_or(host_clock);
    let access = ClockedAccess { record, by, step: current.of(by), clock: clock.clone() };
    if let Some(device) = devices.get_mut(owner as usize) {
        device.log.check(access, current);
    }
}

/// Returns the clock of all work enqueued on a stream, which a host that waits for the stream then joins.
pub(crate) fn stream_clock(state: &State, stream: u64) -> Option<Clock> {
    state.recording.then(|| state.streams.get(&stream).map(|own| own.clock.clone())).flatten()
}

/// Joins the host's clock with that of the work it waited for.
pub(crate) fn join_host_clock(state: &mut State, known: Option<&Clock>) {
    if let Some(known) = known {
        state.host_clock.join(known);
    }
}

pub(crate) fn is_reached(state: &State, point: Point) -> bool {
    state.streams.get(&point.stream).is_none_or(|stream| stream.completed >= point.position)
}

/// Returns the position of the last operation enqueued on a stream.
pub(crate) fn end_of(state: &State, stream: u64) -> Point {
    Point { stream, position: state.streams.get(&stream).map_or(0, |own| own.enqueued) }
}

/// The next step towards reaching a point.
enum NextStep {
    /// Run the head of this stream.
    Run(u64),
    /// Wait for another thread to return from the host function at the head of this stream, or to write the word there.
    Return(u64),
}

fn next_step(state: &State, mut point: Point) -> Option<NextStep> {
    loop {
        let stream = state.streams.get(&point.stream)?;
        if stream.busy {
            return Some(NextStep::Return(point.stream));
        }
        let head = stream.queue.front()?;
        match head.after.iter().find(|other| !is_reached(state, **other)) {
            Some(other) => point = *other,
            None if !is_written(state, stream.device, head) => return Some(NextStep::Return(point.stream)),
            None => return Some(NextStep::Run(point.stream)),
        }
    }
}

fn is_ready(state: &State, stream: u64) -> bool {
    let Some(own) = state.streams.get(&stream) else { return false };
    let Some(head) = own.queue.front() else { return false };
    !own.busy
        && head.after.iter().all(|point| is_reached(state, *point))
        && is_written(state, own.device, head)
}

/// Allocates nothing: tests count what is allocated.
fn any_ready(state: &mut State, device: u32) -> Option<u64> {
    let count = ready(state, device).count();
    let drawn = (count > 0).then(|| state.device_mut(device).rng.below(count))?;
    ready(state, device).nth(drawn)
}

fn ready(state: &State, device: u32) -> impl Iterator<Item = u64> {
    let streams = state.streams.iter().filter(move |(_, stream)| stream.device == device);
    streams.map(|(id, _)| *id).filter(|id| is_ready(state, *id))
}

/// Runs work until `point` is reached, or a host function that it depends on has timed out.
pub(crate) fn run_until(guard: &mut Guard, point: Point) {
    let mut eagerness = None;
    let mut awaited = None;
    while !is_reached(guard, point) {
        let next = match next_step(guard, point) {
            Some(NextStep::Run(next)) => next,
            Some(NextStep::Return(running)) => {
                if wait_for_return(guard, running, &mut awaited) {
                    continue;
                }
                return;
            }
            None => return,
        };
        let Some(device) = guard.streams.get(&next).map(|stream| stream.device) else { continue };
        let eager = *eagerness.get_or_insert_with(|| {
            let drawn = guard.device_mut(device).rng.below(4);
            [0, 25, 50, 90][drawn]
        });
        let other = if guard.device_mut(device).rng.chance(eager) { any_ready(guard, device) } else { None };
        step(guard, other.unwrap_or(next));
    }
    let end = guard.streams.get(&point.stream).map(|stream| (stream.device, stream.time));
    if let Some((device, time)) = end {
        let device = guard.device_mut(device);
        device.now = device.now.max(time);
    }
}

/// The host function that a thread waits for, and since when.
type Awaited = Option<((u64, u64), Instant)>;

/// Time between two looks at a word.
const WORD_INTERVAL: Duration = Duration::from_micros(200);

/// Waits for a host function that another thread runs, or for a word that one writes. Returns `false` once the device's `host_function_timeout` has passed: the
/// device is then lost, and a report names the threads.
fn wait_for_return(guard: &mut Guard, stream: u64, awaited: &mut Awaited) -> bool {
    let Some(own) = guard.streams.get(&stream) else { return true };
    let (device, number, head) = (own.device, own.number, (stream, own.completed));
    let is_word = !own.busy;
    let owner = guard.device(device);
    if owner.deadlocks.iter().any(|(lost, _)| *lost == head) {
        return false;
    }
    let since = match awaited {
        Some((same, since)) if *same == head => *since,
        _ => awaited.insert((head, Instant::now())).1,
    };
    let left = owner.options.host_function_timeout.saturating_sub(since.elapsed());
    if left > Duration::ZERO {
        // Nothing tells of a written word.
        let interval = if is_word { left.min(WORD_INTERVAL) } else { left };
        let _woken = CHANGED.wait_for(guard, interval);
        return true;
    }
    let (waiting, limit) = (thread::current(), guard.device(device).options.host_function_timeout);
    let text = format!(
        "thread {:?} ({}) has waited {limit:?} in a driver call for the host function, or the word, at the head of stream {number} of \
         simulated device {device}; if the host waits for this thread, neither ends. The device is lost (702)",
        waiting.id(),
        waiting.name().unwrap_or("unnamed"),
    );
    eprintln!("{text}\n{}", Backtrace::force_capture());
    let owner = guard.device_mut(device);
    owner.deadlocks.push((head, text));
    owner.faults.sticky.get_or_insert(code::LAUNCH_TIMEOUT);
    CHANGED.notify_all();
    false
}

/// Runs all work enqueued on a device, as calls that free memory do. CUDA does not document that they wait, so the
/// host's clock does not advance.
pub(crate) fn run_device(guard: &mut Guard, device: u32) {
    run_streams(guard, device, |stream| stream.device == device);
}

/// Runs all work enqueued in a context, and joins the host's clock with it.
pub(crate) fn synchronize_context(guard: &mut Guard, context: u64) {
    let Some(device) = guard.contexts.get(&context).map(|found| found.device) else { return };
    for clock in run_streams(guard, device, |stream| stream.context == context) {
        join_host_clock(guard, Some(&clock));
    }
}

/// Runs all work enqueued on the selected streams of a device. Returns their clocks.
fn run_streams(guard: &mut Guard, device: u32, which: impl Fn(&Stream) -> bool) -> Vec<Clock> {
    let chosen = guard.streams.iter().filter(|(_, stream)| which(stream));
    let mut points: Vec<Point> =
        chosen.map(|(id, stream)| Point { stream: *id, position: stream.enqueued }).collect();
    let known = points.iter().filter_map(|point| stream_clock(guard, point.stream)).collect();
    guard.device_mut(device).rng.shuffle(&mut points);
    for point in points {
        run_until(guard, point);
    }
    known
}

/// Polls `point`: runs some steps, as many as the seed gives but at least one in every three polls, and returns whether
/// the point is reached.
pub(crate) fn query(guard: &mut Guard, point: Point) -> bool {
    if is_reached(guard, point) {
        return true;
    }
    let Some(device) = guard.streams.get(&point.stream).map(|stream| stream.device) else { return true };
    let mut steps = guard.device_mut(device).rng.below(4);
    if steps == 0 {
        let idle = &mut guard.device_mut(device).idle_queries;
        *idle += 1;
        if *idle >= 3 {
            steps = 1;
        }
    }
    for turn in 0..steps {
        if is_reached(guard, point) {
            break;
        }
        guard.device_mut(device).idle_queries = 0;
        let Some(NextStep::Run(next)) = next_step(guard, point) else { break };
        // The first step always advances towards the point.
        let other = if turn > 0 { any_ready(guard, device) } else { None };
        step(guard, other.unwrap_or(next));
    }
    is_reached(guard, point)
}

/// Runs the head of a stream, or a piece of it.
fn step(guard: &mut Guard, stream: u64) {
    let state: &mut State = guard;
    let Some(own) = state.streams.get_mut(&stream) else { return };
    let Some(mut op) = own.queue.pop_front() else { return };
    let (device, number) = (own.device, own.number);
    own.busy = true;
    // Computed before the first piece, so that pieces do not change the duration.
    let timed = op.cost.unwrap_or_else(|| timing_of(state, stream, &op));
    op.cost = Some(timed);
    // Nothing runs on a context with a sticky error.
    let progress = if state.device(device).faults.sticky.is_some() {
        Progress::Done
    } else {
        execute::execute(state, stream, &mut op)
    };
    match progress {
        Progress::Partly => {
            if let Some(own) = state.streams.get_mut(&stream) {
                own.queue.push_front(op);
                own.busy = false;
            }
            return;
        }
        Progress::Failed(code) => {
            let sticky = &mut state.device_mut(device).faults.sticky;
            *sticky = Some(sticky.unwrap_or(code));
        }
        Progress::Done => {}
        Progress::Call(call) => {
            let running = api::Running {
                stream,
                actor: Actor::Stream { device, stream: number },
                clock: op.clock.clone(),
            };
            MutexGuard::unlocked(guard, || api::call_host(call, running));
            // Merge the clock: threads that synchronised with the host function know what it knew.
            join_host_clock(guard, op.clock.as_deref());
        }
    }
    complete(guard, stream, &op, timed);
    CHANGED.notify_all();
}

/// Returns the engine and duration of an operation that has not started.
fn timing_of(state: &State, stream: u64, op: &Op) -> (timing::Engine, u64) {
    let Some(own) = state.streams.get(&stream) else { return (timing::Engine::None, 0) };
    let peers = state.contexts.get(&own.context).is_some_and(|context| !context.peers.is_empty());
    timing::cost(op, &state.device(own.device).options, &state.memory, peers)
}

fn complete(state: &mut State, stream: u64, op: &Op, (engine, duration): (timing::Engine, u64)) {
    let Some(own) = state.streams.get(&stream) else { return };
    let (device, number) = (own.device, own.number);
    let waited =
        op.after.iter().filter_map(|point| state.streams.get(&point.stream)).map(|other| other.time).max();
    let begin = if own.is_after_event { timing::after_event(op) } else { 0 };
    let mut ready = own.time.saturating_add(begin).max(op.enqueued_at).max(waited.unwrap_or(0));
    if matches!(op.work, Work::Word { .. } | Work::Host(_)) {
        // The host wrote it, or returned, now.
        ready = ready.max(state.now(device));
        state.words = state.words.saturating_sub(usize::from(matches!(op.work, Work::Word { .. })));
    }
    let end = state.device_mut(device).engines.reserve(engine, ready, duration);
    if let Some(pace) = state.device(device).options.pace {
        pace.wait_until(end);
    }
    let is_after_event = match op.work {
        Work::Record { event, generation } => {
            state.record_event_time((device, number), (event, generation), end)
        }
        _ => false,
    };
    activities::record(
        state.device(device),
        op,
        engine,
        (device, number),
        (end.saturating_sub(duration), end),
    );
    state.record_executed(device, number, op.name);
    if let Some(own) = state.streams.get_mut(&stream) {
        own.busy = false;
        own.completed = op.position;
        own.time = end;
        own.is_after_event = is_after_event;
        if own.destroyed && own.queue.is_empty() {
            state.streams.remove(&stream);
        }
    }
}
