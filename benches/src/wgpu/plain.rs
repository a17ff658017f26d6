//! wgpu without the library: a device and a queue of its own on the same adapter, used as in wgpu's documentation.

use std::sync::mpsc;

use anyhow::{Context as _, Result};
use ash::vk;
use transload_backend_wgpu::{
    create_shared_device,
    wgpu::{self, BufferUsages as Usages, hal},
};
use transload_core::DeviceInfo;

/// A device and its queue.
#[derive(Clone)]
pub(super) struct Plain {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    /// Whether the host's processor plays the device.
    pub(super) is_software: bool,
}

impl Plain {
    /// Opens the device that the backend describes so, with the adapter's limits.
    pub(super) fn open(info: &DeviceInfo) -> Result<Self> {
        Self::open_by(info, |adapter, descriptor| Ok(pollster::block_on(adapter.request_device(descriptor))?))
    }

    /// Opens it as a framework does that shares it with the library.
    pub(super) fn open_to_share(info: &DeviceInfo) -> Result<Self> {
        Self::open_by(info, |adapter, descriptor| Ok(create_shared_device(adapter, descriptor)?))
    }

    fn open_by(
        info: &DeviceInfo,
        open: impl FnOnce(&wgpu::Adapter, &wgpu::DeviceDescriptor<'_>) -> Result<(wgpu::Device, wgpu::Queue)>,
    ) -> Result<Self> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::VULKAN;
        // wgpu's default in release builds, and the backend's.
        descriptor.flags = wgpu::InstanceFlags::VALIDATION_INDIRECT_CALL;
        let instance = wgpu::Instance::new(descriptor);
        let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
        let is_same = |adapter: &wgpu::Adapter| {
            adapter.get_info().name == info.name && (info.uuid.is_none() || uuid(adapter) == info.uuid)
        };
        let adapter = adapters.into_iter().find(is_same).context("wgpu does not show it")?;
        let descriptor =
            wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..wgpu::DeviceDescriptor::default() };
        let (device, queue) = open(&adapter, &descriptor)?;
        let is_software = adapter.get_info().device_type == wgpu::DeviceType::Cpu;
        Ok(Self { device, queue, is_software })
    }

    pub(super) fn buffer(&self, bytes: usize, usage: Usages) -> wgpu::Buffer {
        let size = bytes as u64;
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: false,
        })
    }

    /// Creates device memory.
    pub(super) fn storage(&self, bytes: usize) -> wgpu::Buffer {
        self.buffer(bytes, Usages::STORAGE | Usages::COPY_SRC | Usages::COPY_DST)
    }

    /// Creates a staging buffer for uploads with contents.
    pub(super) fn staging(&self, content: &[u8]) -> Result<wgpu::Buffer> {
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: content.len() as u64,
            usage: Usages::MAP_WRITE | Usages::COPY_SRC,
            mapped_at_creation: true,
        });
        staging.get_mapped_range_mut(..)?.copy_from_slice(content);
        staging.unmap();
        Ok(staging)
    }

    pub(super) fn submit(&self, encode: impl FnOnce(&mut wgpu::CommandEncoder)) -> wgpu::SubmissionIndex {
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encode(&mut encoder);
        self.queue.submit([encoder.finish()])
    }

    pub(super) fn wait(&self, submission: wgpu::SubmissionIndex) -> Result<()> {
        self.device.poll(wgpu::PollType::Wait { submission_index: Some(submission), timeout: None })?;
        Ok(())
    }

    /// Copies whole buffers, and waits.
    pub(super) fn copy(&self, from: &wgpu::Buffer, to: &wgpu::Buffer) -> Result<()> {
        self.wait(self.submit(|encoder| encoder.copy_buffer_to_buffer(from, 0, to, 0, from.size())))
    }

    /// Uploads through `write_buffer`, and waits.
    pub(super) fn write(&self, to: &wgpu::Buffer, content: &[u8]) -> Result<()> {
        self.queue.write_buffer(to, 0, content);
        self.wait(self.queue.submit([]))
    }

    /// Uploads through a staging buffer that is mapped again each time, and waits.
    pub(super) fn write_by(&self, staging: &wgpu::Buffer, to: &wgpu::Buffer, content: &[u8]) -> Result<()> {
        let (sender, mapped) = mpsc::channel();
        staging.map_async(wgpu::MapMode::Write, .., move |outcome| drop(sender.send(outcome)));
        self.device.poll(wgpu::PollType::wait_indefinitely())?;
        mapped.recv()??;
        staging.get_mapped_range_mut(..)?.copy_from_slice(content);
        staging.unmap();
        self.copy(staging, to)
    }

    /// Downloads through a buffer that can be read where it is mapped, and waits.
    pub(super) fn read_by(&self, staging: &wgpu::Buffer, from: &wgpu::Buffer, to: &mut [u8]) -> Result<()> {
        let bytes = to.len() as u64;
        self.submit(|encoder| encoder.copy_buffer_to_buffer(from, 0, staging, 0, bytes));
        self.read(staging, to)
    }

    /// Reads a buffer where it is mapped, after what was submitted.
    pub(super) fn read(&self, staging: &wgpu::Buffer, to: &mut [u8]) -> Result<()> {
        let (sender, mapped) = mpsc::channel();
        staging.map_async(wgpu::MapMode::Read, .., move |outcome| drop(sender.send(outcome)));
        self.device.poll(wgpu::PollType::wait_indefinitely())?;
        mapped.recv()??;
        to.copy_from_slice(&staging.get_mapped_range(..)?);
        staging.unmap();
        Ok(())
    }

    /// Returns a buffer's bytes.
    pub(super) fn download(&self, from: &wgpu::Buffer, bytes: usize) -> Result<Vec<u8>> {
        let mut found = vec![0; bytes];
        let staging = self.buffer(bytes, Usages::MAP_READ | Usages::COPY_DST);
        self.read_by(&staging, from, &mut found)?;
        Ok(found)
    }
}

fn uuid(adapter: &wgpu::Adapter) -> Option<[u8; 16]> {
    // SAFETY: nothing is destroyed.
    let lower = unsafe { adapter.as_hal::<hal::api::Vulkan>() }?;
    let mut id = vk::PhysicalDeviceIDProperties::default();
    let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut id);
    let instance = lower.shared_instance().raw_instance();
    // SAFETY: the physical device is one of the instance. The backend opened one with this name, which has Vulkan 1.2.
    unsafe { instance.get_physical_device_properties2(lower.raw_physical_device(), &mut all) };
    Some(id.device_uuid)
}
