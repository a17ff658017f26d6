//! What a Vulkan device offers without this library: copies by the universal queue and by queues that only copy, in one submission and
//! in several, and memory handed over to CUDA and back.

mod cuda;
mod device;

use std::{cell::RefCell, time::Instant};

use anyhow::{Result, ensure};

pub(super) use self::cuda::HandOver;
use self::device::{Buffer, Device, Recorded, Timeline};
use super::{Adapter, MIB, microseconds, rate};
use crate::{
    comparison::{Variant, Verify},
    memory::POISON,
    row::Row,
};

/// Bytes of a copy that is submitted and waited for.
const SMALL: usize = 4 << 10;
/// Pieces of a list.
const PIECES: usize = 1_000;
/// Calls of which the mean is one value.
const CALLS: usize = 32;

/// Opens a GPU. A software adapter has one queue.
pub(super) fn open(adapter: &Adapter<'_>) -> Result<Option<Device>> {
    match adapter.info.uuid {
        Some(uuid) if !adapter.plain.is_software => Device::open(uuid),
        _ => Ok(None),
    }
}

/// The rows of a GPU.
pub(super) fn rows(adapter: &Adapter<'_>) -> Result<Vec<Row>> {
    let Some(device) = open(adapter)? else { return Ok(Vec::new()) };
    let bytes = adapter.large();
    let mut rows = one_way(adapter, &device, bytes, true)?;
    rows.extend(one_way(adapter, &device, bytes, false)?);
    rows.extend(both_ways(adapter, &device, bytes)?);
    rows.extend(small(adapter, &device)?);
    rows.extend(pieces(adapter, &device)?);
    rows.extend(in_turn(adapter, &device)?);
    rows.extend(calls(adapter, &device)?);
    rows.extend(cuda::rows(adapter, &device)?);
    Ok(rows)
}

/// The host's time for a submission of a short copy, and for reading a timeline semaphore.
fn calls(adapter: &Adapter<'_>, device: &Device) -> Result<Vec<Row>> {
    let content = adapter.random(SMALL);
    let ends = Ends::new(device, &content)?;
    let (host, there) = (&*ends.host.borrow(), &ends.device);
    let (timeline, copies) = (device.timeline()?, device.copies(0, (host, there), (SMALL / CALLS, false))?);
    let submit = || {
        let begun = Instant::now();
        let last = copies.submit_all(&timeline)?;
        let took = begun.elapsed();
        timeline.wait(last, true)?;
        Ok(took.as_secs_f64() * 1e6 / CALLS as f64)
    };
    let read = || {
        let begun = Instant::now();
        (0..CALLS).try_for_each(|_| timeline.wait(0, false))?;
        Ok(begun.elapsed().as_secs_f64() * 1e6 / CALLS as f64)
    };
    let variants = vec![
        Variant::new("submit", "vkQueueSubmit", submit),
        Variant::new("counter", "vkGetSemaphoreCounterValue", read),
    ];
    adapter.compare(("probe/host", "the host's time for a call"), ("us", 0), 100, 1, variants)
}

/// Copies by each family, by submissions of several sizes.
fn one_way(adapter: &Adapter<'_>, device: &Device, bytes: usize, up: bool) -> Result<Vec<Row>> {
    let content = adapter.random(bytes);
    let ends = Ends::new(device, &content)?;
    let (host, there) = (&*ends.host.borrow(), &ends.device);
    let pair = if up { (host, there) } else { (there, host) };
    let timeline = device.timeline()?;
    let mut recorded = Vec::new();
    for (queue, family) in ["universal", "transfer"].into_iter().enumerate() {
        for (part, in_order) in [(bytes, false), (4 * MIB, false), (4 * MIB, true), (MIB, false)] {
            let order = if in_order { "-in-order" } else { "" };
            let name =
                if part == bytes { family.to_owned() } else { format!("{family}-{}{order}", part / MIB) };
            let method = format!("{family} queue, submissions of {} MiB", part / MIB);
            recorded.push((name, method, device.copies(queue, pair, (part, in_order))?));
        }
    }
    let alternating = Alternating::new(device, pair, 4 * MIB)?;
    let check = Copied { ends: &ends, up };
    let run = |copies: &Recorded<'_>| timeline.wait(copies.submit_all(&timeline)?, true);
    let mut variants: Vec<_> = recorded
        .iter()
        .map(|(name, method, copies)| {
            Variant::new(name, method, rate(bytes, || run(copies))).verified_by(&check)
        })
        .collect();
    let (name, method) = ("transfer-4-alternating", "two transfer queues, submissions of 4 MiB in turn");
    variants.push(Variant::new(name, method, rate(bytes, || alternating.run())).verified_by(&check));
    let (id, what) =
        if up { ("up", "host memory to the device") } else { ("down", "the device to the host") };
    adapter.compare(
        (&format!("probe/{id}/{bytes}"), &format!("{what}, Vulkan by hand")),
        ("GB/s", bytes),
        30,
        1,
        variants,
    )
}

