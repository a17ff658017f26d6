//! Memory that CUDA and Vulkan share on one GPU: CUDA's copies within it, and handing it over to Vulkan's copies, or to a shader and back.

use std::{sync::Arc, time::Instant};

use anyhow::{Result, bail, ensure};
use transload_backend_wgpu::{CudaInterop, wgpu};
use transload_core::{
    Access, Backend as _, Error, ErrorKind, Fence, MemoryKind, Operation, RawBuffer, Timing, submit,
};
use transload_cuda_sys::{Device, Driver};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::CudaStream;

use super::{
    Adapter,
    between::is_unsupported,
    checked::{Checked, Target},
    microseconds,
    probe::{self, HandOver},
    rate,
};
use crate::{
    comparison::{Variant, Verify},
    cuda,
    memory::{Memory, POISON},
    row::{Goal, Row},
};

/// Goal: the rate of copies within shared memory, or through it, over that of the same within each API's own memory.
const OF_LOCAL: f64 = 0.95;
/// Goal: the time of a hand-over and back over that by hand.
const BY_HAND: f64 = 1.2;
/// Goal: what the host spends on hand-overs that come after long copies, over the time until all is done.
const HOST_SHARE: f64 = 0.5;
/// Bytes that are handed over.
const HANDED: usize = 4 << 10;
/// Hand-overs before the host waits.
const TIMES: usize = 32;
/// Long copies before hand-overs.
const COPIES: usize = 64;
/// Few instructions: what is measured is the hand-over.
const SHADER: &str = "
    @group(0) @binding(0) var<storage, read_write> numbers: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < arrayLength(&numbers) { numbers[id.x] = numbers[id.x] + 1u; }
    }";

/// One GPU under both APIs.
struct Both<'a> {
    adapter: &'a Adapter<'a>,
    memory: Arc<CudaMemoryManager>,
    stream: CudaStream,
    interop: CudaInterop,
    pipeline: wgpu::ComputePipeline,
    is_simulated: bool,
}

pub(super) fn rows(adapter: &Adapter<'_>) -> Result<Vec<Row>> {
    let both = match Both::open(adapter) {
        Err(error) if is_unsupported(&error) => {
            eprintln!("no rows of shared memory on {}: {error:#}", adapter.name());
            return Ok(Vec::new());
        }
        opened => opened?,
    };
    let mut rows = both.copying()?;
    rows.extend(both.passing_on()?);
    rows.extend(both.handing_over()?);
    let (device, memory) = (adapter.backend.device(adapter.info.id)?, Arc::clone(&both.memory));
    drop(both);
    // wgpu drops what its last submission used.
    device.poll(wgpu::PollType::wait_indefinitely())?;
    memory.drain()?;
    let counts = memory.resource_counts();
    ensure!(counts.is_empty(), "still allocated: {counts}");
    Ok(rows)
}

/// Returns the CUDA device that is the adapter's GPU.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if there is none.
pub(super) fn same_gpu(adapter: &Adapter<'_>) -> Result<u32> {
    if let Some(reason) = cuda::absence() {
        bail!(Error::new(ErrorKind::Unsupported, reason));
    }
    let uuid = adapter.info.uuid;
    let is_same = |n: &u32| uuid.is_some() && Device::new(*n).and_then(|device| device.uuid()).ok() == uuid;
    let Some(ordinal) = (0..Driver::get()?.device_count()?).find(is_same) else {
        bail!(Error::new(ErrorKind::Unsupported, "no CUDA device has its UUID"));
    };
    Ok(ordinal)
}

impl<'a> Both<'a> {
    /// # Errors
    /// [`ErrorKind::Unsupported`] if CUDA does not show the device, or the drivers share no memory; the drivers'.
    fn open(adapter: &'a Adapter<'a>) -> Result<Self> {
        let device = CudaDevice::new(same_gpu(adapter)?)?;
        let memory = Arc::new(CudaMemoryManager::new(&device)?);
        let interop = CudaInterop::new(adapter.backend, adapter.info.id, &memory)?;
        // Whether the driver imports memory.
        drop(interop.allocate(HANDED)?);
        let vulkan = adapter.backend.device(adapter.info.id)?;
        let source = wgpu::ShaderSource::Wgsl(SHADER.into());
        let module = vulkan.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let pipeline = vulkan.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let stream = CudaStream::new(&device)?;
        let is_simulated = Driver::get()?.is_simulated();
        Ok(Self { adapter, memory, stream, interop, pipeline, is_simulated })
    }

    fn copy(&self, src: &RawBuffer, dst: &RawBuffer) -> Result<Fence> {
        Ok(submit(&self.stream, &Operation::Copy { src, dst }, Timing::Off)?)
    }

    fn pinned(&self, content: &[u8]) -> Result<RawBuffer> {
        let buffer = self.memory.allocate(MemoryKind::Pinned, content.len())?;
        Memory::Ours(buffer.clone()).write(0, content)?;
        Ok(buffer)
    }

