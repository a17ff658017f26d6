//! One lock around all of a queue's submissions. wgpu submits outside of our calls, too: if a buffer that it mapped at creation is mapped
//! again, and a framework submits by itself. Such a submission must neither run at once with ours, nor take the semaphores that another one
//! stages. It waits for what queues that only copy have written, which nobody stages for it.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    mem::ManuallyDrop,
    ptr, slice,
    sync::{Arc, LazyLock},
};

use ash::vk;
use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::mutant;

use super::Submissions;

/// The driver's functions, and the lock of a queue.
struct Gate {
    submit: vk::PFN_vkQueueSubmit,
    wait: vk::PFN_vkQueueWaitIdle,
    lock: Mutex<Shown>,
}

/// Other queues whose writes a framework's submissions have to see, each with the last value that one has waited for.
type Shown = Vec<(Arc<Submissions>, u64)>;

/// By queue. Those of destroyed devices stay until a new queue has the same handle.
static GATES: LazyLock<Mutex<BTreeMap<vk::Queue, Arc<Gate>>>> = LazyLock::new(Mutex::default);

/// Semaphores with the values to wait for: one of CUDA's streams, and those of the copy queues.
pub(crate) type Waits = SmallVec<[(vk::Semaphore, u64); 3]>;

/// What the calling thread's next submission waits for, and signals.
pub(super) struct Staged {
    queue: vk::Queue,
    after: Waits,
    signal: (vk::Semaphore, u64),
    /// What the driver said, once it was submitted.
    result: Option<vk::Result>,
}

thread_local! {
    /// It has no destructor, since a thread may submit in the destructor of another thread-local. Each `stage` is followed by an `unstage`,
    /// which drops the value.
    static STAGED: RefCell<ManuallyDrop<Option<Staged>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Has the calling thread's next submission to a queue wait for the values of timeline semaphores, and signal one. Returns what a
/// submission has staged that calls this one by a callback, for [`unstage`].
pub(super) fn stage(queue: vk::Queue, after: Waits, signal: (vk::Semaphore, u64)) -> Option<Staged> {
    set_staged(Some(Staged { queue, after, signal, result: None }))
}

/// Returns the driver's result if the thread has submitted since, and `None` if nothing was submitted.
pub(super) fn unstage(before: Option<Staged>) -> Option<vk::Result> {
    set_staged(before).and_then(|staged| staged.result)
}

/// Returns what was staged before.
fn set_staged(staged: Option<Staged>) -> Option<Staged> {
    ManuallyDrop::into_inner(STAGED.replace(ManuallyDrop::new(staged)))
}

/// Returns the device with submissions through the locks of its queues, each of a family with its index there.
///
/// # Safety
/// * The device has the queues, and nothing uses them yet.
pub(super) unsafe fn guard(
    device: &ash::Device,
    queues: impl IntoIterator<Item = (u32, u32)>,
) -> ash::Device {
    let mut functions = device.fp_v1_0().clone();
    #[cfg(test)]
    super::faults::plant(device.handle(), &mut functions);
    let (submit, wait) = (functions.queue_submit, functions.queue_wait_idle);
    for (family, index) in queues {
        // SAFETY: the caller's promise.
        let queue = unsafe { device.get_device_queue(family, index) };
        GATES.lock().insert(queue, Arc::new(Gate { submit, wait, lock: Mutex::default() }));
    }
    (functions.queue_submit, functions.queue_wait_idle) = (submit_locked, wait_locked);
    #[cfg(test)]
    super::faults::unlock(&mut functions);
    let (one, two, three) = (device.fp_v1_1().clone(), device.fp_v1_2().clone(), device.fp_v1_3().clone());
    ash::Device::from_parts_1_3(device.handle(), functions, one, two, three)
}

/// Returns whether the device's submissions go through the lock: also wgpu's, if it is wgpu's device.
pub(super) fn is_guarded(device: &ash::Device) -> bool {
    // No other function has this address: the device is one of `guard`.
    ptr::fn_addr_eq(device.fp_v1_0().queue_submit, submit_locked as vk::PFN_vkQueueSubmit)
}

/// Has all submissions to a queue see what is complete on the others when they are submitted, until these are [hidden](hide).
pub(super) fn show<'a>(queue: vk::Queue, others: impl IntoIterator<Item = &'a Arc<Submissions>>) {
    if let Some(gate) = gate_of(queue) {
        gate.lock.lock().extend(others.into_iter().map(|other| (Arc::clone(other), 0)));
    }
}

/// Has later submissions to a queue use no semaphore of the others.
pub(super) fn hide<'a>(queue: vk::Queue, others: impl Iterator<Item = &'a Arc<Submissions>> + Clone) {
    let Some(gate) = gate_of(queue) else { return };
    gate.lock.lock().retain(|(shown, _)| !others.clone().any(|other| Arc::ptr_eq(shown, other)));
}

