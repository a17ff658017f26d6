//! A transfer of High priority: while gigabytes of Low priority are queued, and while kernels fill the device.

use std::{os::raw::c_void, time::Instant};

use anyhow::{Context as _, Result};
use transload_core::{MemoryKind, RawBuffer, StreamPriority};
use transload_cuda_sys::attribute;
use transload_transfer::TransferOptions;

use super::Library;
use crate::{
    comparison::{Comparison, Fixture, Variant, Verify},
    content::Content,
    memory::Memory,
    reference::{RawEvent, RawKernel, RawQueue},
    row::{Goal, Row},
};

const BYTES: usize = 1 << 20;
/// Bytes of one Low transfer; `LARGE_ONES` are submitted first.
const LARGE: usize = 256 << 20;
const LARGE_ONES: usize = 16;
/// Goal beside Low transfers, in microseconds: by kernel.
const BESIDE_LOW: f64 = 95.0;
/// Goal beside compute, in microseconds: by engine.
const BESIDE_COMPUTE: f64 = 40.0;
/// The same for staged memory beside Low transfers, as a time relative to an idle device.
const STAGED: f64 = 4.0;
const KINDS: [MemoryKind; 3] = [MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Pageable];
/// Threads of a block of compute: two such blocks fill a multiprocessor.
const COMPUTE_THREADS: u32 = 1024;
/// How often a kernel of compute fills the device, and what a block of it takes: 5 ms in all.
const WAVES: u32 = 100;
const WAVE_NANOSECONDS: u64 = 50_000;
const COMPUTE_KERNELS: usize = 2;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let library = Library::new(fixture)?;
    let (bytes, large) = (fixture.bytes(BYTES), fixture.bytes(LARGE));
    let low = (library.allocate(MemoryKind::Pinned, large)?, library.allocate(MemoryKind::Device, large)?);
    if let Ok(mut view) = low.0.write() {
        view.fill(0x11);
    }
    let raw = Raw::new(fixture)?;
    let mut rows = Vec::new();
    for kind in KINDS {
        rows.extend(of_kind(fixture, (&library, &raw), kind, bytes, &low)?);
    }
    drop(low);
    library.finish()?;
    Ok(rows)
}

fn of_kind(
    fixture: &Fixture<'_>,
    (library, raw): (&Library, &Raw),
    kind: MemoryKind,
    bytes: usize,
    low: &(RawBuffer, RawBuffer),
) -> Result<Vec<Row>> {
    let end = End::new(library, kind, bytes)?;
    let priority = |priority| TransferOptions::new().priority(priority);
    let (high, least) = (priority(StreamPriority::High), priority(StreamPriority::Low));
    library.manager.prepare(end.src.place(), end.dst.place(), &high)?;
    // Each way copies once before it is timed: after milliseconds of waiting nothing is left in the processor's caches, which takes 60 us
    // more (H200) whatever else is queued.
    let urgent = || {
        let begun = Instant::now();
        library.manager.copy(&end.src, &end.dst).options(high).wait()?;
        Ok(us(begun))
    };
    let is_staged = kind == MemoryKind::Pageable;
    let goal = |most| (!is_staged).then_some(Goal::AtMost(most));
    let mut variants = vec![
        Variant::new("idle", "High on an idle device", || {
            urgent()?;
            urgent()
        })
        .by_library()
        .verified_by(&end),
        Variant::new("beside-low", "High beside 4 GiB of Low", || {
            urgent()?;
            for _ in 0..LARGE_ONES {
                drop(library.manager.copy(&low.0, &low.1).options(least).submit());
            }
            let took = urgent()?;
            low.1.wait_idle()?;
            Ok(took)
        })
        .goal(goal(BESIDE_LOW).unwrap_or(Goal::RatioAtMost(STAGED)))
        .verified_by(&end),
    ];
    let beside_compute = Variant::new("beside-compute", "High beside kernels that fill the device", || {
        urgent()?;
        raw.compute(fixture)?;
        let took = urgent()?;
        raw.slow.finish()?;
        Ok(took)
    });
    variants.push(Variant { goal: goal(BESIDE_COMPUTE), ..beside_compute }.verified_by(&end));
    if kind == MemoryKind::Pinned {
        variants.extend(raw.variants(fixture, &end, low)?);
    }
    let comparison = Comparison {
        id: format!("urgent/{kind}/{bytes}"),
        what: format!("an upload of {bytes} bytes from {kind} memory with High priority"),
        unit: "us",
        bytes: bytes as u64,
        repetitions: fixture.repetitions(30),
    };
    comparison.rows(fixture, variants)
}

fn us(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6
}

/// The raw driver's streams, and its copy kernel.
struct Raw {
    slow: RawQueue,
    quick: RawQueue,
    event: RawEvent,
    kernel: RawKernel,
    multiprocessors: u32,
}

impl Raw {
    fn new(fixture: &Fixture<'_>) -> Result<Self> {
        let (lowest, highest) = fixture.context()?.stream_priority_range()?;
        let ptx = include_str!("../../../crates/streams/src/submit/kernels/copy.ptx");
        let multiprocessors = fixture.device.driver().attribute(attribute::MULTIPROCESSOR_COUNT)?;
        Ok(Self {
            slow: RawQueue::new(lowest)?,
            quick: RawQueue::new(highest)?,
            event: RawEvent::ordering()?,
            kernel: RawKernel::load(ptx, c"transload_copy")?,
            multiprocessors: u32::try_from(multiprocessors)?.max(1),
        })
    }

