//! Points that were published, and whose submission failed; what submissions wait for.

use std::sync::mpsc;

use transload_core::{
    Access, Backend as _, ErrorKind, Fence, Operation, Queue as _, StreamPriority, Timing, WorkloadType,
    submit,
};

use super::{
    super::{
        faults, gate,
        queue::WgpuQueue,
        state::{DeviceState, Line},
    },
    *,
};
use crate::setup;

#[test]
fn loss_ends_waits_for_points_that_were_not_submitted() {
    let Some(backend) = setup::backend() else { return };
    let Some(state) = backend.states().pop() else { return };
    let queue = &*state.queue;
    // As a submission does that wgpu then loses, on this thread.
    let locked = queue.state.lock();
    *queue.vulkan.wgpu_thread.lock() = Some(thread::current().id());
    let point = queue.enqueued.fetch_add(1, Ordering::AcqRel) + 1;
    queue.lose_for_test();
    *queue.vulkan.wgpu_thread.lock() = None;
    drop(locked);
    // SAFETY: the semaphore is alive.
    let value = unsafe { queue.vulkan.raw.get_semaphore_counter_value(queue.semaphore.raw) };
    assert!(value.is_ok_and(|value| value >= point), "a thread or a stream would wait for ever");
    assert!(queue.outcome(point).is_err_and(|error| error.kind() == ErrorKind::DeviceLost));
}

#[test]
fn thread_that_waited_for_the_lock_submits_nothing_to_a_lost_device() {
    let Some(backend) = setup::backend() else { return };
    let Some(state) = backend.states().pop() else { return };
    let queue = &*state.queue;
    let locked = queue.state.lock();
    let (begun, has_begun) = mpsc::channel();
    thread::scope(|scope| {
        let submitted = scope.spawn(move || {
            begun.send(()).unwrap();
            // SAFETY: there are no commands.
            unsafe { queue.submit(&[], &[]) }
        });
        has_begun.recv().unwrap();
        // It is refused also if it comes only now.
        for _ in 0..1000 {
            thread::yield_now();
        }
        queue.lose(Error::new(ErrorKind::DeviceLost, "planted"));
        drop(locked);
        let refused = submitted.join().unwrap();
        assert!(refused.is_err_and(|error| error.kind() == ErrorKind::DeviceLost));
    });
}

#[test]
fn other_threads_take_no_semaphore_that_is_staged() {
    let Some(backend) = setup::backend() else { return };
    let Some(state) = backend.states().pop() else { return };
    let queue = &*state.queue;
    let before = gate::stage(queue.queue.raw, gate::Waits::new(), (queue.semaphore.raw, 1 << 40));
    let submit = || {
        // SAFETY: there are no commands.
        queue.block_until(unsafe { queue.submit(&[], &[]) }.unwrap());
    };
    thread::scope(|scope| scope.spawn(submit).join().unwrap());
    assert!(gate::unstage(before).is_none());
    // SAFETY: the semaphore is alive.
    let value = unsafe { queue.vulkan.raw.get_semaphore_counter_value(queue.semaphore.raw) };
    assert!(value.is_ok_and(|value| value < 1 << 40));
}

/// What one queue wrote is not yet visible to another, though it is complete.
#[test]
fn submissions_see_what_other_queues_wrote() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let allocate = || backend.allocate(state.id(), MemoryKind::Device, 1 << 20).unwrap();
    let (src, dst) = (allocate(), allocate());
    let copy = |line: &Arc<Line>| {
        let queue = WgpuQueue::new(&state, line, StreamPriority::Normal);
        submit(&queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap()
    };
    let sees = |line: &Line, written: &Fence, other: &Line| {
        let seen = line.queue.state.lock().seen.clone();
        seen.contains(&(other.queue.semaphore.raw, written.point()))
    };
    let [copier, ..] = &state.copiers[..] else { panic!("queues copy beside wgpu's") };
    let written = copy(copier);
    let by_wgpu = copy(&state.wgpu);
    assert!(sees(&state.wgpu, &written, copier));
    drop(copy(copier));
    assert!(sees(copier, &by_wgpu, &state.wgpu));
}

/// Work that the host lets go on, or that goes on by itself after a while: then somebody has waited for it.
struct Held {
    queue: Arc<Submissions>,
    semaphore: Arc<Semaphore>,
    point: u64,
    open: Option<mpsc::Sender<()>>,
    opener: Option<thread::JoinHandle<bool>>,
}

