//! `--simulate`: the software CUDA driver, for machines without a GPU. Its reports say `(simulated)`.

use transload_cuda_sim::{HostKernel, IllegalAddress, KernelAccess, KernelMemory, Launch, SimDevice};

/// If the program was started with `--simulate`, makes the software driver this process's CUDA driver, with one device.
pub(crate) fn if_asked() {
    if std::env::args().any(|argument| argument == "--simulate") {
        assert!(transload_cuda_sim::install().is_ok(), "install comes before the first use of a driver");
        let _gpu = SimDevice::builder().build();
        // It runs no PTX: a module loads if each of its kernels has a function in Rust.
        transload_cuda_sim::register_host_kernel("scale_add", SCALE_ADD);
        transload_cuda_sim::register_host_kernel("relu", RELU);
    }
}

/// `scale_add(a, x, y, count)`: y[i] = a * x[i] + y[i].
const SCALE_ADD: HostKernel = HostKernel {
    parameters: &[4, 8, 8, 8],
    accesses: |launch, _| accesses(launch.number(1), launch.number(2), launch.number(3)),
    run: |launch, memory| {
        let a = f32::from_bits(launch.number(0) as u32);
        let (x, y, count) = (launch.number(1), launch.number(2), launch.number(3));
        each(memory, x, y, count, |x, y| a * x + y)
    },
};

/// `relu(x, y, count)`: y[i] = max(x[i], 0).
const RELU: HostKernel = HostKernel {
    parameters: &[8, 8, 8],
    accesses: |launch: &Launch, _| accesses(launch.number(0), launch.number(1), launch.number(2)),
    run: |launch, memory| {
        let (x, y, count) = (launch.number(0), launch.number(1), launch.number(2));
        each(memory, x, y, count, |x, _| x.max(0.0))
    },
};

/// What both kernels use: `x` is read and `y` written.
fn accesses(x: u64, y: u64, count: u64) -> Vec<KernelAccess> {
    let bytes = count as usize * size_of::<f32>();
    vec![KernelAccess::read(x, bytes), KernelAccess::write(y, bytes)]
}

fn each(
    memory: &mut KernelMemory<'_>,
    x: u64,
    y: u64,
    count: u64,
    result: impl Fn(f32, f32) -> f32,
) -> Result<(), IllegalAddress> {
    let bytes = count as usize * size_of::<f32>();
    let (mut xs, mut ys) = (vec![0; bytes], vec![0; bytes]);
    memory.read(x, &mut xs)?;
    memory.read(y, &mut ys)?;
    let number = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (x, y) in xs.chunks_exact(4).zip(ys.chunks_exact_mut(4)) {
        let value = result(number(x), number(y));
        y.copy_from_slice(&value.to_le_bytes());
    }
    memory.write(y, &ys)
}
