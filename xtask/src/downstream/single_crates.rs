//! Builds and runs a project for each published crate that depends on it and those that its interface needs. Not for the wgpu backend:
//! wgpu would take longer to build than all others.

use std::path::Path;

use anyhow::Result;
use xshell::Shell;

use super::programs::Project;

/// The crates that a program depends on, the first of which it is about, whether they depend on cust, and the program, which prints
/// `alone: ok`.
const CRATES: &[(&[&str], bool, &str)] = &[
    (
        &["core"],
        false,
        r#"
use transload_core::{CostModel, DeviceId, SizeClass};
fn main() {
    let device: DeviceId = "cuda:3".parse().unwrap();
    let model = CostModel::linear(std::time::Duration::from_micros(8), 55e9);
    assert!(model.predict(1 << 20) > model.predict(0) && SizeClass::of(4097) == SizeClass::UpTo64KiB);
    println!("alone: ok, {device}");
}"#,
    ),
    (
        &["executor"],
        false,
        r#"
fn main() {
    let executor = transload_executor::Executor::with_threads(2).unwrap();
    println!("alone: ok, {executor:?}");
}"#,
    ),
    (
        &["backend-cpu", "core"],
        false,
        r#"
use transload_backend_cpu::{CpuBackend, CpuBuffer};
fn main() {
    use transload_core::Buffer;
    let backend = CpuBackend::new().unwrap();
    let buffer = CpuBuffer::<f32>::new(&backend, 100).unwrap();
    buffer.fill(1.5).unwrap();
    let mut back = [0.0; 100];
    buffer.copy_to_host(&mut back).unwrap();
    assert_eq!(back, [1.5; 100]);
    println!("alone: ok");
}"#,
    ),
    (
        &["transfer", "core", "executor", "backend-cpu"],
        false,
        r#"
// Adopted memory and transfers without any device family.
use std::{ptr::NonNull, sync::{Arc, atomic::{AtomicUsize, Ordering}}};
use transload_core::{DeviceId, MemoryKind, Place, RawBuffer, Reclaimer};
use transload_executor::{DropQueue, ExternalMemory, ExternalStorage};
struct Tensor(Vec<f32>, Arc<AtomicUsize>);
impl Drop for Tensor {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}
fn main() {
    let manager = transload_transfer::CrossBackendTransferManager::new();
    manager.register_backend(transload_backend_cpu::CpuBackend::new().unwrap()).unwrap();
    let (drops, dropped) = (DropQueue::default(), Arc::new(AtomicUsize::new(0)));
    let adopt = |value: f32| {
        let mut tensor = Tensor(vec![value; 1000], Arc::clone(&dropped));
        let memory = ExternalMemory {
            place: Place::new(DeviceId::Cpu, MemoryKind::Pageable),
            bytes: 4000,
            host_address: NonNull::new(tensor.0.as_mut_ptr().cast()),
            device_address: None,
            writable: true,
            backend_data: None,
        };
        // SAFETY: the tensor keeps its elements, and nobody else uses them.
        let storage = unsafe { ExternalStorage::new(memory, Box::new(tensor), &drops) };
        RawBuffer::new(Box::new(storage), &Arc::new(Reclaimer::new()))
    };
    let (src, dst) = (adopt(1.5), adopt(0.0));
    manager.copy(&src, &dst).wait().unwrap();
    assert_eq!(dst.read().unwrap()[3996..], 1.5_f32.to_ne_bytes());
    drop((src, dst));
    drops.drain().unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
    println!("alone: ok");
}"#,
    ),
    (
        &["transfer"],
        false,
        r#"
fn main() {
    let manager = transload_transfer::CrossBackendTransferManager::new();
    assert!(manager.devices().is_empty() && manager.get_transfer_stats().is_empty());
    println!("alone: ok");
}"#,
    ),
    (
        &["profiler"],
        false,
        r#"
fn main() {
    let log = transload_profiler::TransferLog::with_capacity(16);
    println!("alone: ok, {:?}", log.totals());
}"#,
    ),
    (
        &["dlpack", "core", "backend-cpu"],
        false,
        r#"
fn main() {
    use transload_core::{Backend, DeviceId, MemoryKind};
    let backend = transload_backend_cpu::CpuBackend::new().unwrap();
    let buffer = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 24).unwrap();
    let tensor = transload_dlpack::Export::of::<f32>(&buffer).shape(&[2, 3]).versioned().unwrap();
    let there = transload_dlpack::Importer::new().import(tensor).unwrap();
    assert_eq!(there.buffer().host_address(), buffer.host_address());
    println!("alone: ok");
}"#,
    ),
    (
        &["memory"],
        true,
        r#"
fn main() {
    match transload_memory::CudaDevice::new(0) {
        Ok(device) => println!("alone: ok, {}", device.id()),
        Err(reason) => println!("alone: ok, {reason}"),
    }
}"#,
    ),
    (
        &["streams", "memory"],
        true,
        r#"
fn main() {
    let made = transload_memory::CudaDevice::new(0).and_then(|device| transload_streams::CudaStream::new(&device));
    println!("alone: ok, {:?}", made.map(|stream| stream.id()));
}"#,
    ),
    (
        &["backend-cuda"],
        true,
        r#"
fn main() {
    let backend = transload_backend_cuda::CudaBackend::open(&transload_backend_cuda::CudaBackendConfig::default());
    println!("alone: ok, {:?}", backend.map(|backend| backend.is_simulated()));
}"#,
    ),
    (
        &["cuda-sim", "cuda-sys"],
        true,
        r#"
fn main() {
    transload_cuda_sim::install().unwrap();
    let device = transload_cuda_sim::SimDevice::builder().build();
    let context = transload_cuda_sys::Context::primary(transload_cuda_sys::Device::new(device.ordinal()).unwrap());
    println!("alone: ok, simulated: {:?}", context.unwrap().memory_info());
}"#,
    ),
];

/// Builds and runs a project for each crate.
pub(super) fn run(sh: &Shell, root: &Path, base: &Path, target: &Path) -> Result<()> {
    for (crates, with_cust, program) in CRATES {
        let name = crates.join("-");
        let project = Project {
            name: &format!("alone-{name}"),
            crates: &crates.iter().map(|name| (*name, "")).collect::<Vec<_>>(),
            program,
            prints: "alone: ok",
        };
        project.run(sh, root, base, target, *with_cust)?;
        println!("downstream: a project of {} builds and runs", crates.join(", "));
    }
    Ok(())
}