impl Held {
    fn new(line: &Line) -> Self {
        let semaphore = Arc::new(Semaphore::new(&line.queue.vulkan).unwrap());
        // SAFETY: there are no commands.
        let point = unsafe { line.queue.submit(&[], &[semaphore.at(1)]) }.unwrap();
        let (open, opened) = mpsc::channel();
        let (vulkan, held) = (Arc::clone(&line.queue.vulkan), Arc::clone(&semaphore));
        let opener = thread::spawn(move || {
            let is_in_time = opened.recv_timeout(Duration::from_secs(20)).is_ok();
            let info = vk::SemaphoreSignalInfo::default().semaphore(held.raw).value(1);
            // SAFETY: the semaphore is alive, and of the timeline kind; its value grows.
            unsafe { vulkan.raw.signal_semaphore(&info) }.unwrap();
            is_in_time
        });
        Self { queue: Arc::clone(&line.queue), semaphore, point, open: Some(open), opener: Some(opener) }
    }

    /// Returns whether nobody has waited until now.
    fn open(&mut self) -> bool {
        let _sent = self.open.take().unwrap().send(());
        self.opener.take().unwrap().join().unwrap()
    }
}

impl Drop for Held {
    /// The semaphore stays until what waits for it is complete, which a refused submission of another queue does not end.
    fn drop(&mut self) {
        drop(self.open.take());
        let (semaphores, values) = ([self.queue.semaphore.raw], [self.point]);
        let wait = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is alive, and of the timeline kind.
        let _waited = unsafe { self.queue.vulkan.raw.wait_semaphores(&wait, u64::MAX) };
    }
}

/// Copies of other transfers would come behind the shaders.
#[test]
fn copier_does_not_wait_for_shaders_on_the_device() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let there = backend.allocate(state.id(), MemoryKind::Device, 1 << 20).unwrap();
    let mut held = Held::new(&state.wgpu);
    let shaders = backend.submit(state.id(), [], &[(&there, Access::Write)]).unwrap();
    let queues = state.copiers.iter().map(|line| WgpuQueue::new(&state, line, StreamPriority::Normal));
    assert!(queues.into_iter().all(|queue| !queue.can_wait_for(&shaders)));
    assert!(held.open());
    shaders.wait().unwrap();
}

/// The upload is short, and wgpu's queue is idle.
#[test]
fn host_stores_nothing_to_memory_that_another_queue_copies() {
    const BYTES: usize = 1 << 10;
    let Some(backend) = setup::backend() else { return };
    let Some(state) = backend.states().into_iter().find(|state| state.queue.vulkan.stores()) else {
        return println!("skipped: no device whose memory the host sees");
    };
    let filled = |byte: u8| {
        let host = backend.allocate(state.id(), MemoryKind::Pinned, BYTES).unwrap();
        host.write().unwrap().fill(byte);
        host
    };
    let there = backend.allocate(state.id(), MemoryKind::Device, BYTES).unwrap();
    let (old, new, back) = (filled(1), filled(2), filled(0));
    let [wgpu, copier] =
        [&state.wgpu, &state.copiers[0]].map(|line| WgpuQueue::new(&state, line, StreamPriority::Normal));
    let copy =
        |queue: &WgpuQueue, src, dst| submit(queue, &Operation::Copy { src, dst }, Timing::Off).unwrap();
    copy(&wgpu, &old, &there).wait().unwrap();
    let mut held = Held::new(&state.copiers[0]);
    let down = copy(&copier, &there, &back);
    let up = copy(&wgpu, &new, &there);
    assert!(!down.is_complete() && !up.is_complete());
    assert!(held.open());
    up.wait().unwrap();
    down.wait().unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 1), "stored before it was read");
}

