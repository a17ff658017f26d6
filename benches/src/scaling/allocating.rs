//! Allocating and dropping warm buffers of the backend: in one thread, with a copy in between, and in eight threads.

use std::{
    cell::{Cell, RefCell},
    hint::black_box,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use anyhow::{Context as _, Result};
use transload_core::{MemoryKind, RawBuffer};

use super::{Library, each, timed};
use crate::{
    comparison::{
        Comparison, Fixture, Variant, Verify,
        concurrent::{Round, run_concurrently},
    },
    content::Content,
    memory::Memory,
    raw_memory::RawMemory,
    reference::{RawPool, RawQueue},
    row::{Goal, Row, Summary},
};

const SIZES: [usize; 2] = [4096, 1 << 20];
const KINDS: [MemoryKind; 2] = [MemoryKind::Device, MemoryKind::Pinned];
const THREADS: usize = 8;
/// Nanoseconds for an allocation and its drop.
const MOST: f64 = 130.0;
/// Goal for each of eight threads, relative to one thread.
const CROWDED: f64 = 1.3;
/// Copies in a row: few enough not to fill the launch queue.
const COPIES: usize = 64;
/// Bytes of the copy in between.
const COPIED: usize = 4096;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let library = Library::new(fixture)?;
    let mut rows = vec![private_loop(fixture)?, private_list(fixture)?];
    for kind in KINDS {
        for bytes in SIZES {
            rows.extend(alone(fixture, &library, kind, bytes)?);
            rows.push(eight_threads(fixture, &library, kind, bytes)?);
        }
        rows.extend(with_copy(fixture, &library, kind)?);
    }
    library.finish()?;
    Ok(rows)
}

fn pair(library: &Library, kind: MemoryKind, bytes: usize) -> Result<()> {
    drop(library.allocate(kind, bytes)?);
    Ok(())
}

fn alone(fixture: &Fixture<'_>, library: &Library, kind: MemoryKind, bytes: usize) -> Result<Vec<Row>> {
    let many = fixture.amount(2000);
    let (pool, queue) = (RawPool::new(fixture.device.driver().as_raw())?, RawQueue::new(0)?);
    let raw = match kind {
        MemoryKind::Device => {
            Variant::new("raw", "raw driver, cuMemAllocFromPoolAsync and cuMemFreeAsync", || {
                let took = timed(many.min(500), || {
                    let address = pool.allocate(bytes, &queue)?;
                    // SAFETY: nobody used it.
                    unsafe { pool.free(address, &queue) }
                })?;
                queue.finish()?;
                Ok(took)
            })
        }
        // A call takes tens of microseconds.
        _ => Variant::new("raw", "raw driver, cuMemHostAlloc and cuMemFreeHost", || {
            timed(2, || RawMemory::new(kind, bytes).map(drop))
        }),
    };
    let ours = Variant::new("backend", "allocate and drop", || timed(many, || pair(library, kind, bytes)));
    let comparison = Comparison {
        id: format!("allocate-and-drop/{kind}/{bytes}/threads-1"),
        what: format!("allocating {bytes} bytes of {kind} memory and dropping them, warm, 1 thread"),
        unit: "ns",
        bytes: 0,
        repetitions: fixture.repetitions(60),
    };
    comparison.rows(fixture, vec![raw, ours.goal(Goal::AtMost(MOST))])
}

/// The overhead of an allocation and a drop around enqueuing a copy.
fn with_copy(fixture: &Fixture<'_>, library: &Library, kind: MemoryKind) -> Result<Vec<Row>> {
    let up = kind == MemoryKind::Device;
    let other = library.allocate(if up { MemoryKind::Pinned } else { MemoryKind::Device }, COPIED)?;
    let kept = library.allocate(kind, COPIED)?;
    let submit = |buffer: &RawBuffer| match up {
        true => library.manager.copy(&other, buffer).submit(),
        false => library.manager.copy(buffer, &other).submit(),
    };
    let copied = Copied {
        up,
        other: &other,
        last: RefCell::new(kept.clone()),
        is_checked: Cell::new(false),
        content: Content::new(COPIED, 0xF4E5).part(0, COPIED).to_vec(),
    };
    Memory::Ours(if up { other.clone() } else { kept.clone() }).write(0, &copied.content)?;
    let variants = vec![
        Variant::new("kept", "a copy with a kept buffer", || {
            copied.prepare(&kept)?;
            let begun = Instant::now();
            for _ in 0..COPIES {
                drop(submit(&kept));
            }
            let took = each(begun, COPIES);
            // Every copy uses it. A drain would free the memory, and the next round would not start warm.
            other.wait_idle()?;
            Ok(took)
        })
        .by_library()
        .verified_by(&copied),
        Variant::new("fresh", "allocate, copy, drop", || {
            let begun = Instant::now();
            for _ in 0..COPIES {
                let buffer = library.allocate(kind, COPIED)?;
                copied.prepare(&buffer)?;
                drop(submit(&buffer));
                drop(buffer);
            }
            let took = each(begun, COPIES);
            other.wait_idle()?;
            Ok(took)
        })
        .goal(Goal::AtMostOver(MOST))
        .verified_by(&copied),
    ];
    let comparison = Comparison {
        id: format!("allocate-and-drop/{kind}/{COPIED}/with-copy"),
        what: format!(
            "enqueuing a copy of {COPIED} bytes with a warm buffer of {kind} memory, {COPIES} in a row"
        ),
        unit: "ns",
        bytes: COPIED as u64,
        repetitions: fixture.repetitions(100),
    };
    comparison.rows(fixture, variants)
}

