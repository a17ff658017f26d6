//! Calls of Vulkan that fail on demand, and copies that are counted.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    ffi::c_void,
    sync::{LazyLock, Mutex},
};

use ash::vk;

static MAPS: LazyLock<Mutex<BTreeMap<vk::Device, vk::PFN_vkMapMemory>>> = LazyLock::new(Mutex::default);
static REFUSING: Mutex<BTreeSet<vk::Device>> = Mutex::new(BTreeSet::new());
static BUFFERS: LazyLock<Mutex<BTreeMap<vk::Device, vk::PFN_vkCreateBuffer>>> = LazyLock::new(Mutex::default);
static WITHOUT_BUFFERS: Mutex<BTreeSet<vk::Device>> = Mutex::new(BTreeSet::new());
static FAILURES: Mutex<BTreeMap<vk::Queue, (usize, vk::Result)>> = Mutex::new(BTreeMap::new());

thread_local! {
    static IS_FOREIGN: Cell<bool> = const { Cell::new(false) };
    static COPIES: Cell<usize> = const { Cell::new(0) };
    static WAITS: Cell<Vec<(vk::Semaphore, u64)>> = const { Cell::new(Vec::new()) };
}

/// Notes what a submission of the thread through the gate waits for there.
pub(crate) fn note_waits(waits: &[(vk::Semaphore, u64)]) {
    // Not known to a thread that ends.
    let _noted = WAITS.try_with(|last| last.set(waits.to_vec()));
}

/// Returns what the thread's last submission through the gate waits for there.
pub(crate) fn last_waits() -> Vec<(vk::Semaphore, u64)> {
    WAITS.take()
}

/// Counts a copy command of this crate.
pub(crate) fn count_copy() {
    COPIES.set(COPIES.get() + 1);
}

/// Returns how many copy commands of this crate the thread has recorded.
pub(crate) fn copies_of_this_thread() -> usize {
    COPIES.get()
}

/// Has the device's memory be mapped, and its buffers be made, by way of this file.
pub(crate) fn plant(device: vk::Device, functions: &mut ash::DeviceFnV1_0) {
    MAPS.lock().unwrap().insert(device, functions.map_memory);
    functions.map_memory = map;
    BUFFERS.lock().unwrap().insert(device, functions.create_buffer);
    functions.create_buffer = create_buffer;
    // Those of an earlier device with this handle.
    REFUSING.lock().unwrap().remove(&device);
    WITHOUT_BUFFERS.lock().unwrap().remove(&device);
}

/// Has the devices that `make` opens be foreign ones: without a lock of ours.
pub(crate) fn foreign<T>(make: impl FnOnce() -> T) -> T {
    IS_FOREIGN.set(true);
    let made = make();
    IS_FOREIGN.set(false);
    made
}

/// Has a device be a foreign one if [`foreign`] opens it. Its submissions can be refused all the same.
pub(crate) fn unlock(functions: &mut ash::DeviceFnV1_0) {
    if IS_FOREIGN.get() {
        functions.queue_submit = submit;
    }
}

/// Has the driver be short of memory for buffers of the device, from now on.
pub(crate) fn refuse_buffers(device: vk::Device) {
    WITHOUT_BUFFERS.lock().unwrap().insert(device);
}

/// Has the driver refuse to map memory of the device, or stop that.
pub(crate) fn refuse_maps(device: vk::Device, refuses: bool) {
    let mut refusing = REFUSING.lock().unwrap();
    if refuses {
        refusing.insert(device)
    } else {
        refusing.remove(&device)
    };
}

/// Has the queue lose its device after so many submissions.
pub(crate) fn lose_after(queue: vk::Queue, submissions: usize) {
    fail_after(queue, submissions, vk::Result::ERROR_DEVICE_LOST);
}

/// Has the driver refuse one submission to the queue, after so many others.
pub(crate) fn fail_after(queue: vk::Queue, submissions: usize, result: vk::Result) {
    FAILURES.lock().unwrap().insert(queue, (submissions, result));
}

/// Returns what the driver says if it refuses this submission.
pub(crate) fn refuses(queue: vk::Queue) -> Option<vk::Result> {
    let mut failures = FAILURES.lock().unwrap();
    let (left, result) = failures.get_mut(&queue)?;
    let due = (*left == 0).then_some(*result);
    *left = left.saturating_sub(1);
    if due.is_some() {
        failures.remove(&queue);
    }
    due
}

/// # Safety
/// * Those of `vkMapMemory`.
unsafe extern "system" fn map(
    device: vk::Device,
    memory: vk::DeviceMemory,
    offset: u64,
    bytes: u64,
    flags: vk::MemoryMapFlags,
    address: *mut *mut c_void,
) -> vk::Result {
    if REFUSING.lock().unwrap().contains(&device) {
        return vk::Result::ERROR_MEMORY_MAP_FAILED;
    }
    let driver = MAPS.lock().unwrap()[&device];
    // SAFETY: the caller's promise; it is the driver's function.
    unsafe { driver(device, memory, offset, bytes, flags, address) }
}

/// # Safety
/// * Those of `vkCreateBuffer`.
unsafe extern "system" fn create_buffer(
    device: vk::Device,
    info: *const vk::BufferCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    buffer: *mut vk::Buffer,
) -> vk::Result {
    if WITHOUT_BUFFERS.lock().unwrap().contains(&device) {
        return vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
    }
    let driver = BUFFERS.lock().unwrap()[&device];
    // SAFETY: the caller's promise; it is the driver's function.
    unsafe { driver(device, info, allocator, buffer) }
}

/// # Safety
/// * Those of `vkQueueSubmit`.
unsafe extern "system" fn submit(
    queue: vk::Queue,
    count: u32,
    infos: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    // SAFETY: the caller's promise.
    unsafe { super::gate::submit_locked(queue, count, infos, fence) }
}
