//! A file to one device and to two at once: for the first time, with nothing pinned, and later.

use std::{
    cell::RefCell,
    fs::{self, File},
    path::PathBuf,
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use transload::{
    DeviceId, MemoryKind, Place, Runtime,
    load::{LoadOptions, LoadedModel},
};

use super::{
    by_hand, finish, runtime,
    threads::{Threads, Work},
};
use crate::{
    address::Address,
    comparison::{Comparison, Fixture, Variant, Verify},
    content::Content,
    cuda,
    memory::Memory,
    raw_memory::RawMemory,
    row::{Goal, Row},
};

const BYTES: usize = 2 << 30;

/// A file, deleted with this.
struct InMemory {
    path: PathBuf,
    content: Vec<u8>,
}

impl InMemory {
    fn new(bytes: usize) -> Result<Self> {
        let folder = PathBuf::from("/dev/shm");
        let folder = if folder.is_dir() { folder } else { std::env::temp_dir() };
        let content = Content::new(bytes, 0x10AD);
        let file = Self {
            path: folder.join(format!("transload-bench-{}", std::process::id())),
            content: content.part(0, bytes).to_vec(),
        };
        fs::write(&file.path, &file.content).with_context(|| format!("writing {}", file.path.display()))?;
        Ok(file)
    }

    fn open(&self) -> Result<File> {
        Ok(File::open(&self.path)?)
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _left_behind = fs::remove_file(&self.path);
    }
}

/// What our loads left on the devices.
struct Loaded<'a> {
    fixture: &'a Fixture<'a>,
    file: &'a InMemory,
    runtime: Runtime,
    models: RefCell<Vec<LoadedModel>>,
}

impl Loaded<'_> {
    /// Loads to all devices at once. Returns the rate of all bytes in GB/s.
    fn load(&self, devices: &[DeviceId]) -> Result<f64> {
        self.models.borrow_mut().clear();
        let (runtime, path) = (&self.runtime, &self.file.path);
        let load =
            |device| runtime.load(path, &LoadOptions::new(Place::new(device, MemoryKind::Device)).raw(true));
        let begun = Instant::now();
        let models: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = devices.iter().map(|device| scope.spawn(move || load(*device))).collect();
            threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
        });
        let seconds = begun.elapsed().as_secs_f64();
        for model in models {
            self.models.borrow_mut().push(model.map_err(|_| anyhow!("a load panicked"))??);
        }
        Ok((self.file.content.len() * devices.len()) as f64 / seconds / 1e9)
    }
}

impl Verify for Loaded<'_> {
    /// The next model may get the memory of the last one.
    fn poison(&self) -> Result<()> {
        for tensor in self.models.borrow().iter().flat_map(LoadedModel::tensors) {
            let array = tensor.array::<u8>()?;
            array.raw().wait_idle()?;
            let _bound = self.fixture.context_of(array.raw().place().device)?.enter()?;
            Memory::Ours(array.raw().clone()).poison()?;
        }
        self.models.borrow_mut().clear();
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let models = self.models.borrow();
        ensure!(!models.is_empty(), "nothing was loaded");
        models.iter().flat_map(LoadedModel::tensors).try_for_each(|tensor| {
            let bytes = self.runtime.download(&tensor.array::<u8>()?).wait()?;
            ensure!(*bytes == *self.file.content, "the bytes differ");
            Ok(())
        })
    }
}

/// The memory of the reference on each device.
struct ByHand<'a> {
    file: &'a InMemory,
    memory: Vec<Memory>,
}

impl ByHand<'_> {
    /// Loads to all devices at once, by the threads of each. Returns the rate of all bytes in GB/s.
    fn load(&self, threads: &[Threads]) -> Result<f64> {
        let bytes = self.file.content.len();
        let begun = Instant::now();
        for (threads, memory) in threads.iter().zip(&self.memory) {
            let Address::Device(dst) = memory.address()? else { bail!("the memory is not the device's") };
            // SAFETY: the memory has that many bytes, and only this uses it now.
            unsafe { threads.begin(Work::Up(self.file.open()?, dst), bytes, usize::MAX) }?;
        }
        threads.iter().try_for_each(Threads::finish)?;
        let seconds = begun.elapsed().as_secs_f64();
        Ok((bytes * threads.len()) as f64 / seconds / 1e9)
    }
}

