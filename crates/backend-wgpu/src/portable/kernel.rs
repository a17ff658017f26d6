//! The shader that writes ranges of bytes, for what wgpu's copies of whole words between two buffers cannot do: its jobs, and the memory
//! that they and their bytes pass through. Other bytes of a word are read and written back: the device's one queue is their only user.

use transload_core::Result;
use wgpu::BufferUsages;

use super::Submissions;

/// Bytes of the scratch memory in which jobs are.
const TABLE: u64 = 256 << 10;
/// Bytes of the scratch memory after the jobs, through which bytes pass.
const DATA: u64 = 4 << 20;
/// The shader reads words in pairs.
const SLACK: u64 = 16;
/// Offsets of bindings are multiples of this, or of less.
const ALIGNMENT: u64 = 256;
/// Bytes of a job.
const JOB: u64 = 32;
/// Most bytes of a job that copies: what one workgroup does.
const PIECE: u64 = 16 << 10;
/// Most jobs of a fill, and most bytes of each.
const FILLS: u64 = 4096;
const MOST_FILLED: u64 = 8 << 20;

/// The shader, and the scratch memory of a device: made by the first operation that needs them, kept as long as the device, and not counted.
pub(super) struct Kernel {
    pipeline: wgpu::ComputePipeline,
    scratch: wgpu::Buffer,
    /// Most bytes of a binding.
    largest: u64,
}

impl Kernel {
    /// # Errors
    /// wgpu's.
    pub(super) fn new(queue: &Submissions) -> Result<Self> {
        let (device, limits) = (&queue.device, queue.device.limits());
        queue.captured(|| {
            let module = device.create_shader_module(wgpu::include_wgsl!("bytes.wgsl"));
            let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: None,
                layout: None,
                module: &module,
                entry_point: None,
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: None,
            });
            let scratch = device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: TABLE + DATA + SLACK,
                usage: BufferUsages::STORAGE | BufferUsages::COPY_DST,
                mapped_at_creation: false,
            });
            let largest = limits.max_storage_buffer_binding_size.min(1 << 30);
            Self { pipeline, scratch, largest }
        })
    }

    /// Writes the table of jobs, before a submission of what was encoded.
    pub(super) fn write_table(&self, queue: &wgpu::Queue, table: &[u8]) {
        if !table.is_empty() {
            queue.write_buffer(&self.scratch, 0, table);
        }
    }
}

/// A range of bytes to write.
struct Job {
    begin: u64,
    bytes: u64,
    source: Source,
}

enum Source {
    /// Of the scratch memory, from this byte on.
    Scratch(u64),
    /// These 16 bytes, again and again.
    Inline([u8; 16]),
}

impl Job {
    /// Writes it as the shader reads it, with the buffer bound from a byte on.
    fn write_to(&self, table: &mut Vec<u8>, bound: u64) {
        let (source, is_inline, data) = match self.source {
            Source::Scratch(at) => (at, 0, [0; 16]),
            Source::Inline(data) => (0, 1, data),
        };
        // All are below the sizes of bindings.
        for number in [self.begin - bound, self.bytes, source, is_inline] {
            table.extend((number as u32).to_le_bytes());
        }
        table.extend(data);
    }
}

/// Jobs of one buffer, which are done at once.
struct Group {
    to: wgpu::Buffer,
    /// The bytes of the buffer that are bound.
    bound: (u64, u64),
    jobs: Vec<Job>,
}

/// The jobs of a submission. They are independent of each other.
#[derive(Default)]
pub(super) struct Jobs {
    /// What is in the scratch memory before the submission.
    table: Vec<u8>,
    /// Not in the table yet.
    groups: Vec<Group>,
    /// The jobs in the groups.
    count: u64,
    /// Bytes of the scratch memory that hold bytes of the jobs.
    used: u64,
}

