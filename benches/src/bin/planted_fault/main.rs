//! `transload-planted-fault`: runs correct transfers and launches, or one deliberate fault, to test a memory checker.
//!
//! That a checker reports nothing for `--fault none` means something only if it reports the other faults. Faults in freed
//! blocks are invisible to a checker, since the memory stays allocated; the allocator must refuse them (`--fault free`).

#[cfg(any(target_os = "linux", windows))]
mod streams;

use anyhow::Result;
use clap::{Parser, ValueEnum};

/// The fault of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// Nothing: every path verified, and leases, blocks and launches.
    None,
    /// A kernel stores one word after an allocation.
    Kernel,
    /// A copy is longer than its destination.
    Copy,
    /// A kernel stores after a segment of the allocator.
    Segment,
    /// Blocks are freed on another stream, twice, and without having been allocated.
    Free,
}

/// Correct transfers or one deliberate fault, to test a memory checker.
#[derive(Parser)]
#[command(name = "transload-planted-fault", version)]
struct Options {
    /// What is wrong.
    #[arg(long, value_enum)]
    fault: Fault,
    /// The software driver in place of the machine's.
    #[arg(long)]
    simulate: bool,
}

#[cfg(not(any(target_os = "linux", windows)))]
fn main() -> Result<()> {
    let Options { fault, simulate } = Options::parse();
    anyhow::bail!("there is no CUDA on this platform (fault {fault:?}, simulate {simulate})")
}

#[cfg(any(target_os = "linux", windows))]
fn main() -> Result<()> {
    let options = Options::parse();
    let ordinal = if options.simulate { transload_benches::cuda::simulate(1)? } else { 0 };
    match options.fault {
        Fault::None => planted::nothing(ordinal),
        Fault::Kernel => planted::kernel(ordinal),
        Fault::Copy => planted::copy(ordinal),
        Fault::Segment => streams::segment(ordinal),
        Fault::Free => streams::free(ordinal),
    }
}

#[cfg(any(target_os = "linux", windows))]
mod planted {
    use std::{ffi::CString, os::raw::c_void, ptr};

    use anyhow::{Result, ensure};
    use transload_benches::{
        address::Address,
        case::{Case, Side, Testbed as _},
        content::Content,
        cuda::Session,
        first_use,
        grid::{self, Point},
        raw_memory::RawMemory,
    };
    use transload_core::MemoryKind;
    use transload_cuda_sys::{check, ffi};

    const PTX: &str = include_str!("../../ptx/out_of_bounds.ptx");
    /// Bytes of the allocation that is left behind. A checker tells single bytes apart.
    const BYTES: usize = 256;

    /// Every path with a device, at a small, a large and an odd size: both by the library and by hand.
    pub(super) fn nothing(ordinal: u32) -> Result<()> {
        let (manager, _rows) = first_use::start(ordinal, 1 << 20)?;
        let session = Session::open(ordinal)?;
        let odd = Point { bytes: (1 << 20) + 3, src_offset: 13, dst_offset: 7 };
        let mut content = Content::new(odd.bytes, 7);
        let mut transfers = 0;
        for path in grid::cuda_paths(session.device()) {
            for point in [Point::aligned(1), Point::aligned(4096), odd, Point::aligned(1 << 20)] {
                let mut case = Case::new(&manager, &session, path, point)?;
                for side in [Side::Ours, Side::Reference] {
                    let start = content.draw();
                    case.prepare(side, &content, start)?;
                    match side {
                        Side::Ours => {
                            case.ends.submit().wait()?;
                        }
                        Side::Reference => {
                            case.reference.submit()?;
                            case.reference.finish()?;
                        }
                    }
                    case.check(side, &content)?;
                    transfers += 1;
                }
            }
        }
        manager.drain()?;
        for (name, counts) in manager.resource_counts() {
            ensure!(counts.is_empty(), "still allocated in the {name} backend: {counts}");
        }
        let launches = crate::streams::nothing(ordinal)?;
        println!(
            "{transfers} correct transfers and {launches} launches, every byte compared{}",
            note(&session)
        );
        Ok(())
    }

    /// A kernel stores one word behind an allocation of 256 bytes. Ends with an error where the device notices by itself.
    pub(super) fn kernel(ordinal: u32) -> Result<()> {
        let session = Session::open(ordinal)?;
        let memory = RawMemory::new(MemoryKind::Device, BYTES)?;
        let Address::Device(mut address) = memory.address() else { return Ok(()) };
        let (image, name) = (CString::new(PTX)?, CString::new("store_word")?);
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        let (mut offset, mut value) = (BYTES as u64, 0xDEAD_BEEF_u32);
        let mut parameters: [*mut c_void; 3] =
            [(&raw mut address).cast(), (&raw mut offset).cast(), (&raw mut value).cast()];
        // SAFETY: image and name are terminated texts, the out pointers valid, the parameters those of the kernel's
        // declaration. The store behind the allocation is the fault that this program is for.
        unsafe {
            check("cuModuleLoadData", ffi::cuModuleLoadData(&mut module, image.as_ptr().cast()))?;
            check("cuModuleGetFunction", ffi::cuModuleGetFunction(&mut function, module, name.as_ptr()))?;
            check(
                "cuLaunchKernel",
                ffi::cuLaunchKernel(
                    function,
                    1,
                    1,
                    1,
                    1,
                    1,
                    1,
                    0,
                    ptr::null_mut(),
                    parameters.as_mut_ptr(),
                    ptr::null_mut(),
                ),
            )?;
            check("cuCtxSynchronize", ffi::cuCtxSynchronize())?;
        }
        println!("planted: a kernel stored 4 bytes behind an allocation of {BYTES}{}", note(&session));
        Ok(())
    }

    /// A copy of 512 bytes into an allocation of 256.
    pub(super) fn copy(ordinal: u32) -> Result<()> {
        let session = Session::open(ordinal)?;
        let (src, dst) =
            (RawMemory::new(MemoryKind::Pinned, 2 * BYTES)?, RawMemory::new(MemoryKind::Device, BYTES)?);
        let (Address::Host(src), Address::Device(dst)) = (src.address(), dst.address()) else {
            return Ok(());
        };
        // SAFETY: the source has all bytes. That the destination has half of them is the fault that this program is for:
        // the driver's own granule is 512 bytes, so nothing else is harmed.
        unsafe {
            src.write_bytes(1, 2 * BYTES);
            let code = ffi::cuMemcpyHtoDAsync_v2(dst, src.as_ptr().cast(), 2 * BYTES, ptr::null_mut());
            check("cuMemcpyHtoDAsync", code)?;
            check("cuCtxSynchronize", ffi::cuCtxSynchronize())?;
        }
        println!("planted: a copy of {} bytes into an allocation of {BYTES}{}", 2 * BYTES, note(&session));
        Ok(())
    }

    fn note(session: &Session) -> &'static str {
        if session.is_simulated() { " (simulated)" } else { "" }
    }
}
