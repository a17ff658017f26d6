//! Streams between sources, sinks and memory: content, short reads, errors with what was moved, cancellation, bounds.

#[cfg(feature = "tokio")]
mod tokio_streams;

use std::{
    future::pending,
    io::{self, Cursor, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use transload::{
    ErrorKind, RawBuffer, Result,
    io::{Blocking, ByteSink, ByteSource, ByteStream, async_trait, read_from, write_to},
};

use crate::tasks::{Home, one_thread, within_two_minutes};

const LEN: usize = 10_007;

fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

fn small(stream: ByteStream<'_>) -> ByteStream<'_> {
    stream.chunk(1000).buffers(2)
}

/// Runs on each kind of memory, within a runtime of one thread; at the end nothing is left.
fn everywhere<F: Future<Output = ()>>(body: impl Fn(Arc<Home>) -> F + Send + 'static) {
    within_two_minutes(move || {
        for home in Home::all() {
            let home = Arc::new(home);
            one_thread().block_on(body(Arc::clone(&home)));
            Arc::into_inner(home).unwrap().finish();
        }
    });
}

async fn bytes_of(home: &Home, buffer: &RawBuffer) -> Vec<u8> {
    let back = home.allocate(home.near, buffer.len());
    home.manager.copy(buffer, &back).await.unwrap();
    back.read_async().await.unwrap().to_vec()
}

async fn filled(home: &Home, content: &[u8]) -> RawBuffer {
    let there = home.allocate(home.far, content.len());
    home.manager.copy(&home.filled(content), &there).await.unwrap();
    there
}

/// Gives and takes at most 333 bytes a call, and fails at byte `fails_at`.
struct Slow {
    bytes: Cursor<Vec<u8>>,
    fails_at: u64,
}

impl Slow {
    fn new(bytes: Vec<u8>, fails_at: usize) -> Self {
        Self { bytes: Cursor::new(bytes), fails_at: fails_at as u64 }
    }

    fn next(&self, wanted: usize) -> io::Result<usize> {
        match self.fails_at - self.bytes.position() {
            0 => Err(io::Error::new(io::ErrorKind::ConnectionReset, "the line was cut")),
            left => Ok(wanted.min(333).min(left as usize)),
        }
    }
}

impl Read for Slow {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.next(into.len())?;
        self.bytes.read(&mut into[..count])
    }
}

impl Write for Slow {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let count = self.next(from.len())?;
        self.bytes.write(&from[..count])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn short_reads_and_writes_move_every_byte() {
    everywhere(|home| async move {
        let expected = content(LEN);
        let there = home.allocate(home.far, LEN);
        let source = Blocking::new(&home.manager, Slow::new(expected.clone(), LEN + 1));
        assert_eq!(small(read_from(&home.manager, source, &there)).await.unwrap().bytes, LEN as u64);
        assert!(bytes_of(&home, &there).await == expected);

        let mut sink = Blocking::new(&home.manager, Slow::new(Vec::new(), LEN + 1));
        assert_eq!(small(write_to(&home.manager, &there, &mut sink)).await.unwrap().bytes, LEN as u64);
        assert!(sink.into_inner().await.unwrap().bytes.into_inner() == expected);
    });
}

#[test]
fn source_shorter_or_longer_than_buffer() {
    everywhere(|home| async move {
        for (has, expected) in [(0, 0), (1, 1), (2500, 2500), (LEN, LEN), (LEN + 5000, LEN)] {
            let bytes = content(has);
            let there = filled(&home, &[0xEE; LEN]).await;
            let mut source = Blocking::new(&home.manager, Cursor::new(bytes.clone()));
            let read = small(read_from(&home.manager, &mut source, &there)).await.unwrap().bytes;
            assert_eq!(read, expected as u64);
            assert_eq!(source.into_inner().await.unwrap().position(), read, "no more than fits is read");
            let found = bytes_of(&home, &there).await;
            assert!(found[..expected] == bytes[..expected] && found[expected..].iter().all(|b| *b == 0xEE));
        }
    });
}

#[test]
fn failing_source_says_what_was_moved() {
    everywhere(|home| async move {
        for fails_at in [0, 1, 999, 1000, 4321] {
            let expected = content(LEN);
            let there = filled(&home, &[0xEE; LEN]).await;
            let source = Blocking::new(&home.manager, Slow::new(expected.clone(), fails_at));
            let error = small(read_from(&home.manager, source, &there)).await.unwrap_err();
            assert_eq!((error.bytes, error.cause.kind()), (fails_at as u64, ErrorKind::Io));
            let cause = error.cause.cause().unwrap().downcast_ref::<io::Error>().unwrap();
            assert_eq!(cause.kind(), io::ErrorKind::ConnectionReset);
            let found = bytes_of(&home, &there).await;
            assert!(found[..fails_at] == expected[..fails_at]);
            assert!(found[fails_at..].iter().all(|byte| *byte == 0xEE));

            let error = transload::Error::from(error);
            assert_eq!(error.kind(), ErrorKind::Io);
            let text = format!("after {fails_at} bytes: reading from the source failed: the line was cut");
            assert!(error.to_string().contains(&text), "{error}");
        }
    });
}

#[test]
fn failing_sink_says_what_was_moved() {
    everywhere(|home| async move {
        let expected = content(LEN);
        let there = filled(&home, &expected).await;
        for fails_at in [0, 1, 1000, 4321] {
            let mut sink = Blocking::new(&home.manager, Slow::new(Vec::new(), fails_at));
            let error = small(write_to(&home.manager, &there, &mut sink)).await.unwrap_err();
            assert_eq!((error.bytes, error.cause.kind()), (fails_at as u64, ErrorKind::Io));
            assert!(sink.into_inner().await.unwrap().bytes.into_inner() == expected[..fails_at]);
        }
        let full = Blocking::new(&home.manager, Cursor::new([0; 1234]));
        let error = small(write_to(&home.manager, &there, full)).await.unwrap_err();
        assert_eq!((error.bytes, error.cause.kind()), (1234, ErrorKind::Io));
        assert!(error.to_string().contains("the sink takes no more bytes"), "{error}");
    });
}

/// Gives or takes so many bytes, then never any more. Records the allocations that it sees.
struct Stalls {
    home: Arc<Home>,
    left: usize,
    most: u64,
    stalled: Arc<AtomicBool>,
}

impl Stalls {
    async fn next(&mut self, wanted: usize) -> usize {
        let counts = self.home.manager.resource_counts();
        self.most = self.most.max(counts.iter().map(|(_, counts)| counts.allocations).sum());
        if self.left == 0 {
            self.stalled.store(true, Ordering::Relaxed);
            pending::<()>().await;
        }
        let count = wanted.min(self.left);
        self.left -= count;
        count
    }
}

#[async_trait]
impl ByteSource for Stalls {
    async fn read(&mut self, into: &RawBuffer) -> Result<usize> {
        Ok(self.next(into.len()).await)
    }
}

#[async_trait]
impl ByteSink for Stalls {
    async fn write(&mut self, from: &RawBuffer) -> Result<usize> {
        Ok(self.next(from.len()).await)
    }

    async fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A stream over 10 chunks of which the other end stalls after `left` bytes.
fn stalling(home: &Arc<Home>, left: usize) -> Stalls {
    Stalls { home: Arc::clone(home), left, most: 0, stalled: Arc::default() }
}

#[test]
fn dropped_stream_frees_its_buffers() {
    everywhere(|home| async move {
        let there = filled(&home, &content(LEN)).await;
        for left in [0, 1, 1000, 4321] {
            for reads in [true, false] {
                let other = stalling(&home, left);
                let stalled = Arc::clone(&other.stalled);
                let manager = Arc::clone(&home.manager);
                let there = there.clone();
                let stream = tokio::spawn(async move {
                    match reads {
                        true => small(read_from(&manager, Box::new(other), &there)).await,
                        false => small(write_to(&manager, &there, Box::new(other))).await,
                    }
                });
                while !stalled.load(Ordering::Relaxed) {
                    tokio::task::yield_now().await;
                }
                stream.abort();
                assert!(stream.await.unwrap_err().is_cancelled());
            }
        }
        // The memory is not held, and no chunk of the streams arrives after a later transfer.
        home.manager.copy(&home.filled(&[1; LEN]), &there).await.unwrap();
        assert!(bytes_of(&home, &there).await == [1; LEN]);
    });
}

#[test]
fn staging_memory_is_bounded() {
    everywhere(|home| async move {
        let there = filled(&home, &content(LEN)).await;
        let staging = if home.far == home.near { 0 } else { 2 };
        for reads in [true, false] {
            let mut other = stalling(&home, LEN);
            match reads {
                true => small(read_from(&home.manager, &mut other, &there)).await.unwrap(),
                false => small(write_to(&home.manager, &there, &mut other)).await.unwrap(),
            };
            assert_eq!(other.most, 1 + staging);
        }
    });
}

/// A reader that waits for another task of the thread that awaits the stream.
struct Waits(mpsc::Receiver<u8>);

impl Read for Waits {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let byte = self.0.recv().map_err(io::Error::other)?;
        into[0] = byte;
        Ok(1)
    }
}

#[test]
fn blocking_reader_does_not_block_the_tasks_thread() {
    everywhere(|home| async move {
        let there = home.allocate(home.far, 10);
        let (sender, receiver) = mpsc::channel();
        let manager = Arc::clone(&home.manager);
        let source = Blocking::new(&manager, Waits(receiver));
        let to = there.clone();
        let stream = tokio::spawn(async move { small(read_from(&manager, source, &to)).await });
        for byte in 0..10 {
            // The reader is waiting for this, on a thread of the executor.
            tokio::task::yield_now().await;
            assert!(!stream.is_finished());
            sender.send(byte).unwrap();
        }
        assert_eq!(stream.await.unwrap().unwrap().bytes, 10);
        assert_eq!(bytes_of(&home, &there).await, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    });
}

/// Tells when it was called, and waits until it is told to go on.
struct Called(mpsc::Sender<()>, mpsc::Receiver<()>);

impl Called {
    fn wait(&self, bytes: usize) -> io::Result<usize> {
        self.0.send(()).map_err(io::Error::other)?;
        self.1.recv().map_err(io::Error::other)?;
        Ok(bytes)
    }
}

impl Read for Called {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        into.fill(9);
        self.wait(into.len())
    }
}

impl Write for Called {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.wait(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn dropped_stream_gives_the_memory_free_during_a_call() {
    everywhere(|home| async move {
        let there = filled(&home, &[1; 10]).await;
        for reads in [true, false] {
            let ((calls, called), (goes_on, told)) = (mpsc::channel(), mpsc::channel());
            let other = Blocking::new(&home.manager, Called(calls, told));
            let (manager, memory) = (Arc::clone(&home.manager), there.clone());
            let stream = tokio::spawn(async move {
                match reads {
                    true => small(read_from(&manager, other, &memory)).await,
                    false => small(write_to(&manager, &memory, other)).await,
                }
            });
            while called.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
            stream.abort();
            stream.await.unwrap_err();
            home.manager.copy(&home.filled(&[2; 10]), &there).await.unwrap();
            goes_on.send(()).unwrap();
            let manager = Arc::clone(&home.manager);
            tokio::task::spawn_blocking(move || manager.drain()).await.unwrap().unwrap();
            assert_eq!(bytes_of(&home, &there).await, [2; 10]);
        }
    });
}

#[test]
fn report_counts_the_transfers() {
    everywhere(|home| async move {
        let there = filled(&home, &content(LEN)).await;
        let mut sink = Blocking::new(&home.manager, Vec::new());
        let written = small(write_to(&home.manager, &there, &mut sink)).await.unwrap();
        let source = Blocking::new(&home.manager, Cursor::new(sink.into_inner().await.unwrap()));
        let read = small(read_from(&home.manager, source, &there)).await.unwrap();
        for report in [written, read] {
            let moved: u64 = report.methods.iter().map(|count| count.bytes).sum();
            let chunks: u64 = report.methods.iter().map(|count| count.chunks).sum();
            assert_eq!((report.bytes, moved, chunks), (LEN as u64, LEN as u64, 11), "{report}");
            assert!((1..=2).contains(&report.buffers), "{}", report.buffers);
            assert_eq!(report.staging_bytes, report.buffers as u64 * 1000);
            assert!(report.wall > Duration::ZERO && report.to_string().starts_with("10007 bytes in "));
        }
    });
}

#[test]
fn invalid_options_are_refused() {
    everywhere(|home| async move {
        let there = home.allocate(home.far, 10);
        let invalid = |set: fn(ByteStream<'static>) -> ByteStream<'static>| {
            set(read_from(&home.manager, Blocking::new(&home.manager, io::empty()), &there))
        };
        for stream in [invalid(|stream| stream.chunk(0)), invalid(|stream| stream.buffers(0))] {
            let error = stream.await.unwrap_err();
            assert_eq!((error.bytes, error.cause.kind()), (0, ErrorKind::InvalidArgument));
        }
    });
}

#[test]
fn runtime_streams_arrays() {
    one_thread().block_on(async {
        let rt = crate::uncalibrated::builder().discover().unwrap();
        let array = rt.zeros::<u32>(1000).unwrap();
        let bytes: Vec<u8> = (0..1000_u32).flat_map(u32::to_le_bytes).collect();
        let source = Blocking::new(rt.manager(), Cursor::new(bytes.clone()));
        // The future is `'static`.
        let report = tokio::spawn(rt.read_from(source, &array).into_future()).await.unwrap().unwrap();
        assert_eq!((report.bytes, report.buffers, report.staging_bytes), (4000, 1, 4000));
        assert_eq!(array.read().unwrap()[999], 999);
        let mut sink = Blocking::new(rt.manager(), Vec::new());
        rt.write_to(&array, &mut sink).await.unwrap();
        assert!(sink.into_inner().await.unwrap() == bytes);
        rt.drain().unwrap();
    });
}
