//! What a small blocking download costs, by each way to learn that it is done: from before it is enqueued until its bytes are there.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use transload_core::{MemoryKind, RawBuffer};
use transload_cuda_sys::{Driver, check, ffi};

use super::Library;
use crate::{
    comparison::{Comparison, Fixture, Variant, Verify},
    content::Content,
    memory::Memory,
    reference::{RawEvent, RawQueue},
    row::{Goal, Row},
};

const SIZES: [usize; 3] = [64, 4 << 10, 64 << 10];

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let library = Library::new(fixture)?;
    let mut rows = Vec::new();
    for bytes in SIZES {
        rows.extend(of_size(fixture, &library, bytes)?);
    }
    library.finish()?;
    Ok(rows)
}

fn of_size(fixture: &Fixture<'_>, library: &Library, bytes: usize) -> Result<Vec<Row>> {
    let pair = Download::new(library, bytes)?;
    let (queue, event, word) = (RawQueue::new(0)?, RawEvent::ordering()?, Word::new(library)?);
    let timed = |finish: &dyn Fn() -> Result<()>| {
        let begun = Instant::now();
        // SAFETY: both buffers live on with so many bytes, and the variants take turns.
        unsafe { queue.copy_down(pair.to.as_ptr().cast(), pair.from, bytes) }?;
        finish()?;
        Ok(begun.elapsed().as_secs_f64() * 1e6)
    };
    let by_event = || {
        queue.record(&event)?;
        event.finish()
    };
    let mut variants = vec![
        Variant::new("raw", "raw driver, cuStreamSynchronize", || timed(&|| queue.finish())),
        Variant::new("wait", "copy().wait()", || {
            let begun = Instant::now();
            library.manager.copy(&pair.device, &pair.host).wait()?;
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        })
        .goal(Goal::RatioAtMost(1.0)),
        Variant::new("raw-event", "raw driver, cuEventRecord and cuEventSynchronize", || timed(&by_event)),
    ];
    if Driver::get()?.has(c"cuStreamWriteValue32_v2") {
        let by_word =
            Variant::new("raw-word", "raw driver, cuStreamWriteValue32 and a look at the word", || {
                timed(&|| word.write_and_wait(&queue))
            });
        variants.push(by_word);
    }
    let comparison = Comparison {
        id: format!("download/{bytes}"),
        what: format!("a download of {bytes} bytes to pinned memory and its completion"),
        unit: "us",
        bytes: bytes as u64,
        repetitions: fixture.repetitions(1000),
    };
    comparison.rows(fixture, variants.into_iter().map(|variant| variant.verified_by(&pair)).collect())
}

/// A word in mapped memory, which a stream writes and the host reads.
struct Word(RawBuffer);

impl Word {
    fn new(library: &Library) -> Result<Self> {
        library.allocate(MemoryKind::Mapped, size_of::<u32>()).map(Self)
    }

    /// Waits until the stream has done what was enqueued so far. A word that is late may never come: the work before it failed, or a
    /// software driver waits for a call.
    fn write_and_wait(&self, queue: &RawQueue) -> Result<()> {
        const LATE: Duration = Duration::from_micros(50);
        let host = self.0.host_address().context("mapped memory without a host address")?.cast::<u32>();
        let device = self.0.device_address().context("mapped memory without a device address")?;
        // SAFETY: the buffer has 4 aligned bytes and lives on; all access to them is atomic.
        let word = unsafe { AtomicU32::from_ptr(host.as_ptr()) };
        let value = word.load(Ordering::Relaxed).wrapping_add(1);
        // SAFETY: the word outlives the wait below; by default the write comes after those of the work before it.
        let code = unsafe { ffi::cuStreamWriteValue32_v2(queue.raw(), device, value, 0) };
        check("cuStreamWriteValue32_v2", code)?;
        let begun = Instant::now();
        while word.load(Ordering::Acquire) != value {
            if begun.elapsed() > LATE {
                return queue.finish();
            }
        }
        Ok(())
    }
}

/// Device memory with random contents, and the pinned memory that it is copied to.
struct Download {
    device: RawBuffer,
    host: RawBuffer,
    from: u64,
    to: std::ptr::NonNull<u8>,
    content: Vec<u8>,
}

impl Download {
    fn new(library: &Library, bytes: usize) -> Result<Self> {
        let device = library.allocate(MemoryKind::Device, bytes)?;
        let host = library.allocate(MemoryKind::Pinned, bytes)?;
        let mut content = Content::new(bytes, 0xD014);
        let start = content.draw();
        let content = content.part(start, bytes).to_vec();
        Memory::Ours(device.clone()).write(0, &content)?;
        let from = device.device_address().context("device memory without an address")?;
        let to = host.host_address().context("pinned memory without a host address")?;
        Ok(Self { device, host, from, to, content })
    }
}

impl Verify for Download {
    fn poison(&self) -> Result<()> {
        Memory::Ours(self.host.clone()).poison()
    }

    fn check(&self) -> Result<()> {
        Memory::Ours(self.host.clone()).compare(0, &self.content)
    }
}
