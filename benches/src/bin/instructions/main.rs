//! `transload-instructions`: counts user-space instructions, and fails if a call takes more than its limit. Counted are a copy
//! of 64 bytes of host memory by the builder, `manager.copy(..).wait()`, and by `manager.transfer_buffer(..).wait()`; and
//! allocating and dropping 4096 warm bytes of device and of pinned memory, on the software driver.
//!
//! Counts by single steps of the calling thread (`ptrace`), so it needs no performance counter, and the number is the same on
//! a busy machine. Build it with `--release`.

#[cfg(target_os = "linux")]
mod step;

use anyhow::Result;

#[cfg(not(target_os = "linux"))]
fn main() -> Result<()> {
    anyhow::bail!("instructions are counted on Linux only")
}

#[cfg(target_os = "linux")]
fn main() -> Result<()> {
    counting::main()
}

#[cfg(target_os = "linux")]
mod counting {
    use std::{env, hint::black_box};

    use anyhow::{Context as _, Result, bail, ensure};
    use transload_backend_cpu::CpuBackend;
    use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
    use transload_benches::cuda;
    use transload_core::{DeviceId, MemoryKind};
    use transload_transfer::CrossBackendTransferManager;

    use crate::step;

    const BYTES: usize = 64;
    /// Bytes of a buffer that is allocated and dropped.
    const ALLOCATED: usize = 4096;
    /// Calls before the first one that is counted: the first of a path sets it up.
    const WARM_UP: usize = 1000;
    /// Calls that are counted, of which the median is the result: 1 of 64 copies is timed, which takes more.
    const COUNTED: usize = 33;
    /// Instructions that a copy may take on x86-64: 40 more than the 1,149 that `manager.transfer(..).wait()`, which the builder
    /// replaced, took at commit d44459c with Rust 1.95. Some 64 are `memcpy` of the C library, in four calls: another
    /// processor or version may take a few more or less. Counted last: 1,101 by the builder, 1,128 by `transfer_buffer`.
    const COPY_LIMIT: i64 = 1_189;
    /// Instructions that an allocation and its drop may take on x86-64: 3 % more than the 668 at commit 4e1f4f50, of the fastest
    /// record, with Rust 1.95. No driver call is among them. Counted last: 678 of device memory, 675 of pinned.
    const ALLOCATE_LIMIT: i64 = 688;
    /// Each case with its limit.
    const CASES: [(&str, i64); 4] = [
        ("transfer_buffer", COPY_LIMIT),
        ("copy", COPY_LIMIT),
        ("allocate_device", ALLOCATE_LIMIT),
        ("allocate_pinned", ALLOCATE_LIMIT),
    ];

    pub(super) fn main() -> Result<()> {
        match env::args().nth(1) {
            Some(case) => run(&case),
            None => check(),
        }
    }

    fn check() -> Result<()> {
        let empty = median("nothing")?;
        for (case, limit) in CASES {
            let count = median(case)? - empty;
            println!("{case}: {count} instructions, at most {limit}");
            ensure!(
                count <= limit || cfg!(not(target_arch = "x86_64")),
                "`{case}` takes {count} instructions, {limit} are allowed"
            );
        }
        Ok(())
    }

    fn median(case: &str) -> Result<i64> {
        let mut counts =
            step::count(case).with_context(|| format!("counting the instructions of `{case}`"))?;
        ensure!(counts.len() == COUNTED, "`{case}` was counted {} times, not {COUNTED}", counts.len());
        counts.sort_unstable();
        Ok(counts.get(COUNTED / 2).copied().unwrap_or_default() as i64)
    }

    /// Runs one case in the traced process.
    fn run(case: &str) -> Result<()> {
        let manager = CrossBackendTransferManager::new();
        manager.register_backend(CpuBackend::new()?)?;
        let src = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES)?;
        let dst = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES)?;
        match case {
            "nothing" => repeat(|| Ok(())),
            "transfer_buffer" => repeat(|| {
                black_box(manager.transfer_buffer(&src, &dst, 0, 0, BYTES).wait()?);
                Ok(())
            }),
            "copy" => repeat(|| {
                black_box(manager.copy(&src, &dst).wait()?);
                Ok(())
            }),
            "allocate_device" => allocate(&manager, MemoryKind::Device),
            "allocate_pinned" => allocate(&manager, MemoryKind::Pinned),
            other => bail!("`{other}` is not a case; run this program without arguments"),
        }
    }

    fn allocate(manager: &CrossBackendTransferManager, kind: MemoryKind) -> Result<()> {
        let ordinal = cuda::simulate(1)?;
        let config = CudaBackendConfig::default().with_devices([ordinal]);
        manager.register_backend(CudaBackend::open(&config)?)?;
        repeat(|| {
            drop(black_box(manager.allocate_for(DeviceId::Cuda(ordinal), kind, ALLOCATED)?));
            Ok(())
        })
    }

    fn repeat(call: impl Fn() -> Result<()>) -> Result<()> {
        for _ in 0..WARM_UP {
            call()?;
        }
        for _ in 0..COUNTED {
            step::begin();
            let outcome = call();
            step::end();
            outcome?;
        }
        Ok(())
    }
}
