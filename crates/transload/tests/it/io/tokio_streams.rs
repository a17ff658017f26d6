//! Streams from and to tokio's readers and writers.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Mutex,
    task::{Context, Poll},
};

use ::tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, duplex};
use transload::io::Tokio;

use super::*;

/// Events of a test, in their order.
type Events = Arc<Mutex<Vec<&'static str>>>;

#[test]
fn async_reader_and_writer_move_every_byte() {
    everywhere(|home| async move {
        let expected = content(LEN);
        let (first, second) = (filled(&home, &expected).await, home.allocate(home.far, LEN));
        // Much smaller than a chunk: each end waits for the other, on one thread.
        let (mut near, mut far) = duplex(100);
        let written = small(write_to(&home.manager, &first, Tokio(&mut near)));
        let read = small(read_from(&home.manager, Tokio(&mut far), &second));
        let (written, read) = ::tokio::join!(written, read);
        assert_eq!((written.unwrap().bytes, read.unwrap().bytes), (LEN as u64, LEN as u64));
        assert!(bytes_of(&home, &second).await == expected);

        // What follows the buffer's bytes stays in the reader.
        near.write_all(b"rest").await.unwrap();
        drop(near);
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"rest");
    });
}

#[test]
fn closed_pipe_says_what_was_moved() {
    everywhere(|home| async move {
        let there = filled(&home, &content(LEN)).await;
        let (near, mut far) = duplex(100);
        let stream = ::tokio::spawn(small(write_to(&home.manager, &there, Tokio(near))).into_future());
        let mut taken = vec![0; 2500];
        far.read_exact(&mut taken).await.unwrap();
        drop(far);
        let error = stream.await.unwrap().unwrap_err();
        assert!((2500..=2600).contains(&error.bytes), "{error}");
        let cause = error.cause.cause().unwrap().downcast_ref::<io::Error>().unwrap();
        assert_eq!(cause.kind(), io::ErrorKind::BrokenPipe);
        assert!(taken == content(LEN)[..2500]);
    });
}

/// Always ready.
struct Ready(Events);

impl AsyncRead for Ready {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.lock().unwrap().push("moved");
        assert!(into.remaining() <= 64 << 10);
        into.initialize_unfilled().fill(7);
        into.advance(into.remaining());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Ready {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().unwrap().push("moved");
        assert!(from.len() <= 64 << 10 && from.iter().all(|byte| *byte == 7));
        Poll::Ready(Ok(from.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Of one thread: between any two parts that a stream moves, another task of the thread has its turn.
#[test]
fn other_tasks_of_the_thread_run_while_bytes_are_streamed() {
    everywhere(|home| async move {
        let there = home.allocate(home.far, 3 << 20);
        for reads in [true, false] {
            let (events, over) = (Events::default(), Arc::new(AtomicBool::new(false)));
            let (noted, stop) = (Arc::clone(&events), Arc::clone(&over));
            let other = ::tokio::spawn(poll_fn(move |context| {
                noted.lock().unwrap().push("other");
                if stop.load(Ordering::Relaxed) {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            }));
            let ready = Tokio(Ready(Arc::clone(&events)));
            let stream = match reads {
                true => read_from(&home.manager, ready, &there),
                false => write_to(&home.manager, &there, ready),
            };
            let stream = ::tokio::spawn(stream.chunk(1 << 20).into_future());
            assert_eq!(stream.await.unwrap().unwrap().bytes, 3 << 20);
            over.store(true, Ordering::Relaxed);
            other.await.unwrap();
            let events = events.lock().unwrap();
            let moved = events.iter().filter(|event| **event == "moved").count();
            assert_eq!(moved, 48, "parts of 64 KiB");
            assert!(!events.windows(2).any(|pair| pair == ["moved", "moved"]), "{events:?}");
        }
    });
}
