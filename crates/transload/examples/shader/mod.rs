//! `relu` as a shader, on whatever GPU wgpu finds: of Vulkan, DX12, OpenGL or Metal. None without the feature `wgpu`.

#[cfg(not(feature = "wgpu"))]
pub(crate) use absent::Shader;
#[cfg(feature = "wgpu")]
pub(crate) use present::Shader;

#[cfg(feature = "wgpu")]
mod present {
    use std::sync::Arc;

    use transload::{
        DeviceId, RawBuffer, Result, RuntimeBuilder,
        backend::{Access, Backend as _},
        wgpu::{WgpuBackend, WgpuBackendConfig, wgpu},
    };

    const RELU: &str = "
        @group(0) @binding(0) var<storage, read_write> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < arrayLength(&y) { y[id.x] = max(x[id.x], 0.0); }
        }";

    pub(crate) struct Shader {
        backend: Arc<WgpuBackend>,
        device: DeviceId,
        relu: wgpu::ComputePipeline,
    }

    impl Shader {
        /// Also on a software adapter, such as Mesa's llvmpipe. `None`, with a printed reason, if there is no adapter.
        pub(crate) fn open() -> Option<Self> {
            let opened = WgpuBackend::open(&WgpuBackendConfig::default().with_software_adapters());
            let backend = opened.map_err(|reason| println!("no third device: {reason}")).ok()?;
            let device = backend.devices().first()?.id;
            let gpu = backend.device(device).ok()?;
            let source = wgpu::ShaderSource::Wgsl(RELU.into());
            let module = gpu.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
            let relu = gpu.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: None,
                layout: None,
                module: &module,
                entry_point: None,
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: None,
            });
            Some(Self { backend, device, relu })
        }

        pub(crate) fn device(&self) -> DeviceId {
            self.device
        }

        pub(crate) fn register(&self, builder: RuntimeBuilder) -> RuntimeBuilder {
            builder.backend(self.backend.clone())
        }

        /// Runs after what is in flight on `x` and `y`, and before what uses them later.
        pub(crate) fn relu(&self, x: &RawBuffer, y: &RawBuffer) -> Result<()> {
            let gpu = self.backend.device(self.device)?;
            let (from, to) = (self.backend.buffer(x)?, self.backend.buffer(y)?);
            let bindings = gpu.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &self.relu.get_bind_group_layout(0),
                entries: &[
                    wgpu::BindGroupEntry { binding: 0, resource: from.as_entire_binding() },
                    wgpu::BindGroupEntry { binding: 1, resource: to.as_entire_binding() },
                ],
            });
            let mut encoder = gpu.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_pipeline(&self.relu);
            pass.set_bind_group(0, &bindings, &[]);
            pass.dispatch_workgroups((y.len() / size_of::<f32>()).div_ceil(64) as u32, 1, 1);
            drop(pass);
            let uses = [(x, Access::Read), (y, Access::Write)];
            self.backend.submit(self.device, [encoder.finish()], &uses).map(drop)
        }
    }
}

#[cfg(not(feature = "wgpu"))]
mod absent {
    use transload::{DeviceId, RawBuffer, Result, RuntimeBuilder};

    pub(crate) enum Shader {}

    impl Shader {
        pub(crate) fn open() -> Option<Self> {
            None
        }

        pub(crate) fn device(&self) -> DeviceId {
            match *self {}
        }

        pub(crate) fn register(&self, _: RuntimeBuilder) -> RuntimeBuilder {
            match *self {}
        }

        pub(crate) fn relu(&self, _: &RawBuffer, _: &RawBuffer) -> Result<()> {
            match *self {}
        }
    }
}
