//! Random work of one thread.

use std::{
    future::Future as _,
    pin::pin,
    task::{Context, Poll, Waker},
};

use transload::{
    DeviceId, ErrorKind, MemoryKind, Place, RawBuffer, StreamPriority, Transfer, TransferMethod,
    TransferOptions, WorkloadType,
    backend::{Operation, Pattern, Timing, submit},
};

use crate::{
    Machine,
    cells::{CELL, Cells, Tags, is_busy},
    owned::Owned,
    random::Random,
    watchdog::Watch,
};

/// Transfers whose handles are kept.
const KEPT: usize = 48;

#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) operations: u64,
    /// Number of busy shared cells, where another thread had a view open.
    pub(crate) busy: u64,
}

pub(crate) struct Worker<'a> {
    machine: &'a Machine,
    cells: &'a Cells,
    random: Random,
    watch: Watch,
    owned: Vec<Owned>,
    scratch: RawBuffer,
    tags: Tags,
    kept: Vec<Transfer>,
    counts: Counts,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(machine: &'a Machine, cells: &'a Cells, seed: u64, thread: u64, watch: Watch) -> Self {
        let mut random = Random::new(seed, thread + 1);
        let scratch = Owned::scratch(machine);
        // Two of each, so that bytes also move within one kind of memory.
        let kinds = machine.kinds.iter().chain(&machine.kinds);
        let owned = kinds.map(|from| Owned::new(machine, *from, &mut random, &scratch)).collect();
        let (tags, kept) = (Tags::new(thread), Vec::new());
        Self { machine, cells, random, watch, owned, scratch, tags, kept, counts: Counts::default() }
    }

    /// Runs this many operations, then verifies every byte.
    pub(crate) fn run(mut self, operations: u64) -> Counts {
        for number in 0..operations {
            self.counts.operations += 1;
            match self.random.below(20) {
                0..8 => self.transfer(number),
                8 => self.awaited(number),
                9 => self.polled_once(number),
                10..12 => self.verify(number),
                12 => self.write(number),
                13 => self.fill(number),
                14 => self.replace(number),
                15 => self.release(number),
                16 => self.look_at_cell(number),
                17 => self.read_cell(number),
                _ => self.write_cell(number),
            }
        }
        self.watch.stand(operations, "waiting for what is kept", String::new());
        for transfer in std::mem::take(&mut self.kept) {
            transfer.wait().unwrap();
        }
        for owned in &self.owned {
            self.watch.stand(operations, "verifying all of", format!("{:?}", owned.from));
            owned.verify(self.machine, 0..owned.model.len(), &self.scratch);
        }
        self.watch.stand(operations, "ended", String::new());
        self.counts
    }

    /// Random priority, workload and timing; sometimes a method that applies.
    fn options(&mut self, src: &RawBuffer, dst: &RawBuffer) -> TransferOptions {
        let priority =
            *self.random.pick(&[StreamPriority::High, StreamPriority::Normal, StreamPriority::Low]);
        let mut options = TransferOptions::new().priority(priority);
        if self.random.one_in(4) {
            options = options.workload(*self.random.pick(&[
                WorkloadType::Compute,
                WorkloadType::Memory,
                WorkloadType::Mixed,
                WorkloadType::Coordination,
            ]));
        }
        if self.random.one_in(8) {
            options = options.timing(Timing::Measured);
        }
        let only = options.only(*self.random.pick(&TransferMethod::ALL));
        let plan = |only| self.machine.manager.plan(src.place(), dst.place(), src.len() as u64, only);
        if self.random.one_in(3) && plan(&only).is_ok() { only } else { options }
    }

    /// Two ranges of equal length that do not overlap, in one buffer or two: indices and offsets.
    fn ends(&mut self) -> (usize, usize, usize, usize, usize) {
        let (src, dst) = (self.random.below(self.owned.len()), self.random.below(self.owned.len()));
        let (from, to) = (self.owned[src].model.len(), self.owned[dst].model.len());
        if src == dst {
            let half = from / 2;
            let length = self.random.length(half.max(1));
            let (first, second) = (0, from - length);
            if length > half {
                // One byte: use the next buffer's first byte instead.
                let dst = (dst + 1) % self.owned.len();
                return (src, 0, dst, 0, 1);
            }
            return if self.random.one_in(2) {
                (src, first, dst, second, length)
            } else {
                (src, second, dst, first, length)
            };
        }
        let length = self.random.length(from.min(to));
        let (at, there) = (self.random.below(from - length + 1), self.random.below(to - length + 1));
        (src, at, dst, there, length)
    }

    /// Applies the submitted operation to the model.
    fn moved(&mut self, (src, at, dst, there, length): (usize, usize, usize, usize, usize)) {
        let bytes = self.owned[src].model[at..at + length].to_vec();
        self.owned[dst].model[there..there + length].copy_from_slice(&bytes);
    }

    fn parts(
        &self,
        (src, at, dst, there, length): (usize, usize, usize, usize, usize),
    ) -> (RawBuffer, RawBuffer) {
        let part = |which: usize, at: usize| self.owned[which].buffer.slice(at..at + length).unwrap();
        (part(src, at), part(dst, there))
    }

    fn say(
        &self,
        number: u64,
        what: &'static str,
        src: &RawBuffer,
        dst: &RawBuffer,
        options: &TransferOptions,
    ) {
        let (from, to, bytes) = (src.place(), dst.place(), src.len());
        self.watch.stand(number, what, format!("{bytes} bytes from {from} to {to}, {options:?}"));
    }

    fn transfer(&mut self, number: u64) {
        let ends = self.ends();
        let (src, dst) = self.parts(ends);
        let options = self.options(&src, &dst);
        self.say(number, "transferring", &src, &dst, &options);
        let mut transfer = self.machine.manager.copy(&src, &dst).options(options).submit();
        if transfer.refusal().is_some_and(|error| error.kind() == ErrorKind::Unsupported) {
            // The planned method turned out to be impossible; let the manager choose.
            transfer = self.machine.manager.copy(&src, &dst).submit();
        }
        assert!(transfer.refusal().is_none(), "{:?}", transfer.refusal());
        self.moved(ends);
        self.keep(number, transfer);
    }

    /// Waits for a transfer, drops it or keeps it.
    fn keep(&mut self, number: u64, transfer: Transfer) {
        match self.random.below(4) {
            0 => drop(transfer),
            1 => {
                self.watch.stand(number, "waiting", format!("{transfer:?}"));
                transfer.wait().unwrap();
            }
            _ => self.kept.push(transfer),
        }
        if self.kept.len() > KEPT {
            self.release(number);
        }
    }

    fn awaited(&mut self, number: u64) {
        let ends = self.ends();
        let (src, dst) = self.parts(ends);
        let options = self.options(&src, &dst);
        self.say(number, "awaiting", &src, &dst, &options);
        let manager = &self.machine.manager;
        let outcome = pollster::block_on(manager.copy(&src, &dst).options(options));
        match outcome {
            Ok(report) => assert_eq!(report.bytes, src.len() as u64),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                manager.copy(&src, &dst).wait().unwrap();
            }
        }
        self.moved(ends);
    }

    /// Submits without blocking, like a task; gives up if that would block, with no effect unless a thread of the executor
    /// is submitting it.
    fn polled_once(&mut self, number: u64) {
        let ends = self.ends();
        let (src, dst) = self.parts(ends);
        let options = TransferOptions::new();
        self.say(number, "polling once", &src, &dst, &options);
        let manager = &self.machine.manager;
        let pageable = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
        if [src.place(), dst.place()].contains(&pageable) || src.len() > 64 << 10 {
            return self.awaited(number);
        }
        manager.prepare(src.place(), dst.place(), &options).unwrap();
        let submitting = pin!(manager.copy(&src, &dst).options(options).submit_async());
        let polled = submitting.poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(transfer) = polled {
            assert!(transfer.refusal().is_none(), "{:?}", transfer.refusal());
            self.moved(ends);
            self.keep(number, transfer);
        }
    }

    fn verify(&mut self, number: u64) {
        let which = self.random.below(self.owned.len());
        let range = self.owned[which].range(&mut self.random);
        self.watch.stand(number, "verifying", format!("{range:?} of {:?}", self.owned[which].from));
        self.owned[which].verify(self.machine, range, &self.scratch);
    }

    /// Writes a range by the host.
    fn write(&mut self, number: u64) {
        let which = self.random.below(self.owned.len());
        let owned = &mut self.owned[which];
        if owned.buffer.host_address().is_none() {
            return;
        }
        let range = owned.range(&mut self.random);
        self.watch.stand(number, "writing", format!("{range:?} of {:?}", owned.from));
        self.random.fill(&mut owned.model[range.clone()]);
        owned.buffer.slice(range.clone()).unwrap().write().unwrap().copy_from_slice(&owned.model[range]);
    }

    fn fill(&mut self, number: u64) {
        let which = self.random.below(self.owned.len());
        let (device, _) = self.owned[which].from;
        let owned = &mut self.owned[which];
        let (range, byte) = (owned.range(&mut self.random), self.random.next() as u8);
        self.watch.stand(number, "filling", format!("{range:?} of {:?}", owned.from));
        let backend = self.machine.manager.backend(device).unwrap();
        let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
        let part = owned.buffer.slice(range.clone()).unwrap();
        let fill = Operation::Fill { dst: &part, pattern: Pattern::U8(byte) };
        match submit(&*queue, &fill, Timing::Off) {
            Ok(_fence) => owned.model[range].fill(byte),
            // Not every queue fills every kind of host memory.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        }
    }

    /// Replaces a buffer that may still be in flight.
    fn replace(&mut self, number: u64) {
        let which = self.random.below(self.owned.len());
        let from = self.owned[which].from;
        self.watch.stand(number, "replacing a buffer of", format!("{from:?}"));
        self.owned[which] = Owned::new(self.machine, from, &mut self.random, &self.scratch);
    }

    /// Finishes some of the kept transfers: by waiting, by dropping, or by one poll and dropping.
    fn release(&mut self, number: u64) {
        while !self.kept.is_empty() && !self.random.one_in(8) {
            let transfer = self.kept.swap_remove(self.random.below(self.kept.len()));
            self.watch.stand(number, "releasing", format!("{transfer:?}"));
            match self.random.below(3) {
                0 => drop(transfer),
                1 => drop(transfer.wait().unwrap()),
                _ => {
                    let polled = pin!(transfer).poll(&mut Context::from_waker(Waker::noop()));
                    assert!(!matches!(polled, Poll::Ready(Err(_))), "{polled:?}");
                }
            }
        }
    }

    fn write_cell(&mut self, number: u64) {
        let (at, part) = (self.cells.any(&mut self.random), self.scratch.slice(..CELL).unwrap());
        let cell = self.cells.cell(at);
        let (tag, bytes) = self.tags.next();
        let options = self.options(&part, &cell);
        self.say(number, "writing a cell", &part, &cell, &options);
        part.write().unwrap().copy_from_slice(&bytes);
        let transfer = self.machine.manager.copy(&part, &cell).options(options).submit();
        match transfer.refusal() {
            None => {
                self.tags.wrote(at, tag);
                self.keep(number, transfer);
            }
            Some(error) => {
                let is_allowed = matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unsupported);
                assert!(is_allowed, "{error}");
                self.counts.busy += u64::from(is_busy(&transfer));
            }
        }
    }

    fn read_cell(&mut self, number: u64) {
        let (at, part) = (self.cells.any(&mut self.random), self.scratch.slice(..CELL).unwrap());
        let cell = self.cells.cell(at);
        self.say(number, "reading a cell", &cell, &part, &TransferOptions::new());
        let transfer = self.machine.manager.copy(&cell, &part).submit();
        if is_busy(&transfer) {
            self.counts.busy += 1;
            return;
        }
        transfer.wait().unwrap();
        self.tags.check(at, &part.read().unwrap());
    }

    /// Reads a cell in place by the host.
    fn look_at_cell(&mut self, number: u64) {
        let at = self.cells.any(&mut self.random);
        let cell = self.cells.cell(at);
        if cell.host_address().is_none() {
            return;
        }
        self.watch.stand(number, "looking at a cell", format!("{at:?} of {}", cell.place()));
        let view = if self.random.one_in(2) { cell.read() } else { cell.try_read() };
        match view {
            Ok(view) => {
                self.tags.check(at, &view);
                // Others get `Busy` meanwhile, and this thread waits for its own work only.
                self.verify(number);
                self.tags.check(at, &view);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                self.counts.busy += 1;
            }
        }
    }
}
