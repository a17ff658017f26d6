//! Large copies of pinned memory, one way and both ways at once, next to the driver's own calls; and the processor time of staged ones.

use std::{
    cell::RefCell,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use transload_core::{MemoryKind, RawBuffer, TransferMethod};
use transload_transfer::TransferOptions;

use super::Library;
use crate::{
    address::Address,
    comparison::{Comparison, Fixture, Variant, Verify},
    content::Content,
    memory::Memory,
    reference::{RawQueue, Reference as _, Staged, StagedForm},
    row::{Goal, Row},
};

const SIZES: [usize; 3] = [64 << 20, 256 << 20, 1 << 30];
const BOTH: usize = 256 << 20;
/// Goals: rates over those of the driver's calls.
const ONE_WAY: f64 = 0.99;
const BOTH_WAYS: f64 = 0.98;
const MIB: usize = 1 << 20;
/// The threads by hand of which the fastest are the reference.
const FORMS: [StagedForm; 4] = [
    StagedForm { threads: 8, bytes: 4 * MIB, sleeps: false },
    StagedForm { threads: 12, bytes: 2 * MIB, sleeps: false },
    StagedForm { threads: 12, bytes: 4 * MIB, sleeps: false },
    StagedForm { threads: 16, bytes: 2 * MIB, sleeps: false },
];
const STAGED: [usize; 4] = [3 << 20, 16 << 20, 48 << 20, 256 << 20];
/// Goals: rates over those of threads by hand, on so many processors and fewer.
const MANY_PROCESSORS: usize = 16;
const ON_MANY_PROCESSORS: f64 = 0.95;
const ON_FEW_PROCESSORS: f64 = 0.9;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let library = Library::new(fixture)?;
    let mut rows = Vec::new();
    for bytes in SIZES {
        let bytes = fixture.bytes(bytes);
        for up in [true, false] {
            let pair = [Pair::new(&library, MemoryKind::Pinned, up, bytes)?];
            let name = if up { "up" } else { "down" };
            rows.extend(pinned(fixture, &library, (&format!("large/{name}/{bytes}"), ONE_WAY), &pair)?);
        }
    }
    let bytes = fixture.bytes(BOTH);
    let both = [true, false].map(|up| Pair::new(&library, MemoryKind::Pinned, up, bytes));
    let [up, down] = both;
    let both = [up?, down?];
    rows.extend(pinned(fixture, &library, (&format!("both-ways/{bytes}"), BOTH_WAYS), &both)?);
    drop(both);
    for (up, bytes) in [true, false].into_iter().flat_map(|up| STAGED.map(|bytes| (up, bytes))) {
        let pair = Pair::new(&library, MemoryKind::Pageable, up, fixture.bytes(bytes))?;
        rows.extend(staged(fixture, &library, &pair)?);
    }
    library.finish()?;
    Ok(rows)
}

/// Copies of all pairs at once; the rate is that of each.
fn pinned<const N: usize>(
    fixture: &Fixture<'_>,
    library: &Library,
    (id, goal): (&str, f64),
    pairs: &[Pair; N],
) -> Result<Vec<Row>> {
    let queues = pairs.iter().map(|pair| Ok((RawQueue::new(0)?, pair))).collect::<Result<Vec<_>>>()?;
    let bytes = pairs.first().context("a pair")?.content.len();
    let rate = |begun: Instant| bytes as f64 / begun.elapsed().as_secs_f64() / 1e9;
    let all = All(pairs);
    let variants = vec![
        Variant::new("raw", "raw driver", || {
            let begun = Instant::now();
            queues.iter().try_for_each(|(queue, pair)| pair.enqueue(queue))?;
            queues.iter().try_for_each(|(queue, _)| queue.finish())?;
            Ok(rate(begun))
        })
        .verified_by(&all),
        Variant::new("copy", "copy()", || {
            let begun = Instant::now();
            let copies = pairs.each_ref().map(|pair| library.manager.copy(&pair.src, &pair.dst).submit());
            copies.into_iter().try_for_each(|copy| copy.wait().map(drop))?;
            Ok(rate(begun))
        })
        .goal(Goal::RatioAtLeast(goal))
        .verified_by(&all),
    ];
    let comparison = Comparison {
        id: id.to_owned(),
        what: format!("pinned memory, {N} copies of {bytes} bytes at once; the rate of each"),
        unit: "GB/s",
        bytes: (N * bytes) as u64,
        repetitions: fixture.repetitions(30),
    };
    comparison.rows(fixture, variants)
}