/// Copies of parts by the queues that only copy, in turn.
struct Alternating<'a> {
    queues: Vec<(Recorded<'a>, Timeline<'a>)>,
    parts: usize,
}

impl<'a> Alternating<'a> {
    fn new(device: &'a Device, ends: (&Buffer<'_>, &Buffer<'_>), part: usize) -> Result<Self> {
        let parts: Vec<_> = (0..ends.0.bytes()).step_by(part).collect();
        let count = device.queues.len() - 1;
        let mut queues = Vec::new();
        for queue in 0..count {
            let starts: Vec<_> = parts.iter().copied().skip(queue).step_by(count).collect();
            queues.push((device.copies_at(queue + 1, ends, &starts, (part, false))?, device.timeline()?));
        }
        Ok(Self { queues, parts: parts.len() })
    }

    fn run(&self) -> Result<()> {
        let mut ends = vec![0; self.queues.len()];
        for part in 0..self.parts {
            let queue = part % self.queues.len();
            if let (Some((copies, timeline)), Some(end)) = (self.queues.get(queue), ends.get_mut(queue)) {
                *end = copies.submit(part / self.queues.len(), None, timeline)?;
            }
        }
        self.queues.iter().zip(ends).try_for_each(|((_, timeline), end)| timeline.wait(end, true))
    }
}

/// A list of short pieces by each family, in one command.
fn pieces(adapter: &Adapter<'_>, device: &Device) -> Result<Vec<Row>> {
    let content = adapter.random(PIECES * SMALL);
    let ends = Ends::new(device, &content)?;
    let (host, there) = (&*ends.host.borrow(), &ends.device);
    let timeline = device.timeline()?;
    let mut recorded = Vec::new();
    for (queue, family) in ["universal", "transfer"].into_iter().enumerate() {
        recorded.push((family, device.pieces(queue, (host, there), SMALL)?));
    }
    let check = Copied { ends: &ends, up: true };
    let variants = recorded.iter().map(|(name, copies)| {
        let timed = microseconds(|| timeline.wait(copies.submit_all(&timeline)?, true));
        Variant::new(name, "one command with all copies", timed).verified_by(&check)
    });
    let id = format!("probe/pieces-{PIECES}/{SMALL}");
    let what = "pieces of host memory to the device, Vulkan by hand";
    adapter.compare((&id, what), ("us", PIECES * SMALL), 100, 1, variants.collect())
}

/// Short copies, each after the one before: all by the universal queue, and by it and another one in turn, which wait for each other.
fn in_turn(adapter: &Adapter<'_>, device: &Device) -> Result<Vec<Row>> {
    let content = adapter.random(SMALL);
    let ends = Ends::new(device, &content)?;
    let (host, there) = (&*ends.host.borrow(), &ends.device);
    let timeline = device.timeline()?;
    let check = Copied { ends: &ends, up: true };
    let many = [0, 1].map(|queue| {
        (0..CALLS).map(|_| device.copies(queue, (host, there), (SMALL, true))).collect::<Result<Vec<_>>>()
    });
    let [universal, transfer] = many;
    let (universal, transfer) = (universal?, transfer?);
    let chain = |is_alternating: bool| {
        let mut last = None;
        for index in 0..CALLS {
            let before = last.map(|last| (&timeline, last));
            let of = if is_alternating && index % 2 == 1 { &transfer } else { &universal };
            if let Some(copies) = of.get(index) {
                last = Some(copies.submit(0, before, &timeline)?);
            }
        }
        timeline.wait(last.unwrap_or(0), true)
    };
    let variants = vec![
        Variant::new("universal", "all by the universal queue", microseconds(|| chain(false)))
            .verified_by(&check),
        Variant::new("both", "by it and a queue that only copies in turn", microseconds(|| chain(true)))
            .verified_by(&check),
    ];
    let what = "32 copies of 4 KiB, each waits for the one before, Vulkan by hand";
    adapter.compare((&format!("probe/in-turn/{SMALL}"), what), ("us", CALLS * SMALL), 100, 1, variants)
}

