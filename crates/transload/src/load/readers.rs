//! Several threads of the executor read the file at once, each piece straight to where its bytes are to be.

use std::{
    cell::RefCell,
    sync::{Arc, OnceLock},
};

use transload_core::{Error, ErrorKind, RawBuffer, Result};
use transload_executor::{BlockingKey, Executor, Task};

use super::{layout::Chunk, source::Source};

/// The smallest piece worth a hand-over between threads, and the largest.
const MIN_PIECE: usize = 256 << 10;
const MAX_PIECE: usize = 2 << 20;
/// Shorter runs of bytes are read together and then put in their ranges: a call each would cost more than to copy them.
const MIN_DIRECT_READ: usize = 64 << 10;
const MAX_COALESCED_READ: usize = 256 << 10;

thread_local! {
    /// Where short runs are read together. A spare thread keeps it until it ends.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads pieces of a file, so many at once.
pub(super) struct Readers {
    source: Arc<Source>,
    executor: Executor,
    file: BlockingKey,
    piece: usize,
    /// The first error: what is not read by then is not read any more.
    failed: Arc<OnceLock<Error>>,
}

/// A chunk under way. Dropped, it waits until nobody reads into the chunk's memory any more.
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

/// How many threads read `bytes` that come in chunks, where at most `wanted` are allowed.
pub(super) fn thread_count(wanted: Option<usize>, bytes: u64) -> usize {
    /// Whatever is wanted: more threads than this would only take them from others.
    const MAX_THREADS: usize = 64;
    let useful = usize::try_from(bytes.div_ceil(MIN_PIECE as u64)).unwrap_or(usize::MAX);
    wanted.unwrap_or_else(|| Executor::shared().threads().min(useful)).clamp(1, MAX_THREADS)
}

impl Readers {
    /// Readers of chunks of at most `chunk` bytes.
    pub(super) fn new(source: &Arc<Source>, threads: usize, chunk: usize) -> Self {
        Self {
            source: Arc::clone(source),
            executor: Executor::shared(),
            file: BlockingKey::new(threads),
            piece: chunk.div_ceil(threads.max(1)).clamp(MIN_PIECE, MAX_PIECE),
            failed: Arc::default(),
        }
    }

    /// Has a chunk read, whose bytes begin at `offset` of the file, into a buffer of its length; what lies between tensors
    /// becomes zero.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] where the buffer is shorter.
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
    /// The first error of the chunk; the first of all where that kept the chunk from being read.
    pub(super) fn finish(mut self) -> Result<()> {
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        // Each is waited for, also after an error.
        for piece in self.pieces.drain(..) {
            outcome = outcome.and(piece.wait().flatten());
        }
        outcome
    }
}

impl Drop for ChunkRead {
    fn drop(&mut self) {
        if !self.pieces.is_empty() {
            let text = "loading was given up, so the rest of the file was not read";
            let _first_error_wins = self.failed.set(Error::new(ErrorKind::Interrupted, text));
            let _reported_already = self.wait();
        }
    }
}

/// A range of a chunk, and the runs within it.
#[derive(Debug, Default)]
struct Piece {
    from: usize,
    to: usize,
    bytes: usize,
    runs: Vec<ByteRun>,
}

/// Cuts runs into pieces of at most `most` bytes. Each begins where the one before ends, so that gaps belong to one, too.
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

/// Reads what follows `offset` in the file to its ranges, and makes zero what lies between.
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
