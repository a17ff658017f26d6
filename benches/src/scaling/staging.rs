//! Staged transfers of pageable memory of every size, and eight at once compared with one of the total size.

use std::{
    ptr, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use transload_core::{ErrorKind, MemoryKind, RawBuffer, Transfer, TransferMethod};
use transload_transfer::TransferOptions;

use super::Library;
use crate::{
    address::Address,
    comparison::{Comparison, Fixture, Variant, Verify},
    content::Content,
    memory::Memory,
    reference::RawQueue,
    row::{Goal, Row},
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const SIZES: [usize; 8] = [64 * KIB, 256 * KIB, MIB, 3 * MIB, 16 * MIB, 48 * MIB, 128 * MIB, 256 * MIB];
/// Smallest size with a goal against the driver's copy.
const COUNTS: usize = MIB;
const TOGETHER: usize = 8;
const EACH: usize = 16 * MIB;
/// Goal: rate of several at once relative to one transfer of all bytes.
const LEAST: f64 = 0.95;
/// Goal: microseconds above a memcpy and a raw copy from pinned memory.
const OVER_MEMCPY: f64 = 1.0;
const PAUSE: Duration = Duration::from_millis(1);
/// Sizes with the goals in GB/s, back to back and after the pause.
const BACK_TO_BACK: [(usize, [Option<f64>; 2]); 2] =
    [(MIB, [Some(20.0), Some(13.0)]), (3 * MIB, [Some(30.0), None])];

/// From the host to the device, or back.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Up,
    Down,
}

impl Direction {
    const ALL: [Self; 2] = [Self::Up, Self::Down];

    fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let library = Library::new(fixture)?;
    let mut rows = Vec::new();
    for direction in Direction::ALL {
        for bytes in SIZES {
            rows.extend(beside_driver(fixture, &library, direction, fixture.bytes(bytes))?);
        }
        rows.extend(together(fixture, &library, direction)?);
    }
    rows.extend(short(fixture, &library)?);
    library.finish()?;
    Ok(rows)
}

fn staged(library: &Library, (src, dst): &(RawBuffer, RawBuffer)) -> Transfer {
    let options = TransferOptions::new().only(TransferMethod::HostStaged);
    library.manager.copy(src, dst).options(options).submit()
}

fn beside_driver(
    fixture: &Fixture<'_>,
    library: &Library,
    direction: Direction,
    bytes: usize,
) -> Result<Vec<Row>> {
    let pairs = Pairs::new(library, direction, 1, bytes)?;
    let pair = pairs.list.first().context("no pair")?;
    match staged(library, pair).wait() {
        Ok(report) => ensure!(report.method == TransferMethod::HostStaged, "{} was taken", report.method),
        // Too small to be staged.
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    }
    let queue = RawQueue::new(0)?;
    let options = TransferOptions::new().only(TransferMethod::HostStaged);
    let (src, dst) = (Memory::Ours(pair.0.clone()).address()?, Memory::Ours(pair.1.clone()).address()?);
    let rate = |begun: Instant| bytes as f64 / begun.elapsed().as_secs_f64() / 1e9;
    let variants = vec![
        Variant::new("raw", "raw driver, pageable memory", || {
            let begun = Instant::now();
            // SAFETY: the pair lives on, and no other thread uses it now.
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
            }?;
            queue.finish()?;
            Ok(rate(begun))
        })
        .verified_by(&pairs),
        Variant {
            goal: (bytes >= COUNTS).then_some(Goal::RatioAtLeast(1.0)),
            ..Variant::new("staged", "HostStaged", || {
                let begun = Instant::now();
                library.manager.copy(&pair.0, &pair.1).options(options).wait()?;
                Ok(rate(begun))
            })
            .verified_by(&pairs)
        },
    ];
    let comparison = Comparison {
        id: format!("staged/{}/{bytes}", direction.name()),
        what: format!("pageable memory {} by HostStaged, {bytes} bytes", direction.name()),
        unit: "GB/s",
        bytes: bytes as u64,
        repetitions: fixture.repetitions(if bytes > 16 * MIB { 30 } else { 80 }),
    };
    comparison.rows(fixture, variants)
}