/// One copy each way at once: by one queue, by one of each family, and by two that only copy.
fn both_ways(adapter: &Adapter<'_>, device: &Device, bytes: usize) -> Result<Vec<Row>> {
    let content = adapter.random(bytes);
    let (first, second) = (Ends::new(device, &content)?, Ends::new(device, &content)?);
    let ((from, up), (to, down)) =
        ((&*first.host.borrow(), &first.device), (&*second.host.borrow(), &second.device));
    let timelines = [device.timeline()?, device.timeline()?];
    let last = device.queues.len() - 1;
    let mut recorded = Vec::new();
    for (name, queues) in [("universal", [0, 0]), ("universal-and-transfer", [1, 0]), ("transfer", [1, last])]
    {
        let [up_queue, down_queue] = queues;
        let copies = [
            device.copies(up_queue, (from, up), (bytes, false))?,
            device.copies(down_queue, (down, to), (bytes, false))?,
        ];
        recorded.push((name, copies));
    }
    let run = |copies: &[Recorded<'_>; 2]| -> Result<()> {
        let [one, other] = &timelines;
        let (of_one, of_other) = (copies[0].submit_all(one)?, copies[1].submit_all(other)?);
        one.wait(of_one, true)?;
        other.wait(of_other, true)
    };
    let check = Copied { ends: &first, up: true };
    let variants = recorded.iter().map(|(name, copies)| {
        Variant::new(name, "one copy each way at once", rate(2 * bytes, || run(copies))).verified_by(&check)
    });
    let id = format!("probe/both/{bytes}");
    let what = "both ways at once, Vulkan by hand, up and down together";
    adapter.compare((&id, what), ("GB/s", bytes), 30, 1, variants.collect())
}

/// One short copy, waited for.
fn small(adapter: &Adapter<'_>, device: &Device) -> Result<Vec<Row>> {
    let content = adapter.random(SMALL);
    let ends = Ends::new(device, &content)?;
    let (host, there) = (&*ends.host.borrow(), &ends.device);
    let timeline = device.timeline()?;
    let mut recorded = Vec::new();
    for (queue, family) in ["universal", "transfer"].into_iter().enumerate() {
        for (name, is_asleep) in [("", true), ("-polled", false)] {
            let copies = device.copies(queue, (host, there), (SMALL, false))?;
            recorded.push((format!("{family}{name}"), is_asleep, copies));
        }
    }
    let check = Copied { ends: &ends, up: true };
    let run =
        |is_asleep: bool, copies: &Recorded<'_>| timeline.wait(copies.submit_all(&timeline)?, is_asleep);
    let variants = recorded.iter().map(|(name, is_asleep, copies)| {
        let timed = microseconds(|| run(*is_asleep, copies));
        Variant::new(name, "submitted and waited for", timed).verified_by(&check)
    });
    let id = format!("probe/up/{SMALL}");
    let what = "host memory to the device, Vulkan by hand";
    adapter.compare((&id, what), ("us", SMALL), 300, 1, variants.collect())
}

/// Memory of the host and of the device, and what one has to hold.
struct Ends<'a> {
    host: RefCell<Buffer<'a>>,
    device: Buffer<'a>,
    spare: RefCell<Buffer<'a>>,
    content: &'a [u8],
    of: &'a Device,
}

impl<'a> Ends<'a> {
    /// Both hold the contents.
    fn new(of: &'a Device, content: &'a [u8]) -> Result<Self> {
        let bytes = content.len();
        let ends = Self {
            host: RefCell::new(of.allocate(bytes, true)?),
            device: of.allocate(bytes, false)?,
            spare: RefCell::new(of.allocate(bytes, true)?),
            content,
            of,
        };
        ends.host.borrow_mut().host().copy_from_slice(content);
        ends.copy(&ends.host.borrow(), &ends.device)?;
        Ok(ends)
    }

    fn copy(&self, src: &Buffer<'_>, dst: &Buffer<'_>) -> Result<()> {
        let (timeline, copies) =
            (self.of.timeline()?, self.of.copies(0, (src, dst), (self.content.len(), false))?);
        timeline.wait(copies.submit_all(&timeline)?, true)
    }
}

/// What copies of one direction have to bring about.
struct Copied<'a, 'b> {
    ends: &'a Ends<'b>,
    up: bool,
}

impl Verify for Copied<'_, '_> {
    fn poison(&self) -> Result<()> {
        let ends = self.ends;
        ends.spare.borrow_mut().host().fill(POISON);
        if self.up {
            return ends.copy(&ends.spare.borrow(), &ends.device);
        }
        ends.copy(&ends.spare.borrow(), &ends.device)?;
        ends.copy(&ends.device, &ends.host.borrow())?;
        ends.spare.borrow_mut().host().copy_from_slice(ends.content);
        ends.copy(&ends.spare.borrow(), &ends.device)
    }

    fn check(&self) -> Result<()> {
        let ends = self.ends;
        let from = if self.up { &ends.device } else { &*ends.host.borrow() };
        ends.copy(from, &ends.spare.borrow())?;
        ensure!(ends.spare.borrow_mut().host() == ends.content, "the bytes of Vulkan's copy differ");
        Ok(())
    }
}