/// The rate of staging, and the seconds of all processors for each GB, next to threads by hand: on as many processors as the process may use.
fn staged(fixture: &Fixture<'_>, library: &Library, pair: &Pair) -> Result<Vec<Row>> {
    let bytes = pair.content.len();
    let options = TransferOptions::new().only(TransferMethod::HostStaged);
    let ours = || Ok(library.manager.copy(&pair.src, &pair.dst).options(options).wait().map(drop)?);
    let gigabytes = bytes as f64 / 1e9;
    let rate = |copy: &dyn Fn() -> Result<()>| {
        let begun = Instant::now();
        copy().map(|()| gigabytes / begun.elapsed().as_secs_f64())
    };
    let work = |copy: &dyn Fn() -> Result<()>| {
        // One that runs on is a part of what is measured: the first look said that they sleep.
        let _mostly = wait_for_idle_threads()?;
        let begun = process_seconds()?;
        copy()?;
        Ok((process_seconds()? - begun) / gigabytes)
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let least = if processors < MANY_PROCESSORS { ON_FEW_PROCESSORS } else { ON_MANY_PROCESSORS };
    let comparison = |id: &str, what: &str, unit| Comparison {
        id: format!("{id}/{}/{bytes}", if pair.up { "up" } else { "down" }),
        what: format!("{what} of {bytes} bytes of pageable memory on {processors} processors"),
        unit,
        bytes: bytes as u64,
        repetitions: fixture.repetitions(30),
    };
    let mut variants = Vec::new();
    for form in FORMS {
        let (name, copy) = (name(form), by_hand(fixture, pair, form)?);
        variants.push(Variant::new(&name, &name, move || rate(&copy)).verified_by(pair));
    }
    let staged = Variant::new("staged", "HostStaged", || rate(&ours)).goal(Goal::RatioAtLeast(least));
    variants.push(staged.verified_by(pair));
    let mut rows = comparison("by-hand", "staging", "GB/s").rows_over_best(
        FORMS.len(),
        fixture.group,
        fixture.is_simulated(),
        variants,
    )?;
    if !wait_for_idle_threads()? {
        eprintln!("no processor time of staging: a thread of the process does not sleep");
        return Ok(rows);
    }
    let by_hand = best(fixture, pair, &rows, &FORMS)?;
    rows.extend(comparison("processor-time", "the processor time of staging", "s/GB").rows(
        fixture,
        vec![
            Variant::new("threads", "threads by hand", || work(&by_hand)).verified_by(pair),
            Variant::new("staged", "HostStaged", || work(&ours)).verified_by(pair),
        ],
    )?);
    Ok(rows)
}

/// Returns the name of threads by hand.
pub(super) fn name(StagedForm { threads, bytes, sleeps }: StagedForm) -> String {
    let wait = if sleeps { "sleep" } else { "spin" };
    format!("{threads} threads by hand that {wait}, {} MiB", bytes / MIB)
}

/// Returns what copies the pair by threads by hand, and waits.
pub(super) fn by_hand<'a>(
    fixture: &Fixture<'_>,
    pair: &'a Pair,
    form: StagedForm,
) -> Result<impl Fn() -> Result<()> + use<'a>> {
    let (src, dst) = (Memory::Ours(pair.src.clone()).address()?, Memory::Ours(pair.dst.clone()).address()?);
    let addresses = (src, dst, pair.content.len());
    // SAFETY: the pair outlives it, and the variants take turns.
    let staged = RefCell::new(unsafe { Staged::with(fixture.context()?, &[addresses], form) }?);
    Ok(move || {
        // That it is alive.
        let _ = pair;
        let mut staged = staged.borrow_mut();
        staged.submit()?;
        staged.finish()
    })
}