impl Jobs {
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty() && self.groups.is_empty()
    }

    /// Returns whether there is no place for two more jobs: submit them.
    pub(super) fn is_full(&self) -> bool {
        let groups = (self.groups.len() as u64 + 2) * ALIGNMENT;
        self.table.len() as u64 + (self.count + 2) * JOB + groups > TABLE
    }

    /// Adds a job that writes these bytes, at most 16.
    pub(super) fn write(&mut self, kernel: &Kernel, to: &wgpu::Buffer, begin: u64, bytes: &[u8]) {
        let mut data = [0; 16];
        data.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        self.add(kernel, to, Job { begin, bytes: bytes.len() as u64, source: Source::Inline(data) });
    }

    /// Adds a job that fills the first bytes of a range, which begins where the pattern does and is part of one of `all` bytes. Returns
    /// how many.
    pub(super) fn fill(
        &mut self,
        kernel: &Kernel,
        to: &wgpu::Buffer,
        (begin, end): (u64, u64),
        all: u64,
        pattern: [u8; 16],
    ) -> u64 {
        let bytes = (all / FILLS).next_multiple_of(PIECE).clamp(PIECE, MOST_FILLED).min(end - begin);
        self.add(kernel, to, Job { begin, bytes, source: Source::Inline(pattern) });
        bytes
    }

    /// Adds a job that copies the first bytes of a range, and has `encoder` copy these to the scratch memory. Returns how many.
    ///
    /// # Errors
    /// wgpu's.
    pub(super) fn copy(
        &mut self,
        kernel: &Kernel,
        (queue, encoder): (&Submissions, &mut wgpu::CommandEncoder),
        (src, from): (&wgpu::Buffer, u64),
        (to, begin): (&wgpu::Buffer, u64),
        bytes: u64,
    ) -> Result<u64> {
        if self.used + 8 > DATA {
            self.encode(kernel, queue, encoder)?;
        }
        let phase = from % 4;
        let bytes = bytes.min(PIECE).min(DATA - self.used - phase);
        let words = (phase + bytes).next_multiple_of(4);
        let at = TABLE + self.used;
        encoder.copy_buffer_to_buffer(src, from - phase, &kernel.scratch, at, words);
        self.used += words;
        self.add(kernel, to, Job { begin, bytes, source: Source::Scratch(at + phase) });
        Ok(bytes)
    }

    fn add(&mut self, kernel: &Kernel, to: &wgpu::Buffer, job: Job) {
        let begin = job.begin / ALIGNMENT * ALIGNMENT;
        let end = (job.begin + job.bytes).next_multiple_of(4);
        self.count += 1;
        if let Some(last) = self.groups.last_mut().filter(|last| last.to == *to) {
            let bound = (last.bound.0.min(begin), last.bound.1.max(end));
            if bound.1 - bound.0 <= kernel.largest {
                last.bound = bound;
                last.jobs.push(job);
                return;
            }
        }
        self.groups.push(Group { to: to.clone(), bound: (begin, end), jobs: vec![job] });
    }

    /// Has `encoder` do what was added. The scratch memory is free after it.
    fn encode(
        &mut self,
        kernel: &Kernel,
        queue: &Submissions,
        encoder: &mut wgpu::CommandEncoder,
    ) -> Result<()> {
        let Self { table, groups, .. } = self;
        queue.captured(|| {
            let layout = kernel.pipeline.get_bind_group_layout(0);
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_pipeline(&kernel.pipeline);
            for Group { to, bound: (begin, end), jobs } in groups.drain(..) {
                table.resize((table.len() as u64).next_multiple_of(ALIGNMENT) as usize, 0);
                let at = table.len() as u64;
                jobs.iter().for_each(|job| job.write_to(table, begin));
                let bind = |binding, buffer, offset, bytes| wgpu::BindGroupEntry {
                    binding,
                    resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                        buffer,
                        offset,
                        size: wgpu::BufferSize::new(bytes),
                    }),
                };
                let group = queue.device.create_bind_group(&wgpu::BindGroupDescriptor {
                    label: None,
                    layout: &layout,
                    entries: &[
                        bind(0, &kernel.scratch, 0, kernel.scratch.size()),
                        bind(1, &kernel.scratch, at, jobs.len() as u64 * JOB),
                        bind(2, &to, begin, end - begin),
                    ],
                });
                pass.set_bind_group(0, &group, &[]);
                pass.dispatch_workgroups(jobs.len() as u32, 1, 1);
            }
        })?;
        (self.count, self.used) = (0, 0);
        Ok(())
    }

    /// Ends an encoder, after what was added. Returns its commands, and what [`Kernel::write_table`] writes before they are submitted.
    ///
    /// # Errors
    /// wgpu's.
    pub(super) fn finish(
        mut self,
        kernel: Option<&Kernel>,
        queue: &Submissions,
        mut encoder: wgpu::CommandEncoder,
    ) -> Result<(wgpu::CommandBuffer, Vec<u8>)> {
        if let Some(kernel) = kernel.filter(|_| self.count > 0) {
            self.encode(kernel, queue, &mut encoder)?;
        }
        let commands = queue.captured(|| encoder.finish())?;
        Ok((commands, self.table))
    }
}
