//! Host kernels for the library's own device kernels, registered on installation.

use std::sync::Once;

use transload_core::FloatType;

use crate::{
    example_kernels,
    host_kernel::{HostKernel, IllegalAddress, KernelAccess, KernelMemory, Launch, register_host_kernel},
};

/// Registers the kernels once, so that a test may replace them afterwards.
pub(crate) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        register_host_kernel("transload_copy", COPY);
        register_host_kernel("transload_copy_list", COPY_LIST);
        register_host_kernel("transload_fill", FILL);
        register_host_kernel("transload_cast", CAST);
        register_host_kernel("transload_occupy", OCCUPY);
        example_kernels::register();
    });
}

/// `transload_copy(dst, src, bytes)`: crates/streams/src/submit/kernels/copy.cu.
const COPY: HostKernel = HostKernel { parameters: &[8, 8, 8], accesses, run };

fn parameters(launch: &Launch) -> (u64, u64, usize) {
    (launch.number(0), launch.number(1), launch.number(2) as usize)
}

fn accesses(launch: &Launch, _: &KernelMemory<'_>) -> Vec<KernelAccess> {
    let (dst, src, bytes) = parameters(launch);
    vec![KernelAccess::read(src, bytes), KernelAccess::write(dst, bytes)]
}

fn run(launch: &Launch, memory: &mut KernelMemory<'_>) -> Result<(), IllegalAddress> {
    let (dst, src, bytes) = parameters(launch);
    memory.copy(src, dst, bytes)
}

/// `transload_copy_list(pieces, count, more)`: crates/streams/src/submit/kernels/copy_list.cu.
const COPY_LIST: HostKernel = HostKernel {
    parameters: &[8, 8, 4],
    accesses: |launch, memory| {
        let of_piece = |(dst, src, bytes)| [KernelAccess::read(src, bytes), KernelAccess::write(dst, bytes)];
        // Without a readable list, the run fails.
        let Ok(listed) = pieces(launch, memory) else { return Vec::new() };
        listed
            .into_iter()
            .flat_map(of_piece)
            .chain([KernelAccess::read(launch.number(0), list_bytes(launch))])
            .collect()
    },
    run: |launch, memory| {
        let listed = pieces(launch, memory)?;
        listed.into_iter().try_for_each(|(dst, src, bytes)| memory.copy(src, dst, bytes))
    },
};

/// Bytes of a piece in the list: destination, source and length, 8 bytes each.
const PIECE: usize = 24;

fn list_bytes(launch: &Launch) -> usize {
    usize::try_from(launch.number(1)).unwrap_or(usize::MAX).saturating_mul(PIECE)
}

/// Reads the list.
fn pieces(launch: &Launch, memory: &KernelMemory<'_>) -> Result<Vec<(u64, u64, usize)>, IllegalAddress> {
    memory.check(launch.number(0), list_bytes(launch))?;
    let mut list = vec![0; list_bytes(launch)];
    memory.read(launch.number(0), &mut list)?;
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte));
    let piece = |piece: &[u8]| {
        let (dst, rest) = piece.split_at(8);
        let (src, bytes) = rest.split_at(8);
        (number(dst), number(src), number(bytes) as usize)
    };
    Ok(list.chunks_exact(PIECE).map(piece).collect())
}

/// `transload_fill(dst, bytes, low, high)`: crates/streams/src/submit/kernels/fill.cu.
const FILL: HostKernel = HostKernel {
    parameters: &[8, 8, 8, 8],
    accesses: |launch, _| vec![KernelAccess::write(launch.number(0), launch.number(1) as usize)],
    run: fill,
};

fn fill(launch: &Launch, memory: &mut KernelMemory<'_>) -> Result<(), IllegalAddress> {
    /// Patterns per write.
    const CHUNK: usize = 4_096;
    let (mut address, mut left) = (launch.number(0), launch.number(1));
    let pattern = [launch.number(2).to_le_bytes(), launch.number(3).to_le_bytes()].concat();
    let chunk = pattern.repeat(CHUNK);
    while left > 0 {
        let piece = left.min(chunk.len() as u64);
        memory.write(address, chunk.get(..piece as usize).unwrap_or(&chunk))?;
        address = address.checked_add(piece).ok_or(IllegalAddress)?;
        left -= piece;
    }
    Ok(())
}

/// `transload_occupy(nanoseconds)`: crates/streams/src/submit/kernels/occupy.cu.
const OCCUPY: HostKernel = HostKernel { parameters: &[8], accesses: |_, _| Vec::new(), run: occupy };

fn occupy(_: &Launch, _: &mut KernelMemory<'_>) -> Result<(), IllegalAddress> {
    Ok(())
}

/// Returns the virtual time in nanoseconds that a launch takes besides its accesses.
pub(crate) fn occupied_ns(kernel: &HostKernel, launch: &Launch) -> u64 {
    if std::ptr::fn_addr_eq(kernel.run, OCCUPY.run) { launch.number(0) } else { 0 }
}

/// `transload_cast(dst, src, elements, from, to)`: crates/streams/src/submit/kernels/cast.cu.
const CAST: HostKernel = HostKernel {
    parameters: &[8, 8, 8, 4, 4],
    accesses: |launch, _| {
        let Some((from, to)) = float_type(launch, 3).zip(float_type(launch, 4)) else { return Vec::new() };
        let bytes = |float: FloatType| (launch.number(2) as usize).saturating_mul(float.size());
        vec![
            KernelAccess::read(launch.number(1), bytes(from)),
            KernelAccess::write(launch.number(0), bytes(to)),
        ]
    },
    run: cast,
};

/// Returns the type with the number that the kernel knows it by.
fn float_type(launch: &Launch, index: usize) -> Option<FloatType> {
    [FloatType::F32, FloatType::F16, FloatType::Bf16].get(launch.number(index) as usize).copied()
}

fn cast(launch: &Launch, memory: &mut KernelMemory<'_>) -> Result<(), IllegalAddress> {
    let (from, to) = float_type(launch, 3).zip(float_type(launch, 4)).ok_or(IllegalAddress)?;
    let (dst, src, elements) = (launch.number(0), launch.number(1), launch.number(2) as usize);
    // On a device, both are an error of the context.
    if !src.is_multiple_of(from.size() as u64) || !dst.is_multiple_of(to.size() as u64) {
        return Err(IllegalAddress);
    }
    let bytes = |float: FloatType| elements.checked_mul(float.size()).ok_or(IllegalAddress);
    memory.check(src, bytes(from)?)?;
    let (mut there, mut here) = (vec![0; bytes(from)?], vec![0; bytes(to)?]);
    memory.read(src, &mut there)?;
    from.cast(&there, to, &mut here);
    memory.write(dst, &here)
}
