//! 08 A tiny tensor framework whose whole backend is Transload: allocate, move, compute on the CPU, on CUDA, and with the feature `wgpu` by a
//! shader of Vulkan.
//!
//! `cargo run -p transload --features cuda,wgpu --example 08_tiny_framework`; append `-- --simulate` to try it without a GPU.
#![cfg_attr(not(any(target_os = "linux", windows)), no_main)]
#![cfg(any(target_os = "linux", windows))]

mod shader;
mod simulate;

use std::sync::Arc;

use transload::{
    Array, DeviceId, MemoryKind, Result, Runtime,
    cuda::{CudaKernel, CudaStream, LaunchConfig},
};

/// What the framework keeps for its lifetime: the runtime, a stream and a kernel of its own on the GPU, and a shader.
struct Backend {
    rt: Runtime,
    stream: CudaStream,
    relu: CudaKernel,
    shader: Option<shader::Shader>,
}

struct Tensor {
    elements: Array<f32>,
    backend: Arc<Backend>,
}

impl Backend {
    fn new() -> Result<Arc<Self>> {
        let (shader, builder) = (shader::Shader::open(), Runtime::builder());
        let rt = shader.iter().fold(builder, |builder, shader| shader.register(builder)).discover()?;
        let gpu = rt.cuda(0)?;
        let relu = gpu.kernel(include_str!("kernels/kernels.ptx"), "relu")?;
        Ok(Arc::new(Self { stream: gpu.stream()?, relu, shader, rt }))
    }

    fn tensor(self: &Arc<Self>, elements: Vec<f32>) -> Result<Tensor> {
        Ok(Tensor { elements: self.rt.host(elements)?, backend: Arc::clone(self) })
    }
}

impl Tensor {
    /// A tensor of the same length on a device, with undefined elements.
    fn empty_like(&self, device: DeviceId) -> Result<Self> {
        let kind = if device.is_cpu() { MemoryKind::Pageable } else { MemoryKind::Device };
        let elements = self.backend.rt.alloc(device, kind, self.elements.len())?;
        Ok(Self { elements, backend: Arc::clone(&self.backend) })
    }

    fn to_device(&self, device: DeviceId) -> Result<Self> {
        let there = self.empty_like(device)?;
        self.backend.rt.copy(&self.elements, &there.elements).wait()?;
        Ok(there)
    }

    fn relu(&self) -> Result<Self> {
        let device = self.elements.device();
        let result = self.empty_like(device)?;
        let shader = self.backend.shader.as_ref().filter(|shader| shader.device() == device);
        if let Some(shader) = shader {
            shader.relu(self.elements.raw(), result.elements.raw())?;
        } else if device.is_cpu() {
            let x = self.elements.read()?;
            result.elements.write()?.iter_mut().zip(&*x).for_each(|(y, x)| *y = x.max(0.0));
        } else {
            let count = self.elements.len() as u64;
            let relu = self.backend.relu.launch(LaunchConfig::for_elements(count, 256)).reads(&self.elements);
            // SAFETY: these are the kernel's parameters, and both buffers have `count` floats.
            unsafe { relu.writes(&result.elements).arg(count).enqueue(&self.backend.stream) }?;
        }
        Ok(result)
    }

    fn to_vec(&self) -> Result<Vec<f32>> {
        self.backend.rt.download_into(&self.elements, vec![0.0; self.elements.len()]).wait()
    }
}

pub(crate) fn main() -> Result<()> {
    simulate::if_asked();
    let backend = Backend::new()?;
    let x = backend.tensor((0..10_000).map(|i| i as f32 - 5000.0).collect())?;
    let third = backend.shader.iter().map(shader::Shader::device);
    let devices: Vec<_> = [DeviceId::Cpu, DeviceId::Cuda(0)].into_iter().chain(third).collect();
    for device in &devices {
        // The same program on each device. A kernel runs while the host goes on; `to_vec` waits for it.
        let result = x.to_device(*device)?.relu()?.to_vec()?;
        assert!(result.iter().zip(0..).all(|(found, i)| *found == (i as f32 - 5000.0).max(0.0)));
    }
    println!("{devices:?} computed the same 10000 elements");
    backend.rt.drain()
}