/// What the copies with warm buffers move. A run after `poison` is not timed: its buffers are written first, and the last is kept.
struct Copied<'a> {
    /// Whether the warm buffer is the destination.
    up: bool,
    other: &'a RawBuffer,
    last: RefCell<RawBuffer>,
    is_checked: Cell<bool>,
    content: Vec<u8>,
}

impl Copied<'_> {
    /// Called with the warm buffer before it is used.
    fn prepare(&self, buffer: &RawBuffer) -> Result<()> {
        if !self.is_checked.get() {
            return Ok(());
        }
        // The memory may be that of an earlier buffer, whose copy used the other one, too.
        self.other.wait_idle()?;
        let memory = Memory::Ours(buffer.clone());
        if self.up {
            memory.poison()?
        } else {
            memory.write(0, &self.content)?
        }
        *self.last.borrow_mut() = buffer.clone();
        Ok(())
    }
}

impl Verify for Copied<'_> {
    fn poison(&self) -> Result<()> {
        self.is_checked.set(true);
        let other = Memory::Ours(self.other.clone());
        if self.up { other.write(0, &self.content) } else { other.poison() }
    }

    fn check(&self) -> Result<()> {
        self.is_checked.set(false);
        let last = self.last.borrow();
        Memory::Ours(if self.up { last.clone() } else { self.other.clone() }).compare(0, &self.content)
    }
}

/// The time of an allocation and drop for each of eight threads.
fn eight_threads(fixture: &Fixture<'_>, library: &Library, kind: MemoryKind, bytes: usize) -> Result<Row> {
    let work = || move || pair(library, kind, bytes);
    let id = format!("allocate-and-drop/{kind}/{bytes}/threads-{THREADS}");
    let what = format!(
        "allocating {bytes} bytes of {kind} memory and dropping them, warm, {THREADS} threads, for each of them"
    );
    Ok(against_one_thread(fixture, &id, &what, "allocate and drop", work)?
        .with_goal(Some(Goal::RatioAtMost(CROWDED))))
}

/// The machine's own scaling with eight threads that share nothing: each copies within its L1 cache.
fn private_loop(fixture: &Fixture<'_>) -> Result<Row> {
    const BYTES: usize = 4096;
    let work = || {
        let (from, mut to) = (vec![1_u8; BYTES], vec![0_u8; BYTES]);
        move || {
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
            Ok(())
        }
    };
    let id = format!("allocate-and-drop/private-loop/threads-{THREADS}");
    let what = format!("a copy of {BYTES} bytes in the nearest cache, {THREADS} threads, for each of them");
    against_one_thread(fixture, &id, &what, "memcpy", work)
}

/// The machine's own scaling with eight threads that pop a block from a private list and push it back: two lock operations, a
/// check of the reference count, and three cache lines written, like an allocation and drop of the library.
fn private_list(fixture: &Fixture<'_>) -> Result<Row> {
    type Block = [u64; 24];
    let work = || {
        let list: Mutex<Vec<Arc<Block>>> = Mutex::new((0..4).map(|_| Arc::new([0; 24])).collect());
        move || {
            let mut block =
                list.lock().unwrap_or_else(PoisonError::into_inner).pop().context("the list is empty")?;
            if let Some(own) = Arc::get_mut(&mut block) {
                own.iter_mut().step_by(8).for_each(|word| *word += 1);
            }
            list.lock().unwrap_or_else(PoisonError::into_inner).push(black_box(block));
            Ok(())
        }
    };
    let id = format!("allocate-and-drop/private-list/threads-{THREADS}");
    let what = format!(
        "taking a block from a private list and putting it back, {THREADS} threads, for each of them"
    );
    against_one_thread(fixture, &id, &what, "private list", work)
}

/// Measures `make`'s work for each of eight threads against one thread.
fn against_one_thread<'a, W: FnMut() -> Result<()> + 'a>(
    fixture: &Fixture<'_>,
    id: &str,
    what: &str,
    method: &str,
    make: impl Fn() -> W + Sync,
) -> Result<Row> {
    let many = fixture.amount(2000);
    let each = |threads: usize| -> Result<Summary> {
        let make = |_thread: usize| -> Result<Vec<Round<'a>>> {
            let mut work = make();
            Ok(vec![Box::new(move || (0..many).try_for_each(|_| work()))])
        };
        let seconds = run_concurrently(threads, 1, fixture.repetitions(40), make)?;
        let Summary { p10, p50, p90 } = *seconds.first().context("no variant was measured")?;
        let value = |seconds: f64| seconds * 1e9 / many as f64;
        Ok(Summary { p10: value(p10), p50: value(p50), p90: value(p90) })
    };
    let (one, all) = (each(1)?, each(THREADS)?);
    Ok(fixture.row(id, what, method, "ns", all).against_library("the same, 1 thread", one))
}
