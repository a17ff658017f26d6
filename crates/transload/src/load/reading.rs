//! Several threads read the file at once, each piece straight to where its bytes are to be; whoever waits for a chunk
//! reads too.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, Scope},
};

use transload_core::{Error, ErrorKind, RawBuffer, Result};

use super::{layout::Chunk, source::Source};

/// More threads than this do not make reading faster: a few saturate the memory that the page cache is in.
const MOST: usize = 8;
/// The smallest piece worth a hand-over between threads, and the largest.
const SMALLEST: usize = 256 << 10;
const LARGEST: usize = 2 << 20;
/// Shorter runs of bytes are read together and then put in their places: a call each would cost more than to copy them.
const SHORT: usize = 64 << 10;
const TOGETHER: usize = 256 << 10;

/// What there is to read. The threads end when it is closed.
pub(super) struct Readers<'a> {
    source: &'a Source,
    board: Mutex<Board>,
    posted: Condvar,
    read: Condvar,
    piece: usize,
}

#[derive(Default)]
struct Board {
    pieces: VecDeque<Piece>,
    /// The first error; what is not read by then is not read any more.
    failed: Option<Error>,
    closed: bool,
}

/// A chunk under way.
pub(super) struct Reading {
    state: Mutex<State>,
}

struct State {
    left: usize,
    outcome: Result<()>,
}

/// Bytes that follow each other in the file, and their places in memory.
struct Piece {
    target: RawBuffer,
    runs: Vec<Run>,
    offset: u64,
    of: Arc<Reading>,
}

/// Bytes of one tensor within a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    at: usize,
    len: usize,
}

/// Dropped, it ends the threads, also where the loading thread gives up or panics.
pub(super) struct Closing<'a>(pub(super) &'a Readers<'a>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut board = self.0.board();
        board.closed = true;
        let unread = mem::take(&mut board.pieces);
        drop(board);
        self.0.posted.notify_all();
        drop(unread);
    }
}

/// How many threads read `bytes` that come in chunks, where at most `wanted` are allowed.
pub(super) fn threads(wanted: Option<usize>, bytes: u64) -> usize {
    /// Whatever is wanted: more threads than this would only take them from others.
    const EVER: usize = 64;
    let usual = || thread::available_parallelism().map_or(2, usize::from).min(MOST);
    let useful = usize::try_from(bytes.div_ceil(SMALLEST as u64)).unwrap_or(usize::MAX);
    wanted.unwrap_or_else(|| usual().min(useful)).clamp(1, EVER)
}

impl<'a> Readers<'a> {
    /// Readers of chunks of at most `chunk` bytes.
    pub(super) fn new(source: &'a Source, threads: usize, chunk: usize) -> Self {
        Self {
            source,
            board: Mutex::default(),
            posted: Condvar::new(),
            read: Condvar::new(),
            piece: chunk.div_ceil(threads.max(1)).clamp(SMALLEST, LARGEST),
        }
    }

