//! All promises together: random programs, compared with a model.

use super::{
    CheckResult, Failure, Verdict,
    content::{fill, patterns_of},
    context::{TestContext, TestMemory, same},
    rng::TestRng,
};
use crate::{ErrorKind, Fence, MemoryKind, Operation, Pitched, QueueLease, RawBuffer, Timing, submit};

const STEPS: usize = 200;
const BUFFERS: usize = 7;

/// A buffer and its expected content.
struct Cell {
    memory: TestMemory,
    buffer: RawBuffer,
    model: Vec<u8>,
}

struct Program<'a> {
    context: &'a TestContext<'a>,
    rng: TestRng,
    queues: Vec<QueueLease>,
    cells: Vec<Cell>,
    fences: Vec<Fence>,
    /// The operations so far, for the report of a failure.
    steps: Vec<String>,
}

pub(super) fn programs(context: &TestContext<'_>) -> CheckResult {
    for number in 0..4 {
        let mut program = Program {
            context,
            rng: context.rng(&format!("program {number}")),
            queues: context.queues()?,
            cells: Vec::new(),
            fences: Vec::new(),
            steps: Vec::new(),
        };
        program.run().map_err(|failure| {
            let from = program.steps.len().saturating_sub(12);
            let steps = program.steps[from..].join("; ");
            let details =
                format!("program {number}, step {}: {}; last: {steps}", program.steps.len(), failure.details);
            Failure { details, ..failure }
        })?;
    }
    Ok(Verdict::Passed)
}

