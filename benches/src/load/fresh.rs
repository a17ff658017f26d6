//! Downloads into host memory that was never touched: ours on huge pages, and the caller's ordinary pages.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
    ptr, slice,
    time::Instant,
};

use anyhow::{Result, ensure};
use transload::{DeviceId, MemoryKind};

use super::{
    by_hand, finish, runtime,
    threads::{Threads, Work},
};
use crate::{
    comparison::{Comparison, Fixture, Variant, Verify},
    content::Content,
    memory::{Memory, POISON},
    row::{Goal, Row},
};

const MIB: usize = 1 << 20;
/// With the goals in GB/s into memory of the library, and into the caller's.
const SIZES: [(usize, [Option<f64>; 2]); 2] =
    [(16 * MIB, [Some(25.0), None]), (256 * MIB, [Some(36.0), Some(18.0)])];

/// A mapping of its own.
struct Fresh {
    base: *mut u8,
    start: usize,
    bytes: usize,
    mapped: usize,
}

// SAFETY: the mapping is owned.
unsafe impl Send for Fresh {}

impl Fresh {
    fn new(bytes: usize, huge: bool) -> Result<Self> {
        const HUGE: usize = 2 * MIB;
        let mapped = bytes + HUGE;
        // SAFETY: a new mapping; advice changes no content.
        unsafe {
            let (access, kind) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let base = libc::mmap(ptr::null_mut(), mapped, access, kind, -1, 0);
            ensure!(base != libc::MAP_FAILED, "out of host memory");
            libc::madvise(base, mapped, if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE });
            let base = base.cast::<u8>();
            Ok(Self { base, start: base.align_offset(HUGE), bytes, mapped })
        }
    }
}

impl Deref for Fresh {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: within the mapping, whose bytes are initialised.
        unsafe { slice::from_raw_parts(self.base.add(self.start), self.bytes) }
    }
}

impl DerefMut for Fresh {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.base.add(self.start), self.bytes) }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length.
        unsafe { libc::munmap(self.base.cast(), self.mapped) };
    }
}

// SAFETY: the bytes are owned and stay where they are.
unsafe impl transload::backend::Destination<u8> for Fresh {}

/// The last bytes that arrived.
struct Arrived<'a> {
    content: &'a [u8],
    last: RefCell<Option<Box<dyn DerefMut<Target = [u8]>>>>,
}

impl Arrived<'_> {
    fn put(&self, bytes: impl DerefMut<Target = [u8]> + 'static) {
        *self.last.borrow_mut() = Some(Box::new(bytes));
    }

    fn forget(&self) {
        *self.last.borrow_mut() = None;
    }
}

impl Verify for Arrived<'_> {
    /// The next bytes may get this memory.
    fn poison(&self) -> Result<()> {
        if let Some(last) = &mut *self.last.borrow_mut() {
            last.fill(POISON);
        }
        self.forget();
        Ok(())
    }

    fn check(&self) -> Result<()> {
        ensure!(self.last.borrow().as_ref().is_some_and(|last| ***last == *self.content), "the bytes differ");
        Ok(())
    }
}

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (bytes, goals) in SIZES {
        rows.extend(of_size(fixture, fixture.bytes(bytes), goals.map(|goal| goal.map(Goal::AtLeast)))?);
    }
    Ok(rows)
}

fn of_size(
    fixture: &Fixture<'_>,
    bytes: usize,
    [into_ours, into_callers]: [Option<Goal>; 2],
) -> Result<Vec<Row>> {
    let runtime = runtime(fixture)?;
    let source = runtime.alloc::<u8>(DeviceId::Cuda(fixture.device.ordinal()), MemoryKind::Device, bytes)?;
    let content = Content::new(bytes, 0xF4E5);
    let content = content.part(7, bytes);
    Memory::Ours(source.raw().clone()).write(0, content)?;
    let src = source.raw().device_address().unwrap_or(0);
    let (count, slot) = by_hand();
    let threads = Threads::start(fixture.context()?, count, slot)?;
    let arrived = Arrived { content, last: RefCell::default() };
    let rate = |begun: Instant| bytes as f64 / begun.elapsed().as_secs_f64() / 1e9;
    let by_hand = |huge: bool| {
        arrived.forget();
        let begun = Instant::now();
        let mut fresh = Fresh::new(bytes, huge)?;
        // Whole huge pages: two threads would clear one twice. Of ordinary pages each thread has several pieces, so that one is copied while
        // the pages of the next are faulted in.
        let piece = if huge { bytes.div_ceil(count).next_multiple_of(2 * MIB) } else { MIB / 4 };
        // SAFETY: both have that many bytes, and only this uses them now.
        unsafe { threads.begin(Work::Down(src, fresh.as_mut_ptr().expose_provenance()), bytes, piece) }?;
        threads.finish()?;
        let rate = rate(begun);
        arrived.put(fresh);
        Ok(rate)
    };
    let comparison = |id: &str, what: &str| Comparison {
        id: format!("fresh/{id}/{bytes}"),
        what: format!("{bytes} bytes from the device into {what} never touched before"),
        unit: "GB/s",
        bytes: bytes as u64,
        repetitions: fixture.repetitions(30),
    };
    let raw = |name: &str| format!("{count} threads with 2 slots each, {name} pages");
    let ours = vec![
        Variant::new("raw", &raw("huge"), || by_hand(true)).verified_by(&arrived),
        Variant::new("download", "Runtime::download", || {
            arrived.forget();
            let begun = Instant::now();
            let there = runtime.download(&source).wait()?;
            let rate = rate(begun);
            arrived.put(there);
            Ok(rate)
        })
        .goal(Goal::RatioAtLeast(0.95))
        .verified_by(&arrived),
    ];
    let ours = comparison("ours", "memory of the library").rows(fixture, ours)?;
    let mut rows: Vec<_> = ours.into_iter().map(|row| row.with_goal(into_ours)).collect();
    let callers = vec![
        Variant::new("raw", &raw("ordinary"), || by_hand(false)).verified_by(&arrived),
        Variant::new("download-into", "Runtime::download_into", || {
            arrived.forget();
            let begun = Instant::now();
            let there = runtime.download_into(&source, Fresh::new(bytes, false)?).wait()?;
            let rate = rate(begun);
            arrived.put(there);
            Ok(rate)
        })
        .goal(Goal::RatioAtLeast(0.95))
        .verified_by(&arrived),
    ];
    let callers = comparison("callers", "the caller's ordinary pages").rows(fixture, callers)?;
    rows.extend(callers.into_iter().map(|row| row.with_goal(into_callers)));
    arrived.forget();
    drop(source);
    finish(&runtime)?;
    Ok(rows)
}
