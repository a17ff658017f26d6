//! Rows of Vulkan devices: copies between the host and a device, small ones and lists next to plain wgpu on the same device, and next to
//! Vulkan by hand; and memory that CUDA and Vulkan share.

#[cfg(target_os = "linux")]
mod between;
mod checked;
mod copies;
#[cfg(all(test, target_os = "linux"))]
#[path = "../../../crates/backend-wgpu/tests/it/exported.rs"]
mod exported;
mod pieces;
mod pinned;
mod plain;
#[cfg(target_os = "linux")]
mod probe;
mod raw;
#[cfg(target_os = "linux")]
mod shared;
mod small;
mod urgent;
mod within;

use std::{sync::Arc, time::Instant};

use anyhow::{Context as _, Result};
use transload_backend_cpu::CpuBackend;
use transload_backend_wgpu::{WgpuBackend, WgpuBackendConfig, wgpu};
use transload_core::{DeviceId, DeviceInfo, ErrorKind, MemoryKind, RawBuffer};
use transload_transfer::CrossBackendTransferManager;

use self::plain::Plain;
use crate::{
    comparison::{Comparison, Variant},
    content::Content,
    memory::Memory,
    options::Options,
    row::Row,
};

/// Prefix of the rows' ids.
const GROUP: &str = "wgpu";
const MIB: usize = 1 << 20;

/// Name and function of a part.
type Part = (&'static str, fn(&Adapter<'_>) -> Result<Vec<Row>>);

/// Every part, in order.
const PARTS: &[Part] = &[
    ("pageable-up", |adapter| adapter.of_sizes(copies::upload)),
    ("pageable-down", |adapter| adapter.of_sizes(copies::download)),
    ("pinned", pinned::rows),
    ("within", within::rows),
    ("small", small::rows),
    ("pieces", pieces::rows),
    ("allocate", small::allocating),
    ("urgent", urgent::rows),
    #[cfg(target_os = "linux")]
    ("shared", shared::rows),
    #[cfg(target_os = "linux")]
    ("between", between::rows),
    #[cfg(target_os = "linux")]
    ("probe", probe::rows),
];

/// A device of the backend, and the same one under plain wgpu.
struct Adapter<'a> {
    options: &'a Options,
    backend: &'a Arc<WgpuBackend>,
    manager: &'a CrossBackendTransferManager,
    info: DeviceInfo,
    plain: Plain,
}

/// What was measured.
pub(crate) struct Measured {
    pub(crate) rows: Vec<Row>,
    /// The devices, for people.
    pub(crate) devices: Vec<String>,
    pub(crate) failures: Vec<String>,
}

/// Measures all parts on each Vulkan device. Without one it prints why. A part that fails loses its rows only.
///
/// # Errors
/// If a device cannot be opened; without a device if the options demand hardware.
pub(crate) fn rows(
    options: &Options,
    manager: &CrossBackendTransferManager,
    begin: impl Fn(&str),
) -> Result<Measured> {
    let mut measured = Measured { rows: Vec::new(), devices: Vec::new(), failures: Vec::new() };
    let config = WgpuBackendConfig::default().with_apis(wgpu::Backends::VULKAN);
    let config = if options.software_adapters { config.with_software_adapters() } else { config };
    let backend = match WgpuBackend::open(&config) {
        Err(error)
            if matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice) && !options.hardware =>
        {
            eprintln!("no rows of Vulkan devices: {error}");
            return Ok(measured);
        }
        opened => opened?,
    };
    manager.register_backend(CpuBackend::new()?)?;
    manager.register_backend(Arc::clone(&backend) as _)?;
    for info in transload_core::Backend::devices(&*backend) {
        let plain = Plain::open(&info).with_context(|| format!("plain wgpu on {}", info.id))?;
        let adapter = Adapter { options, backend: &backend, manager, info, plain };
        measured.devices.push(format!("{}, {}", adapter.name(), adapter.info.driver));
        for (name, part) in PARTS.iter().filter(|(name, _)| options.wants_part(name)) {
            begin(&format!("{GROUP}, {name}, {}", adapter.info.id));
            match part(&adapter) {
                Ok(mut more) => {
                    // Short runs are too noisy.
                    for row in more.iter_mut().filter(|_| options.quick) {
                        (row.goal, row.met) = (None, None);
                    }
                    measured.rows.extend(more.into_iter().map(|row| row.of_part(name)));
                }
                Err(error) => {
                    measured.failures.push(format!("{GROUP}, {name}, {}: {error:#}", adapter.info.id));
                }
            }
        }
    }
    Ok(measured)
}