impl Verify for ByHand<'_> {
    fn poison(&self) -> Result<()> {
        self.memory.iter().try_for_each(Memory::poison)
    }

    fn check(&self) -> Result<()> {
        self.memory.iter().try_for_each(|memory| memory.compare(0, &self.file.content))
    }
}

pub(super) fn one(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    to(fixture, &[fixture.device.id()], ("one", 0.96), [Some(40.0), Some(51.0)])
}

pub(super) fn two(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let ordinals = cuda::pair(fixture.device.ordinal())?;
    let devices: Vec<_> = ordinals.into_iter().map(DeviceId::Cuda).collect();
    if devices.len() < 2 { Ok(Vec::new()) } else { to(fixture, &devices, ("two", 0.9), [None, Some(85.0)]) }
}

/// The goals are the least share of the reference's rate, and GB/s for the first time and later.
fn to(
    fixture: &Fixture<'_>,
    devices: &[DeviceId],
    (name, least): (&str, f64),
    goals: [Option<f64>; 2],
) -> Result<Vec<Row>> {
    let [at_first, and_later] = goals.map(|goal| goal.map(Goal::AtLeast));
    let file = InMemory::new(fixture.bytes(BYTES))?;
    let bytes = file.content.len();
    let ours = Loaded { fixture, file: &file, runtime: runtime(fixture)?, models: RefCell::default() };
    let mut memory = Vec::new();
    for device in devices {
        let _bound = fixture.context_of(*device)?.enter()?;
        memory.push(Memory::Cuda(RawMemory::new(MemoryKind::Device, bytes)?));
    }
    let theirs = ByHand { file: &file, memory };
    let (count, most) = by_hand();
    // The slots of all devices share the cache.
    let (count, slot) =
        (count.div_ceil(devices.len()), if devices.len() > 1 { most.min(2 << 20) } else { most });
    let start = || -> Result<Vec<Threads>> {
        devices.iter().map(|device| Threads::start(fixture.context_of(*device)?, count, slot)).collect()
    };
    let threads = start()?;
    let by_hand = format!("{count} threads with 2 slots of {slot} bytes for each device");
    let comparison = |when: &str, good| Comparison {
        id: format!("{name}/{when}"),
        what: format!("a file of {bytes} bytes in memory to {name} at once, {when}"),
        unit: "GB/s",
        bytes: (bytes * devices.len()) as u64,
        repetitions: fixture.repetitions(good),
    };
    let later = vec![
        Variant::new("raw", &by_hand, || theirs.load(&threads)).verified_by(&theirs),
        Variant::new("load", "Runtime::load", || ours.load(devices))
            .goal(Goal::RatioAtLeast(least))
            .verified_by(&ours),
    ];
    let later = comparison("later", 30).rows(fixture, later)?;
    let mut rows: Vec<_> = later.into_iter().map(|row| row.with_goal(and_later)).collect();
    drop(threads);
    let first = vec![
        Variant::new("raw", &format!("{by_hand}, started and pinned"), || {
            let begun = Instant::now();
            let threads = start()?;
            theirs.load(&threads)?;
            Ok((bytes * devices.len()) as f64 / begun.elapsed().as_secs_f64() / 1e9)
        })
        .verified_by(&theirs),
        Variant::new("load", "Runtime::load, nothing pinned before", || {
            ours.models.borrow_mut().clear();
            ours.runtime.drain()?;
            ours.load(devices)
        })
        .goal(Goal::RatioAtLeast(1.0))
        .verified_by(&ours),
    ];
    let first = comparison("first", 10).rows(fixture, first)?;
    rows.extend(first.into_iter().map(|row| row.with_goal(at_first)));
    ours.models.borrow_mut().clear();
    finish(&ours.runtime)?;
    Ok(rows)
}