/// Short uploads of pageable memory by whatever is chosen: next to a copy by hand into pinned memory that is there, back to back, and after a
/// pause, in which threads fall asleep and caches are lost.
fn short(fixture: &Fixture<'_>, library: &Library) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for bytes in [4 * KIB, 64 * KIB] {
        rows.extend(beside_memcpy(fixture, library, bytes)?);
    }
    for (bytes, goals) in BACK_TO_BACK {
        rows.extend(back_to_back(fixture, library, bytes, goals)?);
    }
    Ok(rows)
}

fn beside_memcpy(fixture: &Fixture<'_>, library: &Library, bytes: usize) -> Result<Vec<Row>> {
    let pairs = Pairs::new(library, Direction::Up, 1, bytes)?;
    let (src, dst) = pairs.list.first().context("no pair")?;
    let pinned = library.allocate(MemoryKind::Pinned, bytes)?;
    let queue = RawQueue::new(0)?;
    let from = src.host_address().context("pageable memory without an address")?;
    let by = pinned.host_address().context("pinned memory without a host address")?;
    let to = dst.device_address().context("device memory without an address")?;
    let micros = |begun: Instant| begun.elapsed().as_secs_f64() * 1e6;
    let variants = vec![
        Variant::new("memcpy-and-raw", "memcpy by one thread, raw driver from pinned memory", || {
            let begun = Instant::now();
            // SAFETY: all three buffers live on with so many bytes, no other thread uses them, and the queue has finished its last copy.
            unsafe {
                ptr::copy_nonoverlapping(from.as_ptr(), by.as_ptr(), bytes);
                queue.copy_up(to, by.as_ptr().cast_const().cast(), bytes)?;
            }
            queue.finish()?;
            Ok(micros(begun))
        })
        .verified_by(&pairs),
        Variant::new("copy", "copy().wait()", || {
            let begun = Instant::now();
            library.manager.copy(src, dst).wait()?;
            Ok(micros(begun))
        })
        .goal(Goal::AtMostOver(OVER_MEMCPY))
        .verified_by(&pairs),
    ];
    let comparison = Comparison {
        id: format!("short/{bytes}"),
        what: format!("an upload of {bytes} bytes of pageable memory and its completion"),
        unit: "us",
        bytes: bytes as u64,
        repetitions: fixture.repetitions(300),
    };
    comparison.rows(fixture, variants)
}

fn back_to_back(
    fixture: &Fixture<'_>,
    library: &Library,
    bytes: usize,
    [again, after_pause]: [Option<f64>; 2],
) -> Result<Vec<Row>> {
    let pairs = Pairs::new(library, Direction::Up, 1, bytes)?;
    let (src, dst) = pairs.list.first().context("no pair")?;
    let copy = || {
        let begun = Instant::now();
        library.manager.copy(src, dst).wait()?;
        Ok(bytes as f64 / begun.elapsed().as_secs_f64() / 1e9)
    };
    let queue = RawQueue::new(0)?;
    let from = src.host_address().context("pageable memory without an address")?;
    let to = dst.device_address().context("device memory without an address")?;
    let with_goal = |variant, least: Option<f64>| Variant { goal: least.map(Goal::AtLeast), ..variant };
    let variants = vec![
        Variant::new("raw", "raw driver, pageable memory", || {
            let begun = Instant::now();
            // SAFETY: both buffers live on with so many bytes, and no other thread uses them.
            unsafe { queue.copy_up(to, from.as_ptr().cast_const().cast(), bytes) }?;
            queue.finish()?;
            Ok(bytes as f64 / begun.elapsed().as_secs_f64() / 1e9)
        })
        .verified_by(&pairs),
        with_goal(
            Variant::new("back-to-back", "copy().wait() after others", || {
                // What was measured before left other threads and caches warm.
                for _ in 0..3 {
                    let _warm: f64 = copy()?;
                }
                copy()
            })
            .verified_by(&pairs),
            again,
        ),
        with_goal(
            Variant::new("after-pause", "copy().wait() after a pause of 1 ms", || {
                thread::sleep(PAUSE);
                copy()
            })
            .verified_by(&pairs),
            after_pause,
        ),
    ];
    let comparison = Comparison {
        id: format!("short/{bytes}"),
        what: format!("an upload of {bytes} bytes of pageable memory"),
        unit: "GB/s",
        bytes: bytes as u64,
        repetitions: fixture.repetitions(100),
    };
    comparison.rows(fixture, variants)
}

