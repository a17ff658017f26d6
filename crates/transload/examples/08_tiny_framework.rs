//! 08 A tiny tensor framework whose whole backend is Transload: allocate, move, compute on the CPU and on CUDA.
//!
//! `cargo run -p transload --features cuda --example 08_tiny_framework`; append `-- --simulate` to try it without a GPU.
#![cfg_attr(not(any(target_os = "linux", windows)), no_main)]
#![cfg(any(target_os = "linux", windows))]

mod simulate;

use std::sync::Arc;

use transload::{
    Array, DeviceId, MemoryKind, Result, Runtime,
    cuda::{CudaKernel, CudaStream, LaunchConfig},
};

/// What the framework keeps for its lifetime: the runtime, and a stream and a kernel of its own on the GPU.
struct Backend {
    rt: Runtime,
    stream: CudaStream,
    relu: CudaKernel,
}

struct Tensor {
    elements: Array<f32>,
    backend: Arc<Backend>,
}

impl Backend {
    fn new(rt: Runtime) -> Result<Arc<Self>> {
        let gpu = rt.cuda(0)?;
        let relu = gpu.kernel(include_str!("kernels/kernels.ptx"), "relu")?;
        Ok(Arc::new(Self { stream: gpu.stream()?, relu, rt }))
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
        let result = self.empty_like(self.elements.device())?;
        if self.elements.device().is_cpu() {
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
    let backend = Backend::new(Runtime::discover()?)?;
    let x = backend.tensor((0..10_000).map(|i| i as f32 - 5000.0).collect())?;
    let mut results = Vec::new();
    for device in [DeviceId::Cpu, DeviceId::Cuda(0)] {
        // The same program on each device. A kernel runs while the host goes on; `to_vec` waits for it.
        results.push(x.to_device(device)?.relu()?.to_vec()?);
    }
    assert_eq!(results[0], results[1]);
    assert_eq!((results[1][0], results[1][9_999]), (0.0, 4999.0));
    println!("cpu and cuda:0 computed the same {} elements", results[0].len());
    backend.rt.drain()
}
