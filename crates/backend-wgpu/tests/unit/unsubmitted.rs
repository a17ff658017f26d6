//! Points that were published, and whose submission failed; what submissions wait for.

use transload_core::{
    Backend as _, ErrorKind, Fence, Operation, RawBuffer, StreamPriority, Timing, WorkloadType, submit,
};

use super::{
    super::{gate, queue::WgpuQueue, state::Line},
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

/// On the device: neither thread waits.
#[test]
fn queues_of_a_device_come_after_each_other() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let [copier, ..] = &state.copiers[..] else { panic!("queues copy beside wgpu's") };
    let allocate = || backend.allocate(state.id(), MemoryKind::Device, 1 << 20).unwrap();
    let (first, second, third) = (allocate(), allocate(), allocate());
    let copy = |line: &Arc<Line>, src: &RawBuffer, dst: &RawBuffer| {
        let queue = WgpuQueue::new(&state, line, StreamPriority::Normal);
        submit(&queue, &Operation::Copy { src, dst }, Timing::Off).unwrap()
    };
    let held = Semaphore::new(&state.queue.vulkan).unwrap();
    // SAFETY: there are no commands.
    unsafe { state.queue.submit(&[], &[held.at(1)]) }.unwrap();
    let before = copy(&state.wgpu, &first, &second);
    let after = copy(copier, &second, &third);
    let seen = copier.queue.state.lock().seen.clone();
    assert!(seen.contains(&(state.queue.semaphore.raw, before.point())), "{seen:?}");
    assert!(!before.is_complete() && !after.is_complete());
    signal(&held);
    after.wait().unwrap();
    assert!(before.is_complete());
}

/// Lets what waits for the semaphore's first value go on.
fn signal(held: &Semaphore) {
    let info = vk::SemaphoreSignalInfo::default().semaphore(held.raw).value(1);
    // SAFETY: the semaphore is alive, and nothing else signals it.
    unsafe { held.vulkan.raw.signal_semaphore(&info) }.unwrap();
}

#[test]
fn urgent_copies_use_a_queue_that_has_less_to_do() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let lease =
        |priority, workload| backend.lease_queue(state.id(), priority, workload).unwrap().timeline().id();
    let urgent = || lease(StreamPriority::High, WorkloadType::Memory);
    let [first, second] = &state.copiers[..] else { panic!("two queues copy beside wgpu's") };
    assert_eq!(urgent(), state.wgpu.queue.id, "that of all others, while it is idle");
    // Work that the host lets go on.
    let held = Semaphore::new(&state.queue.vulkan).unwrap();
    let hold = |line: &Line| {
        // SAFETY: there are no commands.
        unsafe { line.queue.submit(&[], &[held.at(1)]) }.unwrap()
    };
    let mut points = vec![(&state.wgpu, hold(&state.wgpu))];
    assert_eq!(urgent(), first.queue.id);
    points.extend([(first, hold(first)), (first, hold(first))]);
    assert_eq!(urgent(), second.queue.id);
    points.push((second, hold(second)));
    assert_eq!(urgent(), second.queue.id, "the parts of transfers are short");
    assert_eq!(lease(StreamPriority::Normal, WorkloadType::Memory), state.wgpu.queue.id);
    assert_eq!(lease(StreamPriority::High, WorkloadType::Compute), state.wgpu.queue.id);
    signal(&held);
    points.into_iter().for_each(|(line, point)| line.queue.block_until(point));
    assert_eq!(urgent(), state.wgpu.queue.id);
}