fn together(fixture: &Fixture<'_>, library: &Library, direction: Direction) -> Result<Vec<Row>> {
    let bytes = fixture.bytes(EACH);
    let all = bytes * TOGETHER;
    let one = Pairs::new(library, direction, 1, all)?;
    let eight = Pairs::new(library, direction, TOGETHER, bytes)?;
    let run = |pairs: &Pairs| -> Result<f64> {
        let begun = Instant::now();
        let transfers: Vec<Transfer> = pairs.list.iter().map(|pair| staged(library, pair)).collect();
        transfers.into_iter().try_for_each(|transfer| transfer.wait().map(|_report| ()))?;
        Ok(all as f64 / begun.elapsed().as_secs_f64() / 1e9)
    };
    let variants = vec![
        Variant::new("one", "HostStaged, one transfer of all bytes", || run(&one))
            .by_library()
            .verified_by(&one),
        Variant::new("eight", "HostStaged, eight transfers at once", || run(&eight))
            .goal(Goal::RatioAtLeast(LEAST))
            .verified_by(&eight),
    ];
    let comparison = Comparison {
        id: format!("staged/{}/{TOGETHER}x{bytes}", direction.name()),
        what: format!(
            "pageable memory {} by HostStaged, {TOGETHER} of {bytes} bytes at once",
            direction.name()
        ),
        unit: "GB/s",
        bytes: all as u64,
        repetitions: fixture.repetitions(30),
    };
    comparison.rows(fixture, variants)
}

/// Pageable and device memory in pairs, with contents.
pub(super) struct Pairs {
    pub(super) list: Vec<(RawBuffer, RawBuffer)>,
    contents: Vec<Vec<u8>>,
}

impl Pairs {
    fn new(library: &Library, direction: Direction, count: usize, bytes: usize) -> Result<Self> {
        let up = direction == Direction::Up;
        Self::on(library, library.device, up, count, bytes)
    }

    /// Of the memory of a device of the library's.
    pub(super) fn on(
        library: &Library,
        device: transload_core::DeviceId,
        up: bool,
        count: usize,
        bytes: usize,
    ) -> Result<Self> {
        let mut content = Content::new(bytes, 0x57A6 + bytes as u64);
        let mut pairs = Self { list: Vec::new(), contents: Vec::new() };
        for _ in 0..count {
            let host = library.allocate_for(device, MemoryKind::Pageable, bytes)?;
            let there = library.allocate_for(device, MemoryKind::Device, bytes)?;
            let start = content.draw();
            let bytes = content.part(start, bytes).to_vec();
            let pair = if up { (host, there) } else { (there, host) };
            Memory::Ours(pair.0.clone()).write(0, &bytes)?;
            pairs.list.push(pair);
            pairs.contents.push(bytes);
        }
        Ok(pairs)
    }
}

impl Verify for Pairs {
    fn poison(&self) -> Result<()> {
        self.list.iter().try_for_each(|(_, dst)| Memory::Ours(dst.clone()).poison())
    }

    fn check(&self) -> Result<()> {
        let each = self.list.iter().zip(&self.contents);
        each.into_iter().try_for_each(|((_, dst), content)| Memory::Ours(dst.clone()).compare(0, content))
    }
}