/// Its fence takes the place of the copy's, and is complete once the submission is lost.
#[test]
fn submission_that_is_refused_ends_after_the_copies_that_it_was_to_come_after() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let allocate = |kind| backend.allocate(state.id(), kind, 1 << 20).unwrap();
    let (src, there) = (allocate(MemoryKind::Pinned), allocate(MemoryKind::Device));
    let copier = WgpuQueue::new(&state, &state.copiers[0], StreamPriority::Normal);
    let mut held = Held::new(&state.copiers[0]);
    let copied = submit(&copier, &Operation::Copy { src: &src, dst: &there }, Timing::Off).unwrap();
    let before = state.queue.enqueued();
    // It does not wait until Vulkan's queue is idle, which is the copier's, too, where there is but one.
    state.queue.hides_idle.store(true, Ordering::Relaxed);
    faults::fail_after(state.queue.queue.raw, 0, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY);
    thread::scope(|scope| {
        let queue = &state.queue;
        let is_early = scope.spawn(move || {
            while queue.enqueued() == before {
                thread::yield_now();
            }
            // Its point is known, and reached by the loss: too early while the copy is held.
            let begun = Instant::now();
            let mut is_early = false;
            while !is_early && begun.elapsed() < Duration::from_millis(100) {
                is_early = queue.reached() > before;
            }
            assert!(held.open());
            is_early
        });
        let outcome = backend.submit(state.id(), [], &[(&there, Access::Write)]);
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::DeviceLost);
        assert!(!is_early.join().unwrap(), "the memory is free while it is copied");
    });
    // SAFETY: the semaphore is alive.
    let value =
        unsafe { state.queue.vulkan.raw.get_semaphore_counter_value(state.copiers[0].queue.semaphore.raw) };
    assert!(value.is_ok_and(|value| value >= copied.point()));
}

/// Neither a copy nor a submission of shaders blocks its thread until another queue's copy is complete.
#[test]
fn queues_of_a_device_wait_for_each_other_on_the_device() {
    const BYTES: usize = 1 << 20;
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let filled = |byte: u8| {
        let host = backend.allocate(state.id(), MemoryKind::Pinned, BYTES).unwrap();
        host.write().unwrap().fill(byte);
        host
    };
    let [first, second] = &state.copiers[..] else { panic!("two queues copy beside wgpu's") };
    let mut semaphores = Vec::new();
    for (round, (from, to)) in [(first, &state.wgpu), (first, second)].into_iter().enumerate() {
        let (src, back) = (filled(round as u8 + 1), filled(0));
        let there = backend.allocate(state.id(), MemoryKind::Device, BYTES).unwrap();
        let queues = [from, to].map(|line| WgpuQueue::new(&state, line, StreamPriority::Normal));
        let mut held = Held::new(from);
        let up = submit(&queues[0], &Operation::Copy { src: &src, dst: &there }, Timing::Off).unwrap();
        assert!(queues[1].can_wait_for(&up));
        let down = submit(&queues[1], &Operation::Copy { src: &there, dst: &back }, Timing::Off).unwrap();
        let shaders = backend.submit(state.id(), [], &[(&there, Access::Write)]).unwrap();
        let waits = faults::last_waits();
        let seen = to.queue.state.lock().seen.clone();
        assert!(seen.contains(&(from.queue.semaphore.raw, up.point())), "{round}: the copy");
        let is_awaited = waits.contains(&(to.queue.semaphore.raw, down.point()));
        assert_eq!(is_awaited, to.index != state.wgpu.index, "{round}: the shaders");
        assert!(!up.is_complete() && !down.is_complete() && !shaders.is_complete(), "{round}");
        assert!(held.open(), "{round}: somebody has waited on the host");
        shaders.wait().unwrap();
        down.wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| usize::from(*byte) == round + 1), "{round}");
        // Another semaphore with its handle would count as one that was waited for.
        semaphores.push(Arc::clone(&held.semaphore));
    }
}

/// A device of a framework, with a backend.
struct Shared {
    device: wgpu::Device,
    theirs: wgpu::Queue,
    backend: Arc<crate::WgpuBackend>,
    state: Arc<DeviceState>,
}

fn shared() -> Option<Shared> {
    let adapter = setup::adapter()?;
    let (device, theirs) = crate::create_shared_device(&adapter, &wgpu::DeviceDescriptor::default()).unwrap();
    let config = crate::WgpuBackendConfig::default().with_device(device.clone(), theirs.clone());
    let backend = crate::WgpuBackend::open(&config).unwrap();
    let state = backend.states().remove(0);
    Some(Shared { device, theirs, backend, state })
}

