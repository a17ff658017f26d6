//! Reads a file by several threads of the executor, directly into the target memory.

use std::{
    cell::RefCell,
    sync::{Arc, OnceLock},
};

use transload_core::{Error, ErrorKind, RawBuffer, Result};
use transload_executor::{BlockingKey, Executor, Task};

use super::{layout::Chunk, source::Source};

/// Bounds of a piece in bytes; smaller ones are not worth a task.
const MIN_PIECE: usize = 256 << 10;
const MAX_PIECE: usize = 2 << 20;
/// Shorter runs are read together and then copied: a system call each would cost more.
const MIN_DIRECT_READ: usize = 64 << 10;
const MAX_COALESCED_READ: usize = 256 << 10;

thread_local! {
    /// Buffer for short runs; a spare thread keeps it until it exits.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads chunks of a file with limited concurrency.
pub(super) struct Readers {
    source: Arc<Source>,
    executor: Executor,
    file: BlockingKey,
    piece: usize,
    /// The first error. Later pieces are not read.
    failed: Arc<OnceLock<Error>>,
}

/// A chunk being read. Dropping it waits until no thread writes to the chunk's memory.
pub(super) struct ChunkRead {
    pieces: Vec<Task<Result<()>>>,
    failed: Arc<OnceLock<Error>>,
}

/// Bytes of one tensor within a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ByteRun {
    at: usize,
    len: usize,
}

/// Returns how many threads to use for a file of `bytes`, at most `wanted`.
pub(super) fn thread_count(wanted: Option<usize>, bytes: u64, executor: &Executor) -> usize {
    /// More threads would only take processors from others.
    const MAX_THREADS: usize = 64;
    let useful = usize::try_from(bytes.div_ceil(MIN_PIECE as u64)).unwrap_or(usize::MAX);
    wanted.unwrap_or_else(|| executor.threads().min(useful)).clamp(1, MAX_THREADS)
}

impl Readers {
    /// Creates readers for chunks of at most `chunk` bytes.
    pub(super) fn new(executor: &Executor, source: &Arc<Source>, threads: usize, chunk: usize) -> Self {
        Self {
            source: Arc::clone(source),
            executor: executor.clone(),
            file: BlockingKey::new(threads),
            piece: chunk.div_ceil(threads.max(1)).clamp(MIN_PIECE, MAX_PIECE),
            failed: Arc::default(),
        }
    }

    /// Starts to read a chunk, whose bytes begin at `offset` of the file, into a buffer of its length; zeroes gaps
    /// between tensors.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if the buffer is shorter.
    pub(super) fn begin(&self, chunk: &Chunk, mut offset: u64, target: &RawBuffer) -> Result<ChunkRead> {
        let parts = chunk.parts.iter().map(|part| ByteRun { at: part.at, len: part.len });
        let mut reading = ChunkRead { pieces: Vec::new(), failed: Arc::clone(&self.failed) };
        for Piece { from, to, bytes, runs } in split(parts, self.piece) {
            let target = target.slice(from..to)?;
            let (source, failed, at) = (Arc::clone(&self.source), Arc::clone(&self.failed), offset);
            reading.pieces.push(self.executor.spawn_blocking(&self.file, move || match failed.get() {
                Some(error) => Err(error.clone()),
                None => fill(&source, &target, &runs, at).inspect_err(|error| {
                    let _first_error_wins = failed.set(error.clone());
                }),
            }));
            offset += bytes as u64;
        }
        Ok(reading)
    }
}

impl ChunkRead {
    /// Waits until the chunk is read.
    ///
    /// # Errors
    /// The first error of the chunk; if an earlier error kept it from being read, that one.
    pub(super) fn finish(mut self) -> Result<()> {
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        // Wait for each, also after an error.
        for piece in self.pieces.drain(..) {
            outcome = outcome.and(piece.wait().flatten());
        }
        outcome
    }
}

impl Drop for ChunkRead {
    fn drop(&mut self) {
        if !self.pieces.is_empty() {
            let text = "the load was cancelled before this part of the file was read";
            let _first_error_wins = self.failed.set(Error::new(ErrorKind::Interrupted, text));
            let _reported_already = self.wait();
        }
    }
}

/// A range of a chunk, and the runs in it.
#[derive(Debug, Default)]
struct Piece {
    from: usize,
    to: usize,
    bytes: usize,
    runs: Vec<ByteRun>,
}

/// Splits runs into pieces of at most `most` bytes. Each begins where the previous one ends, so that every gap is in a
/// piece.
fn split(runs: impl Iterator<Item = ByteRun>, most: usize) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for ByteRun { mut at, mut len } in runs {
        while len > 0 {
            if pieces.last().is_none_or(|last| last.bytes >= most) {
                let from = pieces.last().map_or(0, |last| last.to);
                pieces.push(Piece { from, to: from, ..Piece::default() });
            }
            let Some(piece) = pieces.last_mut() else { break };
            let now = len.min(most - piece.bytes);
            piece.runs.push(ByteRun { at: at - piece.from, len: now });
            (piece.to, piece.bytes) = (at + now, piece.bytes + now);
            (at, len) = (at + now, len - now);
        }
    }
    pieces
}

/// Reads the bytes from `offset` on into the runs, and zeroes the gaps.
fn fill(source: &Source, target: &RawBuffer, runs: &[ByteRun], offset: u64) -> Result<()> {
    SCRATCH.with_borrow_mut(|scratch| fill_with(source, target, runs, offset, scratch))
}

fn fill_with(
    source: &Source,
    target: &RawBuffer,
    runs: &[ByteRun],
    offset: u64,
    scratch: &mut Vec<u8>,
) -> Result<()> {
    let mut view = target.write()?;
    let mut end = 0;
    for run in runs {
        view.get_mut(end..run.at).unwrap_or_default().fill(0);
        end = run.at + run.len;
    }
    let (mut offset, mut rest) = (offset, runs);
    while let [first, others @ ..] = rest {
        if first.len >= MIN_DIRECT_READ || others.is_empty() {
            source.read_exact_at(offset, view.get_mut(first.at..first.at + first.len).unwrap_or_default())?;
            offset += first.len as u64;
            rest = others;
            continue;
        }
        let mut bytes = 0;
        let few = rest.iter().take_while(|run| {
            bytes += run.len;
            run.len < MIN_DIRECT_READ && bytes <= MAX_COALESCED_READ
        });
        let (together, others) = rest.split_at(few.count());
        let bytes: usize = together.iter().map(|run| run.len).sum();
        if scratch.len() < bytes {
            scratch.resize(MAX_COALESCED_READ, 0);
        }
        let read = scratch.get_mut(..bytes).unwrap_or_default();
        source.read_exact_at(offset, read)?;
        let mut from = 0;
        for run in together {
            let place = view.get_mut(run.at..run.at + run.len).unwrap_or_default();
            place.copy_from_slice(read.get(from..from + run.len).unwrap_or_default());
            from += run.len;
        }
        offset += bytes as u64;
        rest = others;
    }
    Ok(())
}

#[cfg(test)]
#[path = "../../tests/unit/readers.rs"]
mod tests;
