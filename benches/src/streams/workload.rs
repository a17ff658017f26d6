//! A load that can be run again: what it takes on a pool as it is, measured by events.

use std::{fmt, time::Duration};

use transload_core::{
    Error, ErrorKind, MemoryKind, Operation, RawBuffer, Result, StreamPriority, Timing, WorkloadType, submit,
};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{AdvancedStreamPool, CudaEvent, CudaKernel, CudaModule, CudaStream, LaunchConfig};

/// Every workload, in the order of its number.
const WORKLOADS: [WorkloadType; 4] =
    [WorkloadType::Compute, WorkloadType::Memory, WorkloadType::Mixed, WorkloadType::Coordination];

/// What one item of a load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkloadOp {
    /// So many kernels, one after the other, that each copy so many bytes of device memory.
    Kernels {
        /// How many.
        times: usize,
        /// Bytes of each; at least 1.
        bytes: usize,
    },
    /// So many kernels, one after the other, that each copy so many bytes of device memory by one block of 256 threads: long
    /// ones that leave nearly all of the device to others beside them.
    NarrowKernels {
        /// How many.
        times: usize,
        /// Bytes of each; at least 1.
        bytes: usize,
    },
    /// A copy of so many bytes, at least 1, from pinned memory to the device.
    Upload {
        /// Bytes.
        bytes: usize,
    },
    /// A copy of so many bytes, at least 1, from the device to pinned memory.
    Download {
        /// Bytes.
        bytes: usize,
    },
}

impl WorkloadOp {
    fn operations(self) -> usize {
        match self {
            Self::Kernels { times, .. } | Self::NarrowKernels { times, .. } => times,
            Self::Upload { .. } | Self::Download { .. } => 1,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Kernels { bytes, .. } | Self::NarrowKernels { bytes, .. } => bytes,
            Self::Upload { bytes } | Self::Download { bytes } => bytes,
        }
    }
}

/// One piece of work that a stream is leased for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkloadItem {
    /// Its priority.
    pub(crate) priority: StreamPriority,
    /// What it counts as.
    pub(crate) workload: WorkloadType,
    /// What it does.
    pub(crate) work: WorkloadOp,
}

/// Work in the order in which it comes. Items do not depend on each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Workload {
    /// The items.
    pub(crate) items: Vec<WorkloadItem>,
}

impl Workload {
    /// `items` times two kernels that are all alike and run side by side where the streams let them: each is long enough that
    /// their number, and not how fast launches follow each other, decides how long the load takes.
    #[must_use]
    pub(crate) fn of_equal_kernels(items: usize) -> Self {
        let item = WorkloadItem {
            priority: StreamPriority::Normal,
            workload: WorkloadType::Compute,
            work: WorkloadOp::NarrowKernels { times: 2, bytes: 1 << 20 },
        };
        Self { items: vec![item; items] }
    }

    /// `steps` times 48 kernels in a row and three small copies, as when batches are fed to a model.
    #[must_use]
    pub(crate) fn of_kernels_and_copies(steps: usize) -> Self {
        let item = |workload, work| WorkloadItem { priority: StreamPriority::Normal, workload, work };
        let step = [
            item(WorkloadType::Compute, WorkloadOp::Kernels { times: 48, bytes: 64 << 10 }),
            item(WorkloadType::Memory, WorkloadOp::Upload { bytes: 16 << 10 }),
            item(WorkloadType::Memory, WorkloadOp::Upload { bytes: 16 << 10 }),
            item(WorkloadType::Memory, WorkloadOp::Download { bytes: 16 << 10 }),
        ];
        Self { items: step.into_iter().cycle().take(steps.saturating_mul(step.len())).collect() }
    }
}

/// What a replay took on the device, by its clock: all items were enqueued before the first began.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkloadRun {
    /// From the beginning to the end of the last item.
    pub(crate) makespan: Duration,
    /// From the beginning to an item's end, on average over all.
    pub(crate) mean: Duration,
    /// Likewise over the items of each workload that there was.
    pub(crate) completion: Vec<(WorkloadType, Duration)>,
}

impl WorkloadRun {
    /// From the beginning to an item's end, on average over those of a workload.
    #[must_use]
    pub(crate) fn mean_completion(&self, workload: WorkloadType) -> Option<Duration> {
        self.completion.iter().find(|(of, _)| *of == workload).map(|(_, mean)| *mean)
    }
}

