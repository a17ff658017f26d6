//! Lists of short pieces by a shader: a copy command takes a GPU some 3 µs for each piece, however short.

use std::{slice, sync::Arc};

use ash::vk;
use transload_core::{Error, ErrorKind, Result};
use wgpu::naga;

use super::{Vulkan, error_of, submissions::Region};

/// Bytes of a piece in a table.
pub(crate) const ENTRY: usize = 16;
/// Tables begin at multiples of this, or of less.
pub(crate) const ALIGNMENT: usize = 256;
/// Most bytes of a piece, which one workgroup copies. Not measured: one command copies so many in some 3 µs.
pub(super) const LONGEST: u64 = 64 << 10;
/// The fewest pieces of a list. Not measured: as many copy commands take an H200 about as long as a short submission.
const FEWEST: usize = 8;
/// Most pieces of one list.
pub(crate) const MOST_PIECES: usize = u16::MAX as usize;
/// Most lists of one submission.
pub(crate) const LISTS: u32 = 16;
const BINDINGS: u32 = 3;
/// Threads of a workgroup.
const THREADS: u32 = 256;

/// Returns whether a device has so large workgroups: not all have.
pub(super) fn runs_pieces(limits: &vk::PhysicalDeviceLimits) -> bool {
    let [width, ..] = limits.max_compute_work_group_size;
    limits.max_compute_work_group_invocations.min(width) >= THREADS
}

/// A list of pieces in a table.
#[derive(Clone, Copy)]
pub(crate) struct List {
    pub(crate) src: vk::Buffer,
    pub(crate) dst: vk::Buffer,
    /// The buffer of the table, and the first byte in it.
    pub(crate) table: (vk::Buffer, u64),
    pub(crate) count: u32,
}

/// Returns whether the shader is to copy these pieces.
pub(crate) fn fits(regions: &[Region]) -> bool {
    let fits = |region: &Region| {
        let Region { src_offset, dst_offset, size } = *region;
        size <= LONGEST && [src_offset, dst_offset, size].iter().all(|number| number.is_multiple_of(4))
    };
    (FEWEST..=MOST_PIECES).contains(&regions.len()) && regions.iter().all(fits)
}

/// Returns the entries of a table, in words of 32 bits, for [pieces that fit](fits) of buffers that are [bindable](super::Memory::is_bindable).
pub(crate) fn entries(regions: &[Region]) -> impl Iterator<Item = [u32; 4]> {
    // Offsets are below 16 GiB.
    let word = |bytes: u64| (bytes / 4) as u32;
    regions.iter().map(move |region| [word(region.src_offset), word(region.dst_offset), word(region.size), 0])
}

/// The shader with what it is bound by.
pub(super) struct PieceShader {
    vulkan: Arc<Vulkan>,
    set: vk::DescriptorSetLayout,
    layout: vk::PipelineLayout,
    pipeline: vk::Pipeline,
}

