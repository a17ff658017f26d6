//! The same pageable array uploaded again and again, next to staging alone and to registering by hand at once.

use std::{cell::RefCell, time::Instant};

use anyhow::{Result, bail};
use transload::{Array, MemoryKind, Runtime};
use transload_cuda_sys::{check, ffi};

use super::{builder, finish};
use crate::{
    address::Address,
    comparison::{Comparison, Fixture, Variant, Verify},
    content::Content,
    memory::Memory,
    raw_memory::RawMemory,
    reference::RawQueue,
    row::{Row, Summary},
};

const MIB: usize = 1 << 20;
const SIZES: [usize; 2] = [64 * MIB, 256 * MIB];
const COPIES: usize = 20;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for bytes in SIZES {
        rows.extend(of_size(fixture, fixture.bytes(bytes))?);
    }
    Ok(rows)
}

/// Ours, with or without registration.
struct Ours<'a> {
    runtime: Runtime,
    there: Array<u8>,
    content: &'a [u8],
    /// Rates of the first copy and of the last one, in GB/s, of each run.
    ends: RefCell<(Vec<f64>, Vec<f64>)>,
}

impl<'a> Ours<'a> {
    fn new(fixture: &Fixture<'_>, content: &'a [u8], registers: bool) -> Result<Self> {
        let runtime = builder(fixture)?.registration(registers).discover()?;
        let there = runtime.alloc(fixture.device.id(), MemoryKind::Device, content.len())?;
        Ok(Self { runtime, there, content, ends: RefCell::default() })
    }

    /// Uploads a new array several times and frees it. Returns the rate in GB/s.
    fn run(&self) -> Result<f64> {
        let array = self.runtime.host(self.content.to_vec())?;
        let bytes = self.content.len() as f64;
        // The drain below gave the staging buffers back: making them is no part of what is compared.
        self.runtime.prepare(array.place(), self.there.place())?;
        let begun = Instant::now();
        for copy in 0..COPIES {
            let this = Instant::now();
            self.runtime.copy(&array, &self.there).wait()?;
            let (rate, mut ends) = (bytes / this.elapsed().as_secs_f64() / 1e9, self.ends.borrow_mut());
            match copy {
                0 => ends.0.push(rate),
                _ if copy == COPIES - 1 => ends.1.push(rate),
                _ => {}
            }
        }
        drop(array);
        self.runtime.drain()?;
        Ok(COPIES as f64 * bytes / begun.elapsed().as_secs_f64() / 1e9)
    }

    fn end_rows(&self, fixture: &Fixture<'_>, name: &str) -> Vec<Row> {
        let ends = self.ends.borrow();
        let row = |(when, rates): (&str, &Vec<f64>)| {
            let id = format!("repeated/{}/{name}-{when}", self.content.len());
            let what = format!("the {when} of {COPIES} uploads of the same array");
            fixture.row(&id, &what, "Runtime::copy", "GB/s", Summary::of(rates))
        };
        [("first", &ends.0), ("last", &ends.1)].map(row).into()
    }
}

impl Verify for Ours<'_> {
    fn poison(&self) -> Result<()> {
        Memory::Ours(self.there.raw().clone()).poison()
    }

    fn check(&self) -> Result<()> {
        Memory::Ours(self.there.raw().clone()).compare(0, self.content)
    }
}

/// By hand: registered at once.
struct ByHand<'a> {
    content: &'a [u8],
    there: Memory,
}

impl ByHand<'_> {
    fn run(&self, queue: &RawQueue) -> Result<f64> {
        let (array, bytes) = (self.content.to_vec(), self.content.len());
        let Address::Device(to) = self.there.address()? else { bail!("the memory is not the device's") };
        let begun = Instant::now();
        let start = array.as_ptr().cast_mut().cast();
        // SAFETY: the array lives until it is unregistered, with nothing in flight; the destination has as many bytes.
        unsafe {
            check("cuMemHostRegister", ffi::cuMemHostRegister_v2(start, bytes, 1))?;
            for _ in 0..COPIES {
                queue.copy_up(to, start, bytes)?;
                queue.finish()?;
            }
            check("cuMemHostUnregister", ffi::cuMemHostUnregister(start))?;
        }
        Ok((COPIES * bytes) as f64 / begun.elapsed().as_secs_f64() / 1e9)
    }
}

impl Verify for ByHand<'_> {
    fn poison(&self) -> Result<()> {
        self.there.poison()
    }

    fn check(&self) -> Result<()> {
        self.there.compare(0, self.content)
    }
}

fn of_size(fixture: &Fixture<'_>, bytes: usize) -> Result<Vec<Row>> {
    let content = Content::new(bytes, 0x4E9E);
    let content = content.part(3, bytes);
    let _bound = fixture.context()?.enter()?;
    let by_hand = ByHand { content, there: Memory::Cuda(RawMemory::new(MemoryKind::Device, bytes)?) };
    let queue = RawQueue::new(0)?;
    let (staged, registered) = (Ours::new(fixture, content, false)?, Ours::new(fixture, content, true)?);
    let comparison = Comparison {
        id: format!("repeated/{bytes}"),
        what: format!("the same array of {bytes} bytes uploaded {COPIES} times, and freed"),
        unit: "GB/s",
        bytes: (COPIES * bytes) as u64,
        repetitions: fixture.repetitions(8),
    };
    let variants = vec![
        Variant::new("raw", "cuMemHostRegister at once, then raw copies", || by_hand.run(&queue))
            .verified_by(&by_hand),
        Variant::new("staged", "Runtime::copy without registration", || staged.run()).verified_by(&staged),
        Variant::new("registered", "Runtime::copy", || registered.run()).verified_by(&registered),
    ];
    let mut rows = comparison.rows(fixture, variants)?;
    for (name, ours) in [("staged", staged), ("registered", registered)] {
        rows.extend(ours.end_rows(fixture, name));
        let Ours { runtime, there, .. } = ours;
        drop(there);
        finish(&runtime)?;
    }
    Ok(rows)
}
