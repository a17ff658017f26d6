//! Host kernels for the examples, tests and benchmarks of `streams` (crates/streams/examples/kernels).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::host_kernel::{
    HostKernel, IllegalAddress, KernelAccess, KernelMemory, Launch, register_host_kernel,
};

pub(crate) fn register() {
    register_host_kernel("transload_saxpy", SAXPY);
    register_host_kernel("transload_add", ADD);
    register_host_kernel("transload_spin", SPIN);
}

/// Returns the size of `count` `f32` values in bytes, saturating on overflow.
fn bytes_of(count: u64) -> usize {
    usize::try_from(count.saturating_mul(4)).unwrap_or(usize::MAX)
}

/// `transload_saxpy(a, x, y, count)`: y[i] = a * x[i] + y[i].
const SAXPY: HostKernel = HostKernel {
    parameters: &[4, 8, 8, 8],
    accesses: |launch, _| {
        let bytes = bytes_of(launch.number(3));
        vec![KernelAccess::read(launch.number(1), bytes), KernelAccess::write(launch.number(2), bytes)]
    },
    run: |launch, memory| {
        let a = f32::from_bits(launch.number(0) as u32);
        let (x, y) = (launch.number(1), launch.number(2));
        each(memory, x, y, y, launch.number(3), |x, y| a * x + y)
    },
};

/// `transload_add(x, y, sum, count)`: sum[i] = x[i] + y[i].
const ADD: HostKernel = HostKernel {
    parameters: &[8, 8, 8, 8],
    accesses: |launch, _| {
        let bytes = bytes_of(launch.number(3));
        vec![
            KernelAccess::read(launch.number(0), bytes),
            KernelAccess::read(launch.number(1), bytes),
            KernelAccess::write(launch.number(2), bytes),
        ]
    },
    run: |launch, memory| {
        let (x, y, sum) = (launch.number(0), launch.number(1), launch.number(2));
        each(memory, x, y, sum, launch.number(3), |x, y| x + y)
    },
};

fn each(
    memory: &mut KernelMemory<'_>,
    x: u64,
    y: u64,
    to: u64,
    count: u64,
    of: impl Fn(f32, f32) -> f32,
) -> Result<(), IllegalAddress> {
    /// Elements per iteration.
    const CHUNK: u64 = 4_096;
    let mut done = 0;
    while done < count {
        let elements = CHUNK.min(count - done);
        let address = |base: u64| base.checked_add(done.saturating_mul(4)).ok_or(IllegalAddress);
        let (mut left, mut right) = (vec![0; bytes_of(elements)], vec![0; bytes_of(elements)]);
        memory.read(address(x)?, &mut left)?;
        memory.read(address(y)?, &mut right)?;
        let number = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let pairs = left.chunks_exact(4).zip(right.chunks_exact(4));
        let results: Vec<u8> = pairs.flat_map(|(x, y)| of(number(x), number(y)).to_le_bytes()).collect();
        memory.write(address(to)?, &results)?;
        done += elements;
    }
    Ok(())
}

/// `transload_spin(nanoseconds, out)`: takes no time here, but advances the timestamps that it writes.
const SPIN: HostKernel = HostKernel {
    parameters: &[8, 8],
    accesses: |launch, _| match launch.number(1) {
        0 => Vec::new(),
        out => vec![KernelAccess::write(out, 16)],
    },
    run: spin,
};

fn spin(launch: &Launch, memory: &mut KernelMemory<'_>) -> Result<(), IllegalAddress> {
    /// Simulated clock; advances only while kernels spin.
    static TIMER: AtomicU64 = AtomicU64::new(1);
    let nanoseconds = launch.number(0);
    let start = TIMER.fetch_add(nanoseconds.saturating_add(1), Ordering::Relaxed);
    match launch.number(1) {
        0 => Ok(()),
        out => {
            memory.write(out, &start.to_le_bytes())?;
            memory.write(
                out.checked_add(8).ok_or(IllegalAddress)?,
                &start.wrapping_add(nanoseconds).to_le_bytes(),
            )
        }
    }
}