impl PieceShader {
    /// # Errors
    /// The driver's.
    pub(super) fn new(vulkan: &Arc<Vulkan>) -> Result<Self> {
        let code = spirv()?;
        let failed = |what: &'static str| move |result| error_of(vulkan.id, what, result);
        // From here on, a drop destroys what was made.
        let mut made = Self {
            vulkan: Arc::clone(vulkan),
            set: vk::DescriptorSetLayout::null(),
            layout: vk::PipelineLayout::null(),
            pipeline: vk::Pipeline::null(),
        };
        let binding = |binding| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(binding)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let bindings: Vec<_> = (0..BINDINGS).map(binding).collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        let raw = &vulkan.raw;
        // SAFETY: the device is valid, and so are the structures.
        unsafe {
            made.set = raw
                .create_descriptor_set_layout(&info, None)
                .map_err(failed("vkCreateDescriptorSetLayout"))?;
            let info = vk::PipelineLayoutCreateInfo::default().set_layouts(slice::from_ref(&made.set));
            made.layout =
                raw.create_pipeline_layout(&info, None).map_err(failed("vkCreatePipelineLayout"))?;
            let info = vk::ShaderModuleCreateInfo::default().code(&code);
            let module = raw.create_shader_module(&info, None).map_err(failed("vkCreateShaderModule"))?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"copy");
            let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(made.layout);
            let pipelines = raw.create_compute_pipelines(vk::PipelineCache::null(), &[info], None);
            raw.destroy_shader_module(module, None);
            let pipelines = pipelines.map_err(|(_, result)| failed("vkCreateComputePipelines")(result))?;
            made.pipeline = pipelines.first().copied().unwrap_or_default();
        }
        Ok(made)
    }

    /// Makes the place for the bindings of one submission's lists.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn new_pool(&self) -> Result<vk::DescriptorPool> {
        let size = vk::DescriptorPoolSize::default()
            .ty(vk::DescriptorType::STORAGE_BUFFER)
            .descriptor_count(LISTS * BINDINGS);
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(LISTS).pool_sizes(slice::from_ref(&size));
        // SAFETY: the device is valid.
        unsafe { self.vulkan.raw.create_descriptor_pool(&info, None) }
            .map_err(|result| error_of(self.vulkan.id, "vkCreateDescriptorPool", result))
    }

    /// Returns a list's bindings.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// * The pool is one of [`new_pool`](Self::new_pool), and no submission in flight uses it.
    /// * The buffers are of this device, and the table lies within its buffer.
    pub(super) unsafe fn bind(&self, pool: vk::DescriptorPool, list: &List) -> Result<vk::DescriptorSet> {
        let info = vk::DescriptorSetAllocateInfo::default()
            .descriptor_pool(pool)
            .set_layouts(slice::from_ref(&self.set));
        let raw = &self.vulkan.raw;
        // SAFETY: the pool and the layout are of this device.
        let sets = unsafe { raw.allocate_descriptor_sets(&info) };
        let sets = sets.map_err(|result| error_of(self.vulkan.id, "vkAllocateDescriptorSets", result))?;
        let missing = || Error::new(ErrorKind::Device, "the driver made no descriptor set");
        let set = sets.first().copied().ok_or_else(missing)?;
        let range = |buffer, offset, bytes| {
            [vk::DescriptorBufferInfo::default().buffer(buffer).offset(offset).range(bytes)]
        };
        let (table, offset) = list.table;
        let bound = [
            range(list.src, 0, vk::WHOLE_SIZE),
            range(table, offset, u64::from(list.count) * ENTRY as u64),
            range(list.dst, 0, vk::WHOLE_SIZE),
        ];
        let writes: Vec<_> = (0..)
            .zip(&bound)
            .map(|(binding, buffer)| {
                vk::WriteDescriptorSet::default()
                    .dst_set(set)
                    .dst_binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(buffer)
            })
            .collect();
        // SAFETY: the set is new; the caller's promise.
        unsafe { raw.update_descriptor_sets(&writes, &[]) };
        Ok(set)
    }

    /// Records the copy of a list.
    ///
    /// # Safety
    /// * The command buffer is being recorded, for a queue that has shaders; the set is the list's, and stays until the commands are complete.
    /// * The table's pieces are within the two buffers.
    pub(super) unsafe fn record(&self, commands: vk::CommandBuffer, set: vk::DescriptorSet, list: &List) {
        let (raw, point) = (&self.vulkan.raw, vk::PipelineBindPoint::COMPUTE);
        // SAFETY: the caller's promise.
        unsafe {
            raw.cmd_bind_pipeline(commands, point, self.pipeline);
            raw.cmd_bind_descriptor_sets(commands, point, self.layout, 0, &[set], &[]);
            raw.cmd_dispatch(commands, list.count, 1, 1);
        }
    }
}

impl Drop for PieceShader {
    fn drop(&mut self) {
        // SAFETY: its owner has waited for all submissions, or keeps it.
        unsafe {
            self.vulkan.raw.destroy_pipeline(self.pipeline, None);
            self.vulkan.raw.destroy_pipeline_layout(self.layout, None);
            self.vulkan.raw.destroy_descriptor_set_layout(self.set, None);
        }
    }
}

/// Returns the shader's code.
fn spirv() -> Result<Vec<u32>> {
    let failed = |error: &dyn ToString| {
        Error::new(ErrorKind::Device, format!("the shader of lists cannot be made: {}", error.to_string()))
    };
    let module = naga::front::wgsl::parse_str(include_str!("pieces.wgsl")).map_err(|error| failed(&error))?;
    let mut validator =
        naga::valid::Validator::new(naga::valid::ValidationFlags::all(), naga::valid::Capabilities::empty());
    let info = validator.validate(&module).map_err(|error| failed(&error))?;
    let options = naga::back::spv::Options { lang_version: (1, 3), ..Default::default() };
    naga::back::spv::write_vec(&module, &info, &options, None).map_err(|error| failed(&error))
}

#[cfg(test)]
#[path = "../../tests/unit/pieces.rs"]
mod tests;
