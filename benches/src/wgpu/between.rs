//! Copies between CUDA's memory and a wgpu device's on one GPU, next to those by way of the host.

use std::sync::Arc;

use anyhow::{Result, ensure};
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, RawBuffer, TransferMethod};
use transload_cuda_sys::Driver;
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use super::{Adapter, MIB, microseconds, rate, shared::same_gpu};
use crate::{
    comparison::{Variant, Verify},
    memory::{Memory, POISON},
    row::{Goal, Row},
};

/// Goal: the rate over that by way of the host.
const OVER_STAGED: f64 = 4.0;
/// Bytes from which copies have the goal, and are rates.
const LONG: usize = 16 * MIB;
/// Pieces of a list, and the bytes of each.
const PIECES: (usize, usize) = (1_000, 4 << 10);

/// A manager that knows both devices.
struct Both<'a> {
    adapter: &'a Adapter<'a>,
    manager: CrossBackendTransferManager,
    cuda: DeviceId,
    is_simulated: bool,
}

pub(super) fn rows(adapter: &Adapter<'_>) -> Result<Vec<Row>> {
    let both = match Both::open(adapter) {
        Err(error) if is_unsupported(&error) => {
            eprintln!("no rows of copies between CUDA and {}: {error:#}", adapter.name());
            return Ok(Vec::new());
        }
        opened => opened?,
    };
    let mut rows = Vec::new();
    for is_up in [true, false] {
        for bytes in [4 << 10, MIB, LONG, adapter.large()] {
            if bytes <= adapter.large() {
                rows.extend(both.copies(bytes, is_up)?);
            }
        }
        rows.extend(both.lists(is_up)?);
    }
    both.manager.drain()?;
    for (name, counts) in both.manager.resource_counts().iter().filter(|(name, _)| *name == "cuda") {
        ensure!(counts.is_empty(), "still allocated in the {name} backend: {counts}");
    }
    Ok(rows)
}

pub(super) fn is_unsupported(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::Unsupported)
}

impl<'a> Both<'a> {
    /// # Errors
    /// [`ErrorKind::Unsupported`] if CUDA does not show the device, or the drivers share no memory; the drivers'.
    fn open(adapter: &'a Adapter<'a>) -> Result<Self> {
        let ordinal = same_gpu(adapter)?;
        let cuda = CudaBackend::open(&CudaBackendConfig::default().with_devices([ordinal]))?;
        let memory = Arc::clone(cuda.memory(ordinal)?);
        adapter.backend.connect_cuda(cuda.device(ordinal)?, move || Ok(Arc::clone(&memory)))?;
        let manager = CrossBackendTransferManager::builder().registration(false).build();
        manager.register_backend(CpuBackend::new()?)?;
        manager.register_backend(cuda)?;
        manager.register_backend(Arc::clone(adapter.backend) as _)?;
        let is_simulated = Driver::get()?.is_simulated();
        Ok(Self { adapter, manager, cuda: DeviceId::Cuda(ordinal), is_simulated })
    }

    /// Returns a source with contents, and a destination.
    fn ends(&self, content: &[u8], is_up: bool) -> Result<[RawBuffer; 2]> {
        let device = self.adapter.info.id;
        let [from, to] = if is_up { [self.cuda, device] } else { [device, self.cuda] };
        let [src, dst] =
            [from, to].map(|device| self.manager.allocate(device, MemoryKind::Device, content.len()));
        let (src, dst) = (src?, dst?);
        self.write(content, &src)?;
        Ok([src, dst])
    }

