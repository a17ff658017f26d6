//! Uploads weights, runs a WGSL shader on them, and downloads the result, on the first adapter.
//!
//!     cargo run -p transload-backend-wgpu --example shader

#[cfg(any(target_os = "linux", target_os = "macos", windows))]
mod shader {
    use transload_backend_cpu::{CpuBackend, CpuBuffer};
    use transload_backend_wgpu::{WgpuBackend, WgpuBackendConfig, wgpu};
    use transload_core::{
        Access, Backend, Buffer as _, MemoryKind, Operation, Result, StreamPriority, Timing, WorkloadType,
        submit,
    };

    const SHADER: &str = "
        @group(0) @binding(0) var<storage, read_write> weights: array<f32>;
        @compute @workgroup_size(64)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < arrayLength(&weights) { weights[id.x] = max(weights[id.x], 0.0); }
        }";

    const LEN: usize = 1 << 16;

    pub(super) fn run() -> Result<()> {
        let backend = match WgpuBackend::open(&WgpuBackendConfig::default().with_software_adapters()) {
            Ok(backend) => backend,
            Err(reason) => {
                println!("no device here: {reason}");
                return Ok(());
            }
        };
        let Some(info) = backend.devices().into_iter().next() else { return Ok(()) };
        println!("{}: {}", info.id, info.name);
        let host = CpuBackend::new()?;
        let weights: Vec<f32> = (0..LEN).map(|n| n as f32 - 1000.0).collect();
        let (weights, result) = (CpuBuffer::from_slice(&host, &weights)?, CpuBuffer::<f32>::new(&host, LEN)?);
        let there = backend.allocate(info.id, MemoryKind::Device, LEN * size_of::<f32>())?;
        let queue = backend.lease_queue(info.id, StreamPriority::Normal, WorkloadType::Memory)?;

        submit(&*queue, &Operation::Copy { src: weights.raw(), dst: &there }, Timing::Off)?;
        let commands = rectify(backend.device(info.id)?, &backend.buffer(&there)?);
        // Runs after the upload and before the download, since all three name the buffer. Nothing waits in between.
        backend.submit(info.id, [commands], &[(&there, Access::Write)])?;
        submit(&*queue, &Operation::Copy { src: &there, dst: result.raw() }, Timing::Off)?.wait()?;

        let result = result.read()?;
        println!("{:?} became {:?}", &weights.read()?[998..1003], &result[998..1003]);
        assert!(result.iter().enumerate().all(|(n, found)| *found == (n as f32 - 1000.0).max(0.0)));
        Ok(())
    }

    /// Records the shader's run.
    fn rectify(device: &wgpu::Device, weights: &wgpu::Buffer) -> wgpu::CommandBuffer {
        let source = wgpu::ShaderSource::Wgsl(SHADER.into());
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let bindings = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: weights.as_entire_binding() }],
        });
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &bindings, &[]);
        pass.dispatch_workgroups((LEN / 64) as u32, 1, 1);
        drop(pass);
        encoder.finish()
    }
}

#[cfg(any(target_os = "linux", target_os = "macos", windows))]
pub(crate) fn main() -> transload_core::Result<()> {
    shader::run()
}

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
fn main() {}