/// Returns the same of the form that was the reference of the first row.
pub(super) fn best<'a>(
    fixture: &Fixture<'_>,
    pair: &'a Pair,
    rows: &[Row],
    forms: &[StagedForm],
) -> Result<impl Fn() -> Result<()> + use<'a>> {
    let best = rows.first().and_then(|row| row.reference.as_ref()).context("a reference")?;
    let form = forms.iter().find(|form| name(**form) == *best).context("the reference's form")?;
    by_hand(fixture, pair, *form)
}

/// Waits until no other thread of the process runs: those of the variant before spin for a while before they sleep. Returns whether that
/// came to pass.
pub(super) fn wait_for_idle_threads() -> Result<bool> {
    const WINDOW: Duration = Duration::from_micros(200);
    const TRIES: usize = 500;
    for _ in 0..TRIES {
        let begun = process_seconds()?;
        thread::sleep(WINDOW);
        // This thread's own calls take some microseconds.
        if process_seconds()? - begun < WINDOW.as_secs_f64() / 10.0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the seconds for which all threads of the process ran.
#[cfg(target_os = "linux")]
pub(super) fn process_seconds() -> Result<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is that of a local value.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    anyhow::ensure!(code == 0, "the system does not tell the process's processor time");
    Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn process_seconds() -> Result<f64> {
    Ok(0.0)
}

/// Host memory and device memory with random contents in the source.
pub(super) struct Pair {
    pub(super) up: bool,
    pub(super) src: RawBuffer,
    pub(super) dst: RawBuffer,
    pub(super) content: Vec<u8>,
}

impl Pair {
    pub(super) fn new(library: &Library, kind: MemoryKind, up: bool, bytes: usize) -> Result<Self> {
        let host = library.allocate(kind, bytes)?;
        let device = library.allocate(MemoryKind::Device, bytes)?;
        let (src, dst) = if up { (host, device) } else { (device, host) };
        let mut content = Content::new(bytes, 0x1A26E + bytes as u64);
        let start = content.draw();
        let content = content.part(start, bytes).to_vec();
        Memory::Ours(src.clone()).write(0, &content)?;
        Ok(Self { up, src, dst, content })
    }

    fn enqueue(&self, queue: &RawQueue) -> Result<()> {
        let (src, dst) =
            (Memory::Ours(self.src.clone()).address()?, Memory::Ours(self.dst.clone()).address()?);
        let bytes = self.content.len();
        // SAFETY: the pair lives on, and the variants take turns.
        unsafe {
            match (src, dst) {
                (Address::Host(src), Address::Device(dst)) => {
                    queue.copy_up(dst, src.as_ptr().cast_const().cast(), bytes)
                }
                (Address::Device(src), Address::Host(dst)) => {
                    queue.copy_down(dst.as_ptr().cast(), src, bytes)
                }
                _ => Ok(()),
            }
        }
    }
}

impl Verify for Pair {
    fn poison(&self) -> Result<()> {
        Memory::Ours(self.dst.clone()).poison()
    }

    fn check(&self) -> Result<()> {
        Memory::Ours(self.dst.clone()).compare(0, &self.content)
    }
}

struct All<'a, const N: usize>(&'a [Pair; N]);

impl<const N: usize> Verify for All<'_, N> {
    fn poison(&self) -> Result<()> {
        self.0.iter().try_for_each(Pair::poison)
    }

    fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(Pair::check)
    }
}
