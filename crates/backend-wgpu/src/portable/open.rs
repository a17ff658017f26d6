//! Opens a device on an adapter, or takes one that its user made.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64},
    mpsc,
};

use transload_core::{DeviceId, DeviceInfo, Error, ErrorKind, MemoryKind, Result, catch_panic};

use super::{DeviceState, Submissions, staging::StagingPool, storage::Counters};
use crate::{
    config::AdoptedDevice,
    open::{descriptor, report_errors},
};

/// Opens a device of ours.
///
/// # Errors
/// [`ErrorKind::Unsupported`] without compute shaders; the driver's.
pub(crate) fn open(adapter: &wgpu::Adapter, id: DeviceId) -> Result<Arc<DeviceState>> {
    if !adapter.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS) {
        return Err(Error::new(ErrorKind::Unsupported, "it has no compute shaders"));
    }
    let failed = |error| Error::caused_by(ErrorKind::Device, "wgpu cannot open its device", error);
    let opened = pollster::block_on(adapter.request_device(&descriptor(adapter)));
    let (device, queue) = opened.map_err(failed)?;
    report_errors(&device, id);
    let state = make(id, device, queue);
    let line = Arc::downgrade(&state.queue);
    state.queue.device.set_device_lost_callback(move |reason, text| {
        if let Some(queue) = line.upgrade() {
            queue.lose(Error::new(ErrorKind::DeviceLost, format!("wgpu lost it ({reason:?}): {text}")));
        }
    });
    Ok(state)
}

/// Takes a device of a framework. Its handlers stay in place.
///
/// # Errors
/// [`ErrorKind::DeviceLost`] if it is lost; [`ErrorKind::InvalidArgument`] for the queue of another device.
pub(crate) fn adopt(given: &AdoptedDevice, id: DeviceId) -> Result<Arc<DeviceState>> {
    let state = make(id, given.device.clone(), given.queue.clone());
    state.queue.check_alive()?;
    if has_queue(&given.device, &given.queue) {
        return Ok(state);
    }
    // It may have been lost meanwhile.
    state.queue.check_alive()?;
    Err(Error::new(ErrorKind::InvalidArgument, "the queue is that of another device"))
}

/// Returns whether what the queue writes is in the device's memory. wgpu tells a wrong queue to the handler of that one's device, which panics by default.
fn has_queue(device: &wgpu::Device, queue: &wgpu::Queue) -> bool {
    const WORD: [u8; 4] = *b"here";
    let descriptor = wgpu::BufferDescriptor {
        label: None,
        size: WORD.len() as u64,
        usage: wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
        mapped_at_creation: false,
    };
    let is_written = || {
        let buffer = device.create_buffer(&descriptor);
        queue.write_buffer(&buffer, 0, &WORD);
        queue.submit([]);
        let (sender, mapped) = mpsc::channel();
        buffer.map_async(wgpu::MapMode::Read, .., move |outcome| drop(sender.send(outcome)));
        let _waited = device.poll(wgpu::PollType::wait_indefinitely());
        matches!(mapped.try_recv(), Ok(Ok(())))
            && buffer.get_mapped_range(..).is_ok_and(|view| view[..] == WORD)
    };
    catch_panic(is_written).unwrap_or(false)
}

fn make(id: DeviceId, device: wgpu::Device, queue: wgpu::Queue) -> Arc<DeviceState> {
    let (info, limits) = (device.adapter_info(), device.limits());
    let mut found = DeviceInfo::new(id, info.name);
    found.largest_allocation = Some(limits.max_buffer_size / 4 * 4);
    let version = format!("{} {}", info.driver, info.driver_info);
    found.driver = format!("{} ({})", name_of(info.backend), version.trim());
    found.kinds = vec![MemoryKind::Device];
    let counters = Counters { device: id, allocations: AtomicU64::new(0), bytes: AtomicU64::new(0) };
    Arc::new(DeviceState {
        info: found,
        queue: Submissions::new(id, device, queue),
        staging: StagingPool::default(),
        kernel: OnceLock::new(),
        counters: Arc::new(counters),
        leases: AtomicU64::new(0),
        reclaimer: Arc::default(),
        hides_shortage: info.backend == wgpu::Backend::Gl,
        is_host: matches!(info.device_type, wgpu::DeviceType::Cpu | wgpu::DeviceType::IntegratedGpu),
        loss_reported: AtomicBool::new(false),
    })
}

fn name_of(api: wgpu::Backend) -> &'static str {
    match api {
        wgpu::Backend::Vulkan => "Vulkan",
        wgpu::Backend::Metal => "Metal",
        wgpu::Backend::Dx12 => "DX12",
        wgpu::Backend::Gl => "OpenGL",
        other => other.to_str(),
    }
}