impl fmt::Display for WorkloadRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all done after {:.1?}, each on average after {:.1?}", self.makespan, self.mean)?;
        for (workload, mean) in &self.completion {
            write!(f, ", {workload:?} on average after {mean:.1?}")?;
        }
        Ok(())
    }
}

/// Memory of a replay. Every item writes bytes of its own, so that nothing but the streams orders them.
struct Buffers {
    src: RawBuffer,
    dst: RawBuffer,
    pinned_src: RawBuffer,
    pinned_dst: RawBuffer,
    /// Where the load has narrow kernels.
    narrow: Option<CudaKernel>,
}

/// A running item.
struct Running {
    workload: WorkloadType,
    start: CudaEvent,
    end: CudaEvent,
}

/// Runs a load on a pool and measures it: for each item a stream is leased, given the work, and given back. The device is held
/// up until all is enqueued, so that the host's speed plays no part. What each item took is recorded as by
/// [`AdvancedStreamPool::record_workload_completion`]. Blocks until all is done.
///
/// # Errors
/// `InvalidArgument` for an empty load or item, or one whose bytes overflow; those of memory and of the driver.
pub(crate) fn run_workload(
    pool: &AdvancedStreamPool,
    device: &CudaDevice,
    memory: &CudaMemoryManager,
    load: &Workload,
) -> Result<WorkloadRun> {
    let narrow = load.items.iter().any(|item| matches!(item.work, WorkloadOp::NarrowKernels { .. }));
    // The kernel that copies in place, for launches of a shape of one's own.
    let narrow = narrow.then(|| CudaModule::from_ptx(device, COPY)?.kernel(COPY_ENTRY)).transpose()?;
    let buffers = Buffers::for_load(memory, load, narrow)?;
    pool.prepare_in_place()?;
    let gate = CudaStream::new(device)?;
    buffers.warm_up(&gate)?;
    let events = |_: &WorkloadItem| Ok((CudaEvent::new(device)?, CudaEvent::new(device)?));
    let events: Vec<_> = load.items.iter().map(events).collect::<Result<_>>()?;
    let begin = CudaEvent::new(device)?;
    let host = memory.allocate(MemoryKind::Pinned, HELD_BYTES)?;
    let held = memory.allocate(MemoryKind::Device, HELD_BYTES)?;
    let operations = load.items.iter().fold(0_usize, |sum, item| sum.saturating_add(item.work.operations()));
    for _ in 0..operations.div_ceil(16).saturating_add(48) {
        submit(&gate, &Operation::Copy { src: &host, dst: &held }, Timing::Off)?;
    }
    begin.record(&gate)?;
    let mut offset = (0, 0);
    let mut running = Vec::with_capacity(load.items.len());
    for (item, (start, end)) in load.items.iter().zip(events) {
        let stream = pool.lease(item.priority, item.workload)?;
        stream.wait_event(&begin)?;
        start.record(&stream)?;
        buffers.enqueue(&stream, item.work, &mut offset)?;
        end.record(&stream)?;
        running.push(Running { workload: item.workload, start, end });
    }
    let measured = measure(pool, &begin, &running);
    // Pinned memory is freed by waiting for the device. In the middle of the next replay that would let go what waits for its
    // beginning, a part of the load before the rest.
    drop((running, buffers, host, held));
    memory.drain()?;
    measured
}

fn measure(pool: &AdvancedStreamPool, begin: &CudaEvent, running: &[Running]) -> Result<WorkloadRun> {
    let mut makespan = Duration::ZERO;
    let mut sums = [(Duration::ZERO, 0_u32); WORKLOADS.len()];
    for Running { workload, start, end } in running {
        end.synchronize()?;
        pool.record_workload_completion(*workload, end.elapsed_since(start)?);
        let done = end.elapsed_since(begin)?;
        makespan = makespan.max(done);
        let (sum, count) = &mut sums[*workload as usize];
        *sum = sum.saturating_add(done);
        *count += 1;
    }
    // So that the pool knows that its streams are idle.
    pool.synchronize()?;
    let mean = |workload: WorkloadType| {
        let (sum, count) = sums[workload as usize];
        sum.checked_div(count).map(|mean| (workload, mean))
    };
    let all = sums
        .iter()
        .fold((Duration::ZERO, 0), |(sum, count), (of, more)| (sum.saturating_add(*of), count + more));
    let overall = all.0.checked_div(all.1).unwrap_or(Duration::ZERO);
    Ok(WorkloadRun { makespan, mean: overall, completion: WORKLOADS.into_iter().filter_map(mean).collect() })
}