impl Program<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        for _ in 0..BUFFERS {
            let cell = self.fresh()?;
            self.cells.push(cell);
        }
        for _ in 0..STEPS {
            self.step()?;
        }
        for (index, cell) in self.cells.iter().enumerate() {
            self.context.expect(&cell.buffer, &cell.model, &format!("buffer {index} at the end"))?;
        }
        self.fences.iter().try_for_each(Fence::wait)?;
        Ok(())
    }

    fn fresh(&mut self) -> Result<Cell, Failure> {
        let Some(memory) = self.rng.choose(&self.context.memories).copied() else { fail!("no memory") };
        // Some are so large that no operation completes immediately.
        let most = if self.rng.chance(3) { self.context.size(2_600_000) } else { 60_000 };
        let bytes = self.rng.between(most / 2, most).max(64);
        let model = self.rng.bytes(bytes);
        Ok(Cell { memory, buffer: self.context.buffer_of(memory, &model)?, model })
    }

    fn step(&mut self) -> Result<(), Failure> {
        let (a, b) = (self.rng.below(BUFFERS), self.rng.below(BUFFERS));
        match self.rng.below(16) {
            0..=4 => self.copy(a, b),
            5..=6 => self.fill(a),
            7..=8 => self.pitched(a, b),
            9..=10 => self.batch(a, b),
            11 => self.prefetch(a),
            12 => self.look(a),
            13 => self.write(a),
            14 => {
                self.steps.push(format!("replace {a}"));
                let cell = self.fresh()?;
                self.cells[a] = cell;
                Ok(())
            }
            _ => match self.rng.choose(&self.fences) {
                Some(fence) => Ok(fence.wait()?),
                None => Ok(()),
            },
        }
    }

    /// Submits on some queue; returns whether the operation was accepted.
    fn submit(&mut self, operation: &Operation<'_>) -> Result<bool, Failure> {
        let queue = self.rng.below(self.queues.len());
        let timing = if self.rng.chance(5) { Timing::Measured } else { Timing::Off };
        self.steps.push(format!("queue {queue}: {operation:?}"));
        match submit(&*self.queues[queue], operation, timing) {
            Ok(fence) => {
                self.fences.push(fence);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a length and offsets in two buffers; `None` if the device does not copy from one to the other.
    fn ranges(&mut self, a: usize, b: usize) -> Option<(usize, usize, usize)> {
        let (src, dst) = (self.cells[a].memory.place, self.cells[b].memory.place);
        if a == b || self.context.backend().copier(src, dst) != Some(self.context.subject.device) {
            return None;
        }
        let (from, to) = (self.cells[a].model.len(), self.cells[b].model.len());
        let bytes = self.rng.between(1, from.min(to));
        Some((bytes, self.rng.below(from - bytes + 1), self.rng.below(to - bytes + 1)))
    }

    fn slices(
        &self,
        (a, from): (usize, usize),
        (b, to): (usize, usize),
        bytes: usize,
    ) -> Result<(RawBuffer, RawBuffer), Failure> {
        let src = self.cells[a].buffer.slice(from..from + bytes)?;
        Ok((src, self.cells[b].buffer.slice(to..to + bytes)?))
    }

    fn move_model(&mut self, (a, from): (usize, usize), (b, to): (usize, usize), bytes: usize) {
        let content = self.cells[a].model[from..from + bytes].to_vec();
        self.cells[b].model[to..to + bytes].copy_from_slice(&content);
    }

    fn copy(&mut self, a: usize, b: usize) -> Result<(), Failure> {
        let Some((bytes, from, to)) = self.ranges(a, b) else { return Ok(()) };
        let (src, dst) = self.slices((a, from), (b, to), bytes)?;
        ensure!(self.submit(&Operation::Copy { src: &src, dst: &dst })?, "the copier's queue does not copy");
        self.move_model((a, from), (b, to), bytes);
        Ok(())
    }

    fn fill(&mut self, a: usize) -> Result<(), Failure> {
        let patterns = patterns_of(&mut self.rng);
        let pattern = patterns[self.rng.below(patterns.len())];
        let unit = pattern.width();
        let units = self.cells[a].model.len() / unit;
        let start = self.rng.below(units) * unit;
        let end = start + self.rng.between(1, units - start / unit) * unit;
        let dst = self.cells[a].buffer.slice(start..end)?;
        if self.submit(&Operation::Fill { dst: &dst, pattern })? {
            fill(&mut self.cells[a].model[start..end], pattern);
        }
        Ok(())
    }

    fn pitched(&mut self, a: usize, b: usize) -> Result<(), Failure> {
        let Some((bytes, from, to)) = self.ranges(a, b) else { return Ok(()) };
        let pitch = self.rng.between(1, bytes.min(3000));
        let width = self.rng.between(1, pitch);
        let height = self.rng.between(1, ((bytes - width) / pitch + 1).min(60));
        let rows = Pitched::new(width, height, pitch, pitch);
        let (src, dst) = self.slices((a, from), (b, to), bytes)?;
        if self.submit(&Operation::CopyPitched { src: &src, dst: &dst, rows })? {
            for row in 0..height {
                self.move_model((a, from + row * pitch), (b, to + row * pitch), width);
            }
        }
        Ok(())
    }

    fn batch(&mut self, a: usize, b: usize) -> Result<(), Failure> {
        let Some((bytes, from, to)) = self.ranges(a, b) else { return Ok(()) };
        let count = self.rng.between(1, 6).min(bytes);
        let each = bytes / count;
        let mut pairs = Vec::new();
        for index in 0..count {
            // The destinations in reverse order.
            let (read, write) = (from + index * each, to + (count - 1 - index) * each);
            pairs.push(self.slices((a, read), (b, write), each)?);
        }
        if self.submit(&Operation::CopyBatch { pairs: &pairs })? {
            for index in 0..count {
                let (read, write) = (from + index * each, to + (count - 1 - index) * each);
                self.move_model((a, read), (b, write), each);
            }
        }
        Ok(())
    }

    fn prefetch(&mut self, a: usize) -> Result<(), Failure> {
        if self.cells[a].memory.place.kind == MemoryKind::Unified {
            let to = if self.rng.chance(2) { crate::DeviceId::Cpu } else { self.context.subject.device };
            let buffer = self.cells[a].buffer.clone();
            self.submit(&Operation::Prefetch { buffer: &buffer, to })?;
        }
        Ok(())
    }

    fn look(&mut self, a: usize) -> Result<(), Failure> {
        self.steps.push(format!("look at {a}"));
        let found = self.context.get(&self.cells[a].buffer)?;
        same(&found, &self.cells[a].model, &format!("buffer {a}"))
    }

    fn write(&mut self, a: usize) -> Result<(), Failure> {
        let len = self.cells[a].model.len();
        let start = self.rng.below(len);
        let content = self.rng.bytes((len - start).min(5000));
        let range = start..start + content.len();
        self.steps.push(format!("put {range:?} of {a}"));
        let part = self.cells[a].buffer.slice(range.clone())?;
        self.context.put(&part, &content)?;
        self.cells[a].model[range].copy_from_slice(&content);
        Ok(())
    }
}