impl Shared {
    /// Copies on the first queue that only copies, and waits for that. Returns the point.
    fn copy(&self) -> u64 {
        let allocate = || self.backend.allocate(self.state.id(), MemoryKind::Device, 1 << 20).unwrap();
        let queue = WgpuQueue::new(&self.state, &self.state.copiers[0], StreamPriority::Normal);
        let (src, dst) = (allocate(), allocate());
        let written = submit(&queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
        written.wait().unwrap();
        written.point()
    }

    /// Has the framework submit long work.
    fn work(&self) {
        let size = 64 << 20;
        let usage = wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        (0..20).for_each(|_| encoder.clear_buffer(&buffer, 0, None));
        self.theirs.submit([encoder.finish()]);
    }
}

/// A framework submits without the library.
#[test]
fn submissions_of_a_framework_see_what_other_queues_wrote() {
    let Some(shared) = shared() else { return };
    let (queue, copier) = (shared.state.queue.queue.raw, Arc::clone(&shared.state.copiers[0].queue));
    for _ in 0..2 {
        let written = shared.copy();
        shared.theirs.submit([]);
        assert_eq!(gate::seen(queue, &copier), Some(written));
    }
    let theirs = shared.theirs.clone();
    drop(shared);
    // The semaphores are not used any more.
    assert_eq!(gate::seen(queue, &copier), None);
    theirs.submit([]);
}

/// Two backends have one device.
#[test]
fn submissions_of_a_backend_see_what_the_queues_of_another_wrote() {
    let Some(shared) = shared() else { return };
    let config =
        crate::WgpuBackendConfig::default().with_device(shared.device.clone(), shared.theirs.clone());
    let other = crate::WgpuBackend::open(&config).unwrap();
    let (queue, copier) = (shared.state.queue.queue.raw, &shared.state.copiers[0].queue);
    for _ in 0..2 {
        let written = shared.copy();
        other.submit(other.states()[0].id(), [], &[]).unwrap().wait().unwrap();
        assert_eq!(gate::seen(queue, copier), Some(written));
    }
}

/// The framework goes on with the memory. The driver may refuse one of the backend's last submissions.
#[test]
fn submissions_after_the_backends_end_see_what_other_queues_wrote() {
    for refused in [None, Some(0), Some(1)] {
        let Some(shared) = shared() else { return };
        let (queue, copier) = (Arc::clone(&shared.state.queue), Arc::clone(&shared.state.copiers[0].queue));
        let written = shared.copy();
        if let Some(nth) = refused {
            // It waits for the copier's semaphore.
            shared.work();
            faults::fail_after(queue.queue.raw, nth, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY);
        }
        let device = shared.device.clone();
        drop(shared);
        assert!(queue.state.lock().seen.contains(&(copier.semaphore.raw, written)), "{refused:?}");
        let polled = device.poll(wgpu::PollType::Poll).unwrap();
        assert!(polled.is_queue_empty(), "{refused:?}: it may wait for a semaphore that is destroyed");
    }
}

#[test]
fn urgent_copies_use_a_queue_that_has_less_to_do() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let urgent = || state.least_busy().index;
    let [first, second] = &state.copiers[..] else { panic!("two queues copy beside wgpu's") };
    let idle = urgent();
    // Work that the host lets go on.
    let held = Semaphore::new(&state.queue.vulkan).unwrap();
    let hold = |line: &Line| {
        // SAFETY: there are no commands.
        unsafe { line.queue.submit(&[], &[held.at(1)]) }.unwrap()
    };
    let (mut points, mut chosen) = (Vec::new(), Vec::new());
    for lines in [&[&state.wgpu][..], &[first, first], &[second]] {
        points.extend(lines.iter().map(|line| (*line, hold(line))));
        chosen.push(urgent());
    }
    let lease = |priority, workload| {
        let lease = backend.lease_queue(state.id(), priority, workload).unwrap();
        lease.timeline().id()
    };
    let leased = [
        lease(StreamPriority::High, WorkloadType::Memory),
        lease(StreamPriority::Normal, WorkloadType::Memory),
        lease(StreamPriority::High, WorkloadType::Compute),
    ];
    let signal = vk::SemaphoreSignalInfo::default().semaphore(held.raw).value(1);
    // SAFETY: the semaphore is alive, and nothing else signals it.
    unsafe { held.vulkan.raw.signal_semaphore(&signal) }.unwrap();
    points.into_iter().for_each(|(line, point)| line.queue.block_until(point));
    // That of all others, while it is idle; else the one with the shortest parts of transfers before it.
    assert_eq!((idle, &chosen[..], urgent()), (0, &[1, 2, 2][..], 0));
    // The same queue of Vulkan under another name passes nothing.
    let are_apart = first.queue.queue.raw != state.queue.queue.raw;
    let busy = state.wgpu.queue.id;
    assert_eq!(leased, [if are_apart { second.queue.id } else { busy }, busy, busy]);
}

/// What a framework submits without the library is not known.
#[test]
fn urgent_copies_pass_the_work_of_a_framework() {
    let Some(shared) = shared() else { return };
    assert_ne!(shared.state.least_busy().index, shared.state.wgpu.index);
    shared.work();
    assert_ne!(shared.state.least_busy().index, shared.state.wgpu.index);
}
