//! 07 Beside other libraries: memory and streams of cudarc's here, ours there, and tensors by DLPack, without a copy.
//!
//! `cargo run -p transload --features cuda,dlpack --example 07_beside_others`; append `-- --simulate` to try the part that needs no
//! driver of NVIDIA.
#![cfg_attr(not(any(target_os = "linux", windows)), no_main)]
#![cfg(any(target_os = "linux", windows))]

mod simulate;

use std::error::Error;

use cudarc::driver::{CudaContext, DevicePtr};
use transload::{
    Runtime,
    cuda::{Access, CudaGpu},
    dlpack::{Export, Importer, ManagedTensor},
};

const COUNT: usize = 1 << 20;

/// cudarc, on which candle and others stand, uses the device's primary context, as this library does.
fn beside_cudarc(rt: &Runtime, gpu: &CudaGpu) -> Result<(), Box<dyn Error>> {
    let theirs = CudaContext::new(0)?.new_stream()?;

    // Their stream as one of ours. The second `theirs` keeps it alive as long as anything here needs it.
    // SAFETY: it is a live stream of the device, and nothing is captured on it.
    let stream = unsafe { gpu.adopt_stream(theirs.cu_stream() as usize, theirs.clone()) }?;

    // Their memory as an array, which owns it from now on. Their upload may still be in flight: the fence says when it is over.
    let slice = theirs.clone_htod(&vec![1.5_f32; COUNT])?;
    let address = slice.device_ptr(&theirs).0;
    // SAFETY: the slice has `COUNT` floats there, which nobody else uses, and its only work is complete with the fence.
    let array = unsafe { gpu.adopt_after::<f32>(address, COUNT, slice, &[stream.fence()?]) }?;
    assert!(rt.download(&array).wait()?.iter().all(|element| *element == 1.5));

    // Our memory as a slice of theirs. What they enqueue on the stream until the use ends takes its place among our own work.
    let ours = gpu.zeros::<f32>(COUNT)?;
    let address = ours.device_address()?;
    let used = ours.used_on(&stream, Access::Write)?;
    // SAFETY: the array has `COUNT` floats there. The slice is leaked below: it does not free them.
    let mut slice = unsafe { theirs.upgrade_device_ptr::<f32>(address, COUNT) };
    theirs.memcpy_htod(&vec![2.5_f32; COUNT], &mut slice)?;
    slice.leak();
    used.end()?;
    assert!(rt.download(&ours).wait()?.iter().all(|element| *element == 2.5));

    println!("a slice of cudarc's as an array, and an array as a slice of cudarc's: no copy");
    Ok(())
}

/// PyTorch, JAX and CuPy exchange tensors by DLPack. An extension module in Rust returns the pointer in a capsule, for
/// `torch.from_dlpack`. Here our own importer stands where PyTorch would; benches/pytorch_dlpack.py has PyTorch itself.
fn beside_pytorch(rt: &Runtime, gpu: &CudaGpu) -> Result<(), Box<dyn Error>> {
    let (array, stream) = (gpu.upload(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?, gpu.stream()?);

    // Out: the consumer's stream waits for work in flight, the host does not. Until it comes back the tensor is the consumer's.
    let tensor = Export::of::<f32>(array.raw()).shape(&[2, 3]).for_stream(&stream).versioned()?.into_raw();

    // In: what `__dlpack__()` of a tensor returned.
    // SAFETY: it comes from `into_raw` above, nobody else has it, and its memory is at rest after the stream's work.
    let tensor = unsafe { ManagedTensor::from_raw(tensor, &[]) }?;
    let importer = Importer::new().with_device(gpu.device());
    let theirs = rt.array::<f32>(importer.import(tensor)?.into_buffer())?;
    assert_eq!(theirs.device_address()?, array.device_address()?);

    // The last handle gives it back. Then it is ours again, with what was written meanwhile.
    theirs.fill(7.0)?;
    drop(theirs);
    importer.drain()?;
    assert_eq!(*rt.download(&array).wait()?, [7.0; 6]);
    println!("a tensor out by DLPack and back: no copy");
    Ok(())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    simulate::if_asked();
    let rt = Runtime::discover()?;
    let gpu = rt.cuda(0)?;
    beside_pytorch(&rt, &gpu)?;
    if gpu.backend().is_simulated() {
        println!("skipped: cudarc, which calls NVIDIA's driver by itself");
    } else {
        beside_cudarc(&rt, &gpu)?;
    }
    Ok(rt.drain()?)
}