    /// Runs the shader on shared memory, in order with CUDA's work on it.
    fn shader(&self, shared: &RawBuffer, handle: &wgpu::Buffer) -> Result<Fence> {
        let device = self.adapter.backend.device(self.adapter.info.id)?;
        let bindings = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.pipeline.get_bind_group_layout(0),
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: handle.as_entire_binding() }],
        });
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &bindings, &[]);
        pass.dispatch_workgroups((HANDED / 4).div_ceil(64) as u32, 1, 1);
        drop(pass);
        Ok(self.adapter.backend.submit(
            self.adapter.info.id,
            [encoder.finish()],
            &[(shared, Access::Write)],
        )?)
    }

    fn compare(
        &self,
        id: (&str, &str),
        unit: (&'static str, usize),
        of: Vec<Variant<'_>>,
    ) -> Result<Vec<Row>> {
        let rows = self.adapter.compare(id, unit, 30, 1, of)?;
        // Without goals, if CUDA's part is played.
        Ok(rows.into_iter().map(|row| row.clone().obtained(self.is_simulated, row.verified)).collect())
    }

    /// A copy by CUDA between buffers that Vulkan has too, without a hand-over, next to one within CUDA's memory.
    fn copying(&self) -> Result<Vec<Row>> {
        let bytes = self.adapter.large();
        let content = self.adapter.random(bytes);
        let src = self.pinned(&content)?;
        let shared = [self.interop.allocate(bytes)?, self.interop.allocate(bytes)?];
        let local = || self.memory.allocate(MemoryKind::Device, bytes);
        let (here, there) = (local()?, local()?);
        let [from, to] = &shared;
        self.copy(&src, &here)?;
        self.copy(&src, from)?;
        let once = |src, dst| rate(bytes, move || Ok(self.copy(src, dst)?.wait()?));
        let (theirs, own) = (Arrived(self, &there, &content), Arrived(self, to, &content));
        let ours = Variant::new("shared", "CUDA's copy between two of them", once(from, to));
        self.compare(
            (
                &format!("cuda-copy/{bytes}"),
                "a copy by CUDA between buffers that Vulkan has too, none of them handed over",
            ),
            ("GB/s", bytes),
            vec![
                Variant::new("local", "CUDA's copy within its own memory", once(&here, &there))
                    .by_library()
                    .verified_by(&theirs),
                ours.goal(Goal::RatioAtLeast(OF_LOCAL)).verified_by(&own),
            ],
        )
    }

    /// CUDA writes shared memory and Vulkan reads it, next to the same two copies each within the API's own memory.
    fn passing_on(&self) -> Result<Vec<Row>> {
        let (adapter, bytes) = (self.adapter, self.adapter.large());
        let content = adapter.random(bytes);
        let local = || self.memory.allocate(MemoryKind::Device, bytes);
        let (here, there) = (local()?, local()?);
        self.copy(&self.pinned(&content)?, &here)?.wait()?;
        let shared = self.interop.allocate(bytes)?;
        let alias = adapter.backend.share(&shared, adapter.info.id)?.buffer;
        let device = || adapter.allocate(MemoryKind::Device, bytes);
        let (theirs, apart, end) = (device()?, device()?, device()?);
        adapter.copy(&adapter.filled(MemoryKind::Pageable, &content)?, &theirs)?;
        let id = adapter.info.id;
        let by_vulkan = |src: &RawBuffer, dst: &RawBuffer| -> Result<Fence> {
            let (from, to) = (adapter.backend.buffer(src)?, adapter.backend.buffer(dst)?);
            let device = adapter.backend.device(id)?;
            let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(&from, 0, &to, 0, bytes as u64);
            let uses = [(src, Access::Read), (dst, Access::Write)];
            Ok(adapter.backend.submit(id, [encoder.finish()], &uses)?)
        };
        let within = || {
            self.copy(&here, &there)?.wait()?;
            Ok(by_vulkan(&theirs, &apart)?.wait()?)
        };
        let handed = || {
            self.copy(&here, &shared)?;
            Ok(by_vulkan(&alias, &end)?.wait()?)
        };
        let checked = |buffer: &RawBuffer| Checked {
            adapter,
            target: Target::Ours(buffer.clone()),
            expected: &content,
        };
        let (in_cuda, in_shared) = (Arrived(self, &there, &content), Arrived(self, &shared, &content));
        let (in_vulkan, at_end) = (checked(&apart), checked(&end));
        let (apart, handed_over) = (Each(&in_cuda, &in_vulkan), Each(&in_shared, &at_end));
        let who = if self.interop.waits_on_device() { "the device waits" } else { "the host waits" };
        self.compare(
            (
                &format!("cuda-to-vulkan/{bytes}"),
                "a copy by CUDA, then one by Vulkan of what it wrote; bytes of one of them over the time of both",
            ),
            ("GB/s", bytes),
            vec![
                Variant::new(
                    "local",
                    "CUDA's copy and Vulkan's, each within its own memory, the host waits for each",
                    rate(bytes, within),
                )
                .by_library()
                .verified_by(&apart),
                Variant::new("handed-over", &format!("through shared memory, {who} in between"), rate(bytes, handed))
                    .goal(Goal::RatioAtLeast(OF_LOCAL))
                    .verified_by(&handed_over),
            ],
        )
    }

    /// Hand-overs to a shader and back, each of which waits for the one before on the device, next to a host that waits for each; and what
    /// the host spends on them while they come after long copies, next to the time until all is done.
    fn handing_over(&self) -> Result<Vec<Row>> {
        let bytes = self.adapter.large();
        let allocate = |bytes| self.memory.allocate(MemoryKind::Device, bytes);
        let (shared, back) = (self.interop.allocate(HANDED)?, allocate(HANDED)?);
        let ours = self.adapter.backend.share(&shared, self.adapter.info.id)?.buffer;
        let (handle, start, long) = (
            self.adapter.backend.buffer(&ours)?,
            self.pinned(&[0; HANDED])?,
            [allocate(bytes)?, allocate(bytes)?],
        );
        let run = |copies: usize, waits: bool| -> Result<f64> {
            for _ in 0..copies {
                self.copy(&long[0], &long[1])?;
            }
            self.copy(&start, &shared)?;
            let begun = Instant::now();
            for _ in 0..TIMES {
                let (there, here) = (self.shader(&ours, &handle)?, self.copy(&shared, &back)?);
                if waits {
                    there.wait()?;
                    here.wait()?;
                }
            }
            let spent = begun.elapsed();
            self.stream.synchronize()?;
            Ok(spent.as_secs_f64() * 1e6)
        };
        let run = &run;
        let each = |waits| {
            let mut timed = microseconds(move || run(0, waits).map(drop));
            move || Ok(timed()? / TIMES as f64)
        };
        let expected: Vec<u8> = (TIMES as u32).to_ne_bytes().repeat(HANDED / 4);
        let arrived = Arrived(self, &back, &expected);
        let who = if self.interop.waits_on_device() { "the device waits" } else { "the host waits" };
        let device = probe::open(self.adapter)?;
        let hands = match &device {
            Some(device) => HandOver::new(self.adapter, device)?,
            None => None,
        };
        let waiting = Variant::new("waiting", "submit(), wait() each time", each(true)).verified_by(&arrived);
        let in_order =
            Variant::new("in-order", &format!("submit(), {who}"), each(false)).verified_by(&arrived);
        let variants = match &hands {
            None => vec![waiting.by_library(), in_order],
            Some(hands) => {
                let mut timed = microseconds(|| hands.in_order());
                let each = move || Ok(timed()? / TIMES as f64);
                let by_hand = Variant::new("by-hand", "both APIs by hand, the device waits", each);
                vec![by_hand.verified_by(hands), waiting, in_order.goal(Goal::RatioAtMost(BY_HAND))]
            }
        };
        let what = "memory handed over to a shader and back to CUDA, each time";
        let mut rows = self.compare((&format!("hand-over/{HANDED}"), what), ("us", HANDED), variants)?;
        let copies = if self.is_simulated { 2 } else { COPIES };
        let host = Variant::new("host", &format!("submit(), {who}"), move || run(copies, false));
        rows.extend(self.compare(
            (&format!("hand-over-host/{TIMES}"), "the host's time for hand-overs after long copies by CUDA"),
            ("us", 0),
            vec![
                Variant::new("all", "until all is done", microseconds(move || run(copies, false).map(drop)))
                    .by_library(),
                host.goal(Goal::RatioAtMost(HOST_SHARE)),
            ],
        )?);
        Ok(rows)
    }
}

/// Two destinations.
struct Each<'a>(&'a dyn Verify, &'a dyn Verify);

impl Verify for Each<'_> {
    fn poison(&self) -> Result<()> {
        self.0.poison()?;
        self.1.poison()
    }

    fn check(&self) -> Result<()> {
        self.0.check()?;
        self.1.check()
    }
}

/// Memory of CUDA, and what it has to hold.
struct Arrived<'a>(&'a Both<'a>, &'a RawBuffer, &'a [u8]);

impl Verify for Arrived<'_> {
    fn poison(&self) -> Result<()> {
        let Self(both, buffer, expected) = self;
        Ok(both.copy(&both.pinned(&vec![POISON; expected.len()])?, buffer)?.wait()?)
    }

    fn check(&self) -> Result<()> {
        let Self(both, buffer, expected) = self;
        let back = both.pinned(&vec![POISON; expected.len()])?;
        both.copy(buffer, &back)?.wait()?;
        Memory::Ours(back).compare(0, expected)
    }
}