/// What is copied again and again to hold the device up: some 80 µs on a link of 55 GB/s, longer than it takes to enqueue
/// 16 operations.
const HELD_BYTES: usize = 4 << 20;

const COPY: &str = include_str!("../../../crates/streams/src/submit/kernels/copy.ptx");
const COPY_ENTRY: &str = "transload_copy";
/// Threads of the one block of a narrow kernel.
const NARROW_THREADS: u32 = 256;

impl Buffers {
    fn for_load(memory: &CudaMemoryManager, load: &Workload, narrow: Option<CudaKernel>) -> Result<Self> {
        let invalid = |text| Error::new(ErrorKind::InvalidArgument, text);
        let bytes = || load.items.iter().map(|item| item.work.bytes());
        let largest = bytes().max().ok_or_else(|| invalid("a load needs at least 1 item"))?;
        if bytes().any(|bytes| bytes == 0) {
            return Err(invalid("an item of a load needs at least 1 byte"));
        }
        let total = bytes().try_fold(0, usize::checked_add);
        let total = total.ok_or_else(|| invalid("a load's bytes must fit the address space"))?;
        let down = load.items.iter().filter(|item| matches!(item.work, WorkloadOp::Download { .. }));
        let down: usize = down.map(|item| item.work.bytes()).sum();
        Ok(Self {
            src: memory.allocate(MemoryKind::Device, largest)?,
            dst: memory.allocate(MemoryKind::Device, total)?,
            pinned_src: memory.allocate(MemoryKind::Pinned, largest)?,
            pinned_dst: memory.allocate(MemoryKind::Pinned, down.max(1))?,
            narrow,
        })
    }

    /// A driver that loads kernels when they are first launched does so now.
    fn warm_up(&self, stream: &CudaStream) -> Result<()> {
        self.enqueue_narrow(stream, &self.src.slice(..1)?, &self.dst.slice(..1)?)?;
        stream.synchronize()
    }

    /// Copies by one block.
    fn enqueue_narrow(&self, stream: &CudaStream, src: &RawBuffer, dst: &RawBuffer) -> Result<()> {
        let Some(kernel) = &self.narrow else { return Ok(()) };
        let launch = kernel.launch(LaunchConfig::linear(1, NARROW_THREADS));
        let launch = launch.writes(dst).reads(src).arg(src.len() as u64);
        // SAFETY: these are the kernel's parameters: destination, source and their bytes, both of the same length. It touches
        // no other byte (kernels/copy.cu), and has no variables of its own.
        unsafe { launch.enqueue(stream) }.map(drop)
    }

    /// Each kind of destination is used from its beginning on; `offset` counts bytes of both.
    fn enqueue(&self, stream: &CudaStream, work: WorkloadOp, offset: &mut (usize, usize)) -> Result<()> {
        let bytes = work.bytes();
        let (there, host) = (offset.0, offset.1);
        match work {
            WorkloadOp::Kernels { times, .. } => {
                let (src, dst) = (self.src.slice(..bytes)?, self.dst.slice(there..there + bytes)?);
                for _ in 0..times {
                    submit(stream, &Operation::CopyInPlace { src: &src, dst: &dst }, Timing::Off)?;
                }
                offset.0 += bytes;
            }
            WorkloadOp::NarrowKernels { times, .. } => {
                let (src, dst) = (self.src.slice(..bytes)?, self.dst.slice(there..there + bytes)?);
                for _ in 0..times {
                    self.enqueue_narrow(stream, &src, &dst)?;
                }
                offset.0 += bytes;
            }
            WorkloadOp::Upload { .. } => {
                let (src, dst) = (self.pinned_src.slice(..bytes)?, self.dst.slice(there..there + bytes)?);
                submit(stream, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?;
                offset.0 += bytes;
            }
            WorkloadOp::Download { .. } => {
                let (src, dst) = (self.src.slice(..bytes)?, self.pinned_dst.slice(host..host + bytes)?);
                submit(stream, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?;
                offset.1 += bytes;
            }
        }
        Ok(())
    }
}