impl Adapter<'_> {
    /// Returns the device's name, which says whether the processor plays it.
    fn name(&self) -> String {
        let what = if self.plain.is_software { " (a software adapter, no GPU)" } else { "" };
        format!("{} {}{what}", self.info.id, self.info.name)
    }

    /// Returns one of two values, for a GPU or for a software adapter.
    fn either<T>(&self, gpu: T, software: T) -> T {
        if self.plain.is_software { software } else { gpu }
    }

    /// Returns whether the device's memory is the host's, and mapped for it.
    fn is_mapped(&self) -> bool {
        self.info.kinds.contains(&MemoryKind::Mapped)
    }

    fn repetitions(&self, good: usize) -> usize {
        self.options.repetitions.map_or(good, |given| given as usize)
    }

    /// Returns the sizes of large copies: all, only those of which several fit into the device's memory, or one that takes no time.
    fn sizes(&self) -> Vec<usize> {
        if self.options.quick {
            return vec![4 * MIB];
        }
        let sizes: &[usize] = self.either(&[16, 64, 256, 1024], &[16, 64, 256]);
        let eighth = self.info.total_memory.map_or(u64::MAX, |bytes| bytes / 8);
        let most = self.plain.device.limits().max_buffer_size.min(eighth);
        sizes.iter().map(|mebibytes| mebibytes * MIB).filter(|bytes| *bytes as u64 <= most).collect()
    }

    fn of_sizes(&self, rows: fn(&Self, usize) -> Result<Vec<Row>>) -> Result<Vec<Row>> {
        let each = self.sizes().into_iter().map(|bytes| rows(self, bytes)).collect::<Result<Vec<_>>>();
        Ok(each?.concat())
    }

    /// Returns how often copies of so many bytes are measured.
    fn times(bytes: usize) -> usize {
        if bytes > 256 * MIB { 20 } else { 30 }
    }

    /// Returns the size of a copy that is measured at one size only.
    fn large(&self) -> usize {
        self.sizes().into_iter().filter(|bytes| *bytes <= 256 * MIB).max().unwrap_or(MIB)
    }

    /// Allocates pageable memory, memory of the device, or host memory for it.
    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        let device = if kind == MemoryKind::Pageable { DeviceId::Cpu } else { self.info.id };
        Ok(self.manager.allocate_for(device, kind, bytes)?)
    }

    /// Allocates host memory with contents.
    fn filled(&self, kind: MemoryKind, content: &[u8]) -> Result<RawBuffer> {
        let buffer = self.allocate(kind, content.len())?;
        Memory::Ours(buffer.clone()).write(0, content)?;
        Ok(buffer)
    }

    fn copy(&self, src: &RawBuffer, dst: &RawBuffer) -> Result<()> {
        self.manager.copy(src, dst).wait()?;
        Ok(())
    }

    /// Returns random bytes.
    fn random(&self, bytes: usize) -> Vec<u8> {
        let mut content = Content::new(bytes, self.options.seed);
        let start = content.draw();
        content.part(start, bytes).to_vec()
    }

    /// Compares variants, with the fastest of the first `forms` as the reference.
    fn compare(
        &self,
        (id, what): (&str, &str),
        (unit, bytes): (&'static str, usize),
        repetitions: usize,
        forms: usize,
        variants: Vec<Variant<'_>>,
    ) -> Result<Vec<Row>> {
        let ordinal = self.info.id.ordinal();
        Comparison {
            id: format!("{ordinal}{}/{id}", self.either("", "-software")),
            what: format!("{}: {what}", self.name()),
            unit,
            bytes: bytes as u64,
            repetitions: self.repetitions(repetitions),
        }
        .rows_over_best(forms, GROUP, false, variants)
    }
}

