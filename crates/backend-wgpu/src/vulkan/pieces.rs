//! Copies by a shader: lists of short pieces, for each of which a copy command takes a GPU some 3 µs, however short; and long copies within a GPU's
//! memory, which copy commands make at 0.29 TB/s on an H200.

use std::{ffi::CStr, slice, sync::Arc};

use ash::vk;
use transload_core::{Error, ErrorKind, Result};
use wgpu::naga;

use super::{
    Vulkan, error_of,
    submissions::{Region, Regions},
};

/// Bytes of a piece in a table.
pub(crate) const ENTRY: usize = 16;
/// Tables begin at multiples of this, or of less.
pub(crate) const ALIGNMENT: usize = 256;
/// Most bytes of a piece, which one workgroup copies. Not measured: one command copies so many in some 3 µs.
pub(super) const LONGEST: u64 = 64 << 10;
/// The fewest bytes of a region within a GPU's memory that is cut into such pieces. Not measured: copy commands take an H200 14 µs for so many.
const LONG: u64 = 4 << 20;
/// The fewest pieces of a list. Not measured: as many copy commands take an H200 about as long as a short submission.
const FEWEST: usize = 8;
/// Most pieces of one list.
pub(crate) const MOST_PIECES: usize = u16::MAX as usize;
/// Most lists of one submission.
pub(crate) const LISTS: u32 = 16;
const BINDINGS: u32 = 3;
/// The shader's entry points: for lists of words, and of four words, and for long regions of them.
const NAMES: [&CStr; 4] = [c"copy", c"copy_wide", c"copy_long", c"copy_long_wide"];
/// Threads of a workgroup.
const THREADS: u32 = 256;

/// Returns whether a device has so large workgroups: not all have.
pub(super) fn runs_pieces(limits: &vk::PhysicalDeviceLimits) -> bool {
    let [width, ..] = limits.max_compute_work_group_size;
    limits.max_compute_work_group_invocations.min(width) >= THREADS
}

/// What a piece's offsets and length are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Word,
    FourWords,
}

impl Unit {
    const fn bytes(self) -> u64 {
        match self {
            Self::Word => 4,
            Self::FourWords => 16,
        }
    }

    /// Returns a region in this unit, as the shader has it.
    fn entry(self, region: &Region) -> [u32; 4] {
        // Offsets are below 16 GiB.
        let units = |bytes: u64| (bytes / self.bytes()) as u32;
        [units(region.src_offset), units(region.dst_offset), units(region.size), 0]
    }
}

/// What the shader copies from one buffer to another.
pub(crate) struct List {
    pub(crate) src: vk::Buffer,
    pub(crate) dst: vk::Buffer,
    pub(crate) unit: Unit,
    pub(crate) pieces: Pieces,
}

pub(crate) enum Pieces {
    /// In a table: its buffer, the first byte there, and their number.
    Table((vk::Buffer, u64), u32),
    /// Each is cut.
    Long(Regions),
}

/// How the shader copies regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A workgroup each, by a table.
    List(Unit),
    /// Cut into pieces.
    Long(Unit),
}

/// Returns how the shader is to copy these regions; `None` if copy commands are to. `is_local`: both sides are a GPU's own memory.
pub(crate) fn shape_of(regions: &[Region], is_local: bool) -> Option<Shape> {
    let is_of = |unit: Unit| {
        regions.iter().all(|region| {
            let Region { src_offset, dst_offset, size } = *region;
            [src_offset, dst_offset, size].iter().all(|number| number.is_multiple_of(unit.bytes()))
        })
    };
    let unit = || [Unit::FourWords, Unit::Word].into_iter().find(|unit| is_of(*unit));
    if (FEWEST..=MOST_PIECES).contains(&regions.len()) && regions.iter().all(|region| region.size <= LONGEST)
    {
        return unit().map(Shape::List);
    }
    // A dispatch has no more workgroups than a list has pieces.
    let long = LONG..=LONGEST * MOST_PIECES as u64;
    let is_long = is_local && !regions.is_empty() && regions.iter().all(|region| long.contains(&region.size));
    if is_long { unit().map(Shape::Long) } else { None }
}

/// Returns the entries of a table for a list of buffers that are [bindable](super::Memory::is_bindable).
pub(crate) fn entries(regions: &[Region], unit: Unit) -> impl Iterator<Item = [u32; 4]> {
    regions.iter().map(move |region| unit.entry(region))
}