    /// Fills the device with kernels.
    fn compute(&self, fixture: &Fixture<'_>) -> Result<()> {
        let blocks = self.multiprocessors * 2 * WAVES;
        (0..COMPUTE_KERNELS).try_for_each(|_| {
            // SAFETY: the stream is of the module's context.
            unsafe { fixture.spin.launch(self.slow.raw(), blocks, COMPUTE_THREADS, WAVE_NANOSECONDS) }
        })
    }

    /// The urgent copy by engine and by kernel, where each is at its best and at its worst.
    fn variants<'a>(
        &'a self,
        fixture: &'a Fixture<'_>,
        end: &'a End,
        low: &(RawBuffer, RawBuffer),
    ) -> Result<Vec<Variant<'a>>> {
        let [urgent, large] = [Copy::new(&end.src, &end.dst)?, Copy::new(&low.0, &low.1)?];
        let by_engine = move || {
            let begun = Instant::now();
            urgent.enqueue(&self.quick)?;
            self.quick.finish()?;
            Ok(us(begun))
        };
        let by_kernel = move || {
            let begun = Instant::now();
            urgent.launch(&self.kernel, &self.quick, self.multiprocessors * 2)?;
            self.quick.finish()?;
            Ok(us(begun))
        };
        type Once<'a> = Box<dyn FnMut() -> Result<f64> + 'a>;
        let beside_low = |mut copy: Once<'a>| {
            move || {
                copy()?;
                (0..LARGE_ONES).try_for_each(|_| large.enqueue(&self.slow))?;
                let took = copy()?;
                self.slow.finish()?;
                Ok(took)
            }
        };
        let by_event = move || {
            let begun = Instant::now();
            urgent.enqueue(&self.quick)?;
            self.quick.record(&self.event)?;
            self.event.finish()?;
            Ok(us(begun))
        };
        let beside_compute = |mut copy: Once<'a>| {
            move || {
                copy()?;
                self.compute(fixture)?;
                let took = copy()?;
                self.slow.finish()?;
                Ok(took)
            }
        };
        let variants = vec![
            Variant::new("raw-idle", "raw driver, copy engine on an idle device", move || {
                by_engine()?;
                by_engine()
            }),
            Variant::new(
                "raw-beside-low",
                "raw driver, most urgent stream beside 4 GiB on the least",
                beside_low(Box::new(by_engine)),
            ),
            Variant::new(
                "raw-kernel-beside-low",
                "raw driver, copy kernel on the most urgent stream beside 4 GiB on the least",
                beside_low(Box::new(by_kernel)),
            ),
            Variant::new(
                "raw-beside-compute",
                "raw driver, copy engine beside kernels that fill the device",
                beside_compute(Box::new(by_engine)),
            ),
            Variant::new(
                "raw-event-beside-compute",
                "the same, waited for by an event",
                beside_compute(Box::new(by_event)),
            ),
        ];
        Ok(variants.into_iter().map(|variant| variant.verified_by(end)).collect())
    }
}

/// A copy from pinned memory to the device, by hand. Its buffers live on while the rows are measured, and the variants take turns.
#[derive(Clone, Copy)]
struct Copy {
    from: *const c_void,
    mapped: u64,
    to: u64,
    bytes: usize,
}

impl Copy {
    fn new(src: &RawBuffer, dst: &RawBuffer) -> Result<Self> {
        Ok(Self {
            from: src.host_address().context("pinned memory without an address")?.as_ptr().cast(),
            mapped: src.device_address().context("pinned memory that the device does not see")?,
            to: dst.device_address().context("device memory without an address")?,
            bytes: src.len(),
        })
    }

    fn enqueue(&self, queue: &RawQueue) -> Result<()> {
        // SAFETY: both buffers have so many bytes; see `Copy`.
        unsafe { queue.copy_up(self.to, self.from, self.bytes) }
    }

    fn launch(&self, kernel: &RawKernel, queue: &RawQueue, blocks: u32) -> Result<()> {
        const THREADS: u32 = 256;
        let words = [self.to, self.mapped, self.bytes as u64];
        let mut parameters = words.each_ref().map(|word| (&raw const *word).cast_mut().cast());
        // SAFETY: the kernel takes destination, source and length of 8 bytes each; see `Copy` for the memory.
        unsafe { kernel.launch(queue.raw(), (blocks, THREADS), &mut parameters) }
    }
}

/// Source and destination of one transfer to the device.
pub(super) struct End {
    pub(super) src: RawBuffer,
    pub(super) dst: RawBuffer,
    content: Vec<u8>,
}

impl End {
    pub(super) fn new(library: &Library, kind: MemoryKind, bytes: usize) -> Result<Self> {
        let (src, dst) = (library.allocate(kind, bytes)?, library.allocate(MemoryKind::Device, bytes)?);
        let mut content = Content::new(bytes, 0x0431);
        let start = content.draw();
        let content = content.part(start, bytes).to_vec();
        Memory::Ours(src.clone()).write(0, &content).context("the source")?;
        Ok(Self { src, dst, content })
    }
}

impl Verify for End {
    fn poison(&self) -> Result<()> {
        Memory::Ours(self.dst.clone()).poison()
    }

    fn check(&self) -> Result<()> {
        Memory::Ours(self.dst.clone()).compare(0, &self.content)
    }
}