    /// Starts threads beside the calling one. Where the system gives fewer, fewer read.
    pub(super) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, threads: usize) {
        for number in 1..threads {
            let named = thread::Builder::new().name(format!("transload-read-{number}"));
            if named.spawn_scoped(scope, || self.run()).is_err() {
                break;
            }
        }
    }

    /// Has a chunk read, whose bytes begin at `offset` of the file, into a buffer of its length; what lies between tensors
    /// becomes zero.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] where the buffer is shorter.
    pub(super) fn begin(&self, chunk: &Chunk, offset: u64, target: &RawBuffer) -> Result<Arc<Reading>> {
        let parts = chunk.parts.iter().map(|part| Run { at: part.at, len: part.len });
        let cut = cut(parts, self.piece);
        let reading = Arc::new(Reading { state: Mutex::new(State { left: cut.len(), outcome: Ok(()) }) });
        let mut offset = offset;
        let mut pieces = Vec::with_capacity(cut.len());
        for Cut { from, to, bytes, runs } in cut {
            let target = target.slice(from..to)?;
            pieces.push(Piece { target, runs, offset, of: Arc::clone(&reading) });
            offset += bytes as u64;
        }
        self.board().pieces.extend(pieces);
        self.posted.notify_all();
        Ok(reading)
    }

    /// Waits until a chunk is read, and reads meanwhile.
    ///
    /// # Errors
    /// The first error of the chunk; the first of all where that kept the chunk from being read.
    pub(super) fn finish(&self, reading: &Reading) -> Result<()> {
        let mut scratch = Vec::new();
        let mut board = self.board();
        loop {
            if let Some(outcome) = reading.outcome() {
                return outcome;
            }
            match board.pieces.pop_front() {
                Some(piece) => {
                    let failed = board.failed.clone();
                    drop(board);
                    self.read(piece, failed, &mut scratch);
                    board = self.board();
                }
                None => board = self.read.wait(board).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut scratch = Vec::new();
        let mut board = self.board();
        while !board.closed {
            match board.pieces.pop_front() {
                Some(piece) => {
                    let failed = board.failed.clone();
                    drop(board);
                    self.read(piece, failed, &mut scratch);
                    board = self.board();
                }
                None => board = self.posted.wait(board).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn read(&self, piece: Piece, failed: Option<Error>, scratch: &mut Vec<u8>) {
        let interrupted = Error::new(ErrorKind::Interrupted, "a thread that read the file ended early");
        let mut taken = Taken { readers: self, of: piece.of, outcome: Err(interrupted) };
        taken.outcome = match failed {
            Some(error) => Err(error),
            None => fill(self.source, &piece.target, &piece.runs, piece.offset, scratch),
        };
    }
}

impl Reading {
    /// How it went, once all of it is over.
    fn outcome(&self) -> Option<Result<()>> {
        let state = self.state();
        (state.left == 0).then(|| state.outcome.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A piece in some thread's hands. Dropped, it is over, also where that thread panicked.
struct Taken<'a> {
    readers: &'a Readers<'a>,
    of: Arc<Reading>,
    outcome: Result<()>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let outcome = mem::replace(&mut self.outcome, Ok(()));
        // The board is held throughout, so that who waits for the chunk does not look in between.
        let mut board = self.readers.board();
        let mut state = self.of.state();
        state.left -= 1;
        let over = state.left == 0;
        if let Err(error) = outcome {
            board.failed.get_or_insert_with(|| error.clone());
            if state.outcome.is_ok() {
                state.outcome = Err(error);
            }
        }
        drop((state, board));
        if over {
            self.readers.read.notify_all();
        }
    }
}

/// A range of a chunk, and the runs within it.
#[derive(Debug, Default)]
struct Cut {
    from: usize,
    to: usize,
    bytes: usize,
    runs: Vec<Run>,
}

/// Cuts runs into pieces of at most `most` bytes. Each begins where the one before ends, so that gaps belong to one, too.
fn cut(runs: impl Iterator<Item = Run>, most: usize) -> Vec<Cut> {
    let mut pieces: Vec<Cut> = Vec::new();
    for Run { mut at, mut len } in runs {
        while len > 0 {
            if pieces.last().is_none_or(|last| last.bytes >= most) {
                let from = pieces.last().map_or(0, |last| last.to);
                pieces.push(Cut { from, to: from, ..Cut::default() });
            }
            let Some(piece) = pieces.last_mut() else { break };
            let now = len.min(most - piece.bytes);
            piece.runs.push(Run { at: at - piece.from, len: now });
            (piece.to, piece.bytes) = (at + now, piece.bytes + now);
            (at, len) = (at + now, len - now);
        }
    }
    pieces
}

/// Reads what follows `offset` in the file to its places, and makes zero what lies between.
fn fill(source: &Source, target: &RawBuffer, runs: &[Run], offset: u64, scratch: &mut Vec<u8>) -> Result<()> {
    let mut view = target.write()?;
    let mut end = 0;
    for run in runs {
        view.get_mut(end..run.at).unwrap_or_default().fill(0);
        end = run.at + run.len;
    }
    let (mut offset, mut rest) = (offset, runs);
    while let [first, others @ ..] = rest {
        if first.len >= SHORT || others.is_empty() {
            source.fill_at(offset, view.get_mut(first.at..first.at + first.len).unwrap_or_default())?;
            offset += first.len as u64;
            rest = others;
            continue;
        }
        let mut bytes = 0;
        let few = rest.iter().take_while(|run| {
            bytes += run.len;
            run.len < SHORT && bytes <= TOGETHER
        });
        let (together, others) = rest.split_at(few.count());
        let bytes: usize = together.iter().map(|run| run.len).sum();
        if scratch.len() < bytes {
            scratch.resize(TOGETHER, 0);
        }
        let read = scratch.get_mut(..bytes).unwrap_or_default();
        source.fill_at(offset, read)?;
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
mod tests {
    use super::*;

    #[test]
    fn pieces_hold_every_byte_once_and_every_gap() {
        for most in [1, 3, 8, 100, 1000] {
            for runs in [&[(0, 5)][..], &[(0, 1), (64, 200), (264, 3), (512, 1)], &[(0, 64), (64, 64)]] {
                let given: Vec<_> = runs.iter().map(|(at, len)| Run { at: *at, len: *len }).collect();
                let (mut end, mut seen) = (0, Vec::new());
                for Cut { from, to, bytes, runs } in cut(given.iter().copied(), most) {
                    assert_eq!(from, end);
                    end = to;
                    assert_eq!(bytes, runs.iter().map(|run| run.len).sum::<usize>());
                    assert!(bytes <= most && !runs.is_empty(), "{runs:?}");
                    seen.extend(runs.iter().flat_map(|run| from + run.at..from + run.at + run.len));
                    assert_eq!(seen.last(), Some(&(to - 1)));
                }
                let all: Vec<_> = given.iter().flat_map(|run| run.at..run.at + run.len).collect();
                assert_eq!(seen, all, "{most}");
            }
        }
    }

    #[test]
    fn little_is_read_by_one_thread_and_much_by_no_more_than_eight() {
        assert_eq!(threads(None, 1000), 1);
        assert!((1..=MOST).contains(&threads(None, 1 << 40)));
        assert_eq!((threads(Some(3), 1), threads(Some(0), 1), threads(Some(1 << 20), 1)), (3, 1, 64));
    }
}