    fn write(&self, content: &[u8], dst: &RawBuffer) -> Result<()> {
        let host = self.manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, content.len())?;
        Memory::Ours(host.clone()).write(0, content)?;
        self.manager.copy(&host, dst).wait()?;
        Ok(())
    }

    fn compare(
        &self,
        id: &str,
        unit: (&'static str, usize),
        is_up: bool,
        variants: Vec<Variant<'_>>,
    ) -> Result<Vec<Row>> {
        let (way, what) =
            if is_up { ("from-cuda", "from CUDA's memory") } else { ("to-cuda", "to CUDA's memory") };
        let what = format!("{what}, of the same GPU");
        let rows = self.adapter.compare((&format!("{way}{id}"), &what), unit, 30, 1, variants)?;
        // Without goals, if CUDA's part is played.
        Ok(rows.into_iter().map(|row| row.clone().obtained(self.is_simulated, row.verified)).collect())
    }

    fn copies(&self, bytes: usize, is_up: bool) -> Result<Vec<Row>> {
        let content = self.adapter.random(bytes);
        let [src, dst] = self.ends(&content, is_up)?;
        let arrived = Arrived(self, &dst, &content);
        let chosen = self.manager.copy(&src, &dst).plan()?.method;
        let run = |method: Option<TransferMethod>| -> Result<()> {
            let copy = self.manager.copy(&src, &dst);
            if let Some(method) = method { copy.method(method) } else { copy }.wait()?;
            Ok(())
        };
        let run = &run;
        let timed = |method| -> Box<dyn FnMut() -> Result<f64> + '_> {
            let once = move || run(method);
            if bytes < LONG { Box::new(microseconds(once)) } else { Box::new(rate(bytes, once)) }
        };
        let variant =
            |name: &str, what: &str, method| Variant::new(name, what, timed(method)).verified_by(&arrived);
        let mut auto = variant("auto", &format!("copy().wait(), {chosen}"), None);
        if bytes >= LONG {
            auto = auto.goal(Goal::RatioAtLeast(OVER_STAGED));
        }
        let variants = vec![
            variant("staged", "HostStaged, wait()", Some(TransferMethod::HostStaged)).by_library(),
            variant("direct", "DirectCopy, wait()", Some(TransferMethod::DirectCopy)),
            auto,
        ];
        let unit = if bytes < LONG { "us" } else { "GB/s" };
        self.compare(&format!("/{bytes}"), (unit, bytes), is_up, variants)
    }

    fn lists(&self, is_up: bool) -> Result<Vec<Row>> {
        let (count, bytes) = PIECES;
        let content = self.adapter.random(count * bytes);
        let [src, dst] = self.ends(&content, is_up)?;
        let piece = |of: &RawBuffer, index: usize| of.slice(index * bytes..(index + 1) * bytes);
        let pairs = (0..count).map(|index| Ok((piece(&src, index)?, piece(&dst, index)?)));
        let pairs = pairs.collect::<Result<Vec<_>>>()?;
        let arrived = Arrived(self, &dst, &content);
        let run = |method: Option<TransferMethod>| -> Result<()> {
            let copy = self.manager.copy_many(&pairs);
            if let Some(method) = method { copy.options(TransferOptions::new().only(method)) } else { copy }
                .wait()?;
            Ok(())
        };
        let run = &run;
        let variant = |name: &str, what: &str, method| {
            Variant::new(name, what, microseconds(move || run(method))).verified_by(&arrived)
        };
        let variants = vec![
            variant("staged", "HostStaged, wait()", Some(TransferMethod::HostStaged)).by_library(),
            variant("auto", "copy_many().wait()", None),
        ];
        self.compare(&format!("-{count}/{bytes}"), ("us", count * bytes), is_up, variants)
    }
}

/// A destination, and what it has to hold.
struct Arrived<'a>(&'a Both<'a>, &'a RawBuffer, &'a [u8]);

impl Verify for Arrived<'_> {
    fn poison(&self) -> Result<()> {
        let Self(both, buffer, expected) = self;
        both.write(&vec![POISON; expected.len()], buffer)
    }

    fn check(&self) -> Result<()> {
        let Self(both, buffer, expected) = self;
        let back = both.manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, expected.len())?;
        both.manager.copy(buffer, &back).wait()?;
        Memory::Ours(back).compare(0, expected)
    }
}