/// Returns what a submission waits for, to see what the others have written since the one before.
fn unseen(shown: &Shown) -> Waits {
    if mutant!("wgpu/framework-sees-copies") {
        return Waits::new();
    }
    let unseen = |(other, seen): &(Arc<Submissions>, u64)| other.known().filter(|(_, value)| value > seen);
    shown.iter().filter_map(unseen).collect()
}

/// Notes what a submission waits for.
fn saw(shown: &mut Shown, waits: &[(vk::Semaphore, u64)]) {
    for (other, seen) in shown {
        let waited = waits.iter().filter(|(semaphore, _)| *semaphore == other.semaphore.raw);
        *seen = waited.map(|(_, value)| *value).fold(*seen, u64::max);
    }
}

/// Returns the last value of another queue that a queue's submissions are known to have waited for; `None` if that is hidden.
#[cfg(test)]
pub(super) fn seen(queue: vk::Queue, other: &Arc<Submissions>) -> Option<u64> {
    let gate = gate_of(queue)?;
    let shown = gate.lock.lock();
    shown.iter().find(|(shown, _)| Arc::ptr_eq(shown, other)).map(|(_, seen)| *seen)
}

fn gate_of(queue: vk::Queue) -> Option<Arc<Gate>> {
    GATES.lock().get(&queue).map(Arc::clone)
}

/// # Safety
/// * Those of `vkQueueWaitIdle`, but other threads may use the queue.
unsafe extern "system" fn wait_locked(queue: vk::Queue) -> vk::Result {
    let Some(gate) = gate_of(queue) else { return vk::Result::ERROR_UNKNOWN };
    let _lock = gate.lock.lock();
    // SAFETY: the caller's promises are those of the driver's function.
    unsafe { (gate.wait)(queue) }
}

/// # Safety
/// * Those of `vkQueueSubmit`, but other threads may use the queue.
pub(super) unsafe extern "system" fn submit_locked(
    queue: vk::Queue,
    count: u32,
    infos: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    let Some(gate) = gate_of(queue) else { return vk::Result::ERROR_UNKNOWN };
    let mut shown = gate.lock.lock();
    #[cfg(test)]
    if let Some(result) = super::faults::refuses(queue) {
        return result;
    }
    let staged = STAGED.with_borrow(|staged| {
        let staged = staged.as_ref().filter(|staged| staged.queue == queue && staged.result.is_none());
        staged.map(|staged| (staged.after.clone(), Some(staged.signal)))
    });
    let is_staged = staged.is_some();
    let (mut after, signal) = staged.unwrap_or_default();
    // Also of another backend, whose queues the one that staged does not know.
    after.extend(unseen(&shown));
    #[cfg(test)]
    super::faults::note_waits(&after);
    if after.is_empty() && signal.is_none() {
        // SAFETY: the caller's promises are those of the driver's function.
        return unsafe { (gate.submit)(queue, count, infos, fence) };
    }
    let (waited, least): (SmallVec<[_; 3]>, SmallVec<[_; 3]>) = after.iter().copied().unzip();
    let stages: SmallVec<[_; 3]> = waited.iter().map(|_| vk::PipelineStageFlags::ALL_COMMANDS).collect();
    let (signalled, value): (SmallVec<[_; 1]>, SmallVec<[_; 1]>) = signal.into_iter().unzip();
    let mut values = [(); 2].map(|()| vk::TimelineSemaphoreSubmitInfo::default());
    let [first_values, last_values] = &mut values;
    *first_values = first_values.wait_semaphore_values(&least);
    *last_values = last_values.signal_semaphore_values(&value);
    // A wait counts for all that comes later in the queue, and a signal for all that came before.
    let first = vk::SubmitInfo::default()
        .wait_semaphores(&waited)
        .wait_dst_stage_mask(&stages)
        .push_next(first_values);
    let last = vk::SubmitInfo::default().signal_semaphores(&signalled).push_next(last_values);
    let mut all: SmallVec<[vk::SubmitInfo<'_>; 3]> = SmallVec::new();
    if !waited.is_empty() {
        all.push(first);
    }
    if count > 0 {
        // SAFETY: the caller passes so many.
        all.extend_from_slice(unsafe { slice::from_raw_parts(infos, count as usize) });
    }
    if signal.is_some() {
        all.push(last);
    }
    // SAFETY: the caller's promises, and those of the thread that staged the semaphores; those of other queues live until they are hidden,
    // and this is complete.
    let result = unsafe { (gate.submit)(queue, all.len() as u32, all.as_ptr(), fence) };
    if result == vk::Result::SUCCESS {
        saw(&mut shown, &after);
    }
    STAGED.with_borrow_mut(|staged| {
        if let Some(staged) = staged.as_mut().filter(|_| is_staged) {
            staged.result = Some(result);
        }
    });
    result
}

#[cfg(test)]
#[path = "../../tests/unit/thread_end.rs"]
mod tests;