/// Like [`microseconds`], but returns GB/s.
fn rate(bytes: usize, run: impl FnMut() -> Result<()>) -> impl FnMut() -> Result<f64> {
    let mut timed = microseconds(run);
    move || Ok(bytes as f64 / timed()?.max(1e-3) / 1e3)
}

/// Returns what runs twice and returns the µs of the second run. Variants run in turns: an H200 takes 200 µs to change from the context of
/// one device of Vulkan to that of another, or of CUDA, and other variants leave memory to free and other bytes in the caches.
fn microseconds(mut run: impl FnMut() -> Result<()>) -> impl FnMut() -> Result<f64> {
    move || {
        run()?;
        let begun = Instant::now();
        run()?;
        Ok(begun.elapsed().as_secs_f64() * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeSet};

    use clap::Parser as _;

    use super::*;

    /// Lets CUDA's software driver play the software adapter, which is the last device.
    #[cfg(target_os = "linux")]
    fn play_cuda() {
        use transload_core::Backend as _;

        transload_cuda_sim::install().unwrap();
        let config = WgpuBackendConfig::default().with_apis(wgpu::Backends::VULKAN).with_software_adapters();
        let Ok(backend) = WgpuBackend::open(&config) else { return };
        let uuid = backend.devices().last().and_then(|info| info.uuid);
        let builder = transload_cuda_sim::SimDevice::builder().total_memory(4 << 30).uuid(uuid);
        // SAFETY: mappings stay.
        let _played = unsafe { builder.external_memory(exported::open) }.build();
    }

    #[test]
    fn every_part_runs_on_a_software_adapter() {
        #[cfg(target_os = "linux")]
        play_cuda();
        let words = ["transload-bench", "--quick", "--repetitions", "2", "--software-adapters"];
        let options = Options::parse_from(words);
        let manager = CrossBackendTransferManager::builder().registration(false).build();
        let begun = Cell::new(0);
        let measured = rows(&options, &manager, |_| begun.set(begun.get() + 1)).unwrap();
        if measured.devices.is_empty() {
            assert!(std::env::var_os("TRANSLOAD_TEST_NEEDS_VULKAN").is_none(), "no Vulkan adapter");
            println!("skipped: no Vulkan adapter");
            return;
        }
        assert_eq!(measured.failures, Vec::<String>::new());
        assert_eq!(begun.get(), PARTS.len() * measured.devices.len());
        #[cfg(target_os = "linux")]
        if measured.devices.iter().any(|name| name.contains("software adapter")) {
            assert!(measured.rows.iter().any(|row| row.simulated), "memory is shared with CUDA");
        }
        let ids: BTreeSet<&str> = measured.rows.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(ids.len(), measured.rows.len(), "ids are unique");
        for row in &measured.rows {
            assert!(row.id.is_ascii() && row.id.starts_with("wgpu/"), "{}", row.id);
            assert_eq!((&row.goal, row.met), (&None, None), "{}: a quick run has no goals", row.id);
            assert_eq!(row.id.contains("-software/"), row.path.contains("software adapter"), "{}", row.id);
            assert!(row.verified || row.bytes == 0, "{} moved bytes that were not verified", row.id);
        }
        manager.drain().unwrap();
        for (name, counts) in manager.resource_counts() {
            assert!(counts.is_empty(), "still allocated in the {name} backend: {counts}");
        }
    }
}