/// The shader with what it is bound by.
pub(super) struct PieceShader {
    vulkan: Arc<Vulkan>,
    set: vk::DescriptorSetLayout,
    layout: vk::PipelineLayout,
    /// In the order of [`NAMES`].
    pipelines: [vk::Pipeline; 4],
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
            pipelines: [vk::Pipeline::null(); NAMES.len()],
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
            let immediate = vk::PushConstantRange::default()
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
                .size(ENTRY as u32);
            let info = vk::PipelineLayoutCreateInfo::default()
                .set_layouts(slice::from_ref(&made.set))
                .push_constant_ranges(slice::from_ref(&immediate));
            made.layout =
                raw.create_pipeline_layout(&info, None).map_err(failed("vkCreatePipelineLayout"))?;
            let info = vk::ShaderModuleCreateInfo::default().code(&code);
            let module = raw.create_shader_module(&info, None).map_err(failed("vkCreateShaderModule"))?;
            let info = |name| {
                let stage = vk::PipelineShaderStageCreateInfo::default()
                    .stage(vk::ShaderStageFlags::COMPUTE)
                    .module(module)
                    .name(name);
                vk::ComputePipelineCreateInfo::default().stage(stage).layout(made.layout)
            };
            let infos = NAMES.map(info);
            let pipelines = raw.create_compute_pipelines(vk::PipelineCache::null(), &infos, None);
            raw.destroy_shader_module(module, None);
            let (pipelines, outcome) = match pipelines {
                Ok(pipelines) => (pipelines, Ok(())),
                // Some may have been made.
                Err((pipelines, result)) => (pipelines, Err(failed("vkCreateComputePipelines")(result))),
            };
            made.pipelines.iter_mut().zip(pipelines).for_each(|(kept, pipeline)| *kept = pipeline);
            outcome?;
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
        let mut bound =
            vec![(0, range(list.src, 0, vk::WHOLE_SIZE)), (2, range(list.dst, 0, vk::WHOLE_SIZE))];
        if let Pieces::Table((table, offset), count) = list.pieces {
            bound.push((1, range(table, offset, u64::from(count) * ENTRY as u64)));
        }
        let writes: Vec<_> = bound
            .iter()
            .map(|(binding, buffer)| {
                vk::WriteDescriptorSet::default()
                    .dst_set(set)
                    .dst_binding(*binding)
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
    /// * The pieces are within the two buffers.
    pub(super) unsafe fn record(&self, commands: vk::CommandBuffer, set: vk::DescriptorSet, list: &List) {
        let (raw, point) = (&self.vulkan.raw, vk::PipelineBindPoint::COMPUTE);
        let pipeline = match (&list.pieces, list.unit) {
            (Pieces::Table(..), Unit::Word) => 0,
            (Pieces::Table(..), Unit::FourWords) => 1,
            (Pieces::Long(_), Unit::Word) => 2,
            (Pieces::Long(_), Unit::FourWords) => 3,
        };
        // SAFETY: the caller's promise.
        unsafe {
            raw.cmd_bind_pipeline(commands, point, self.pipelines[pipeline]);
            raw.cmd_bind_descriptor_sets(commands, point, self.layout, 0, &[set], &[]);
            let regions = match &list.pieces {
                Pieces::Table(_, count) => {
                    raw.cmd_dispatch(commands, *count, 1, 1);
                    return;
                }
                Pieces::Long(regions) => regions,
            };
            for region in regions {
                let words = list.unit.entry(region).map(u32::to_ne_bytes);
                let stage = vk::ShaderStageFlags::COMPUTE;
                raw.cmd_push_constants(commands, self.layout, stage, 0, words.as_flattened());
                // Buffers that are bound are below 4 GiB.
                raw.cmd_dispatch(commands, region.size.div_ceil(LONGEST) as u32, 1, 1);
            }
        }
    }
}

impl Drop for PieceShader {
    fn drop(&mut self) {
        // SAFETY: its owner has waited for all submissions, or keeps it.
        unsafe {
            self.pipelines.iter().for_each(|pipeline| self.vulkan.raw.destroy_pipeline(*pipeline, None));
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
    let mut validator = naga::valid::Validator::new(
        naga::valid::ValidationFlags::all(),
        naga::valid::Capabilities::IMMEDIATES,
    );
    let info = validator.validate(&module).map_err(|error| failed(&error))?;
    let options = naga::back::spv::Options { lang_version: (1, 3), ..Default::default() };
    naga::back::spv::write_vec(&module, &info, &options, None).map_err(|error| failed(&error))
}

#[cfg(test)]
#[path = "../../tests/unit/pieces.rs"]
mod tests;
