//! How long futures keep the thread that makes and polls them: its own processor time, not the time that passes.

use std::{
    future::{Future, IntoFuture},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use anyhow::{Context as _, Result};
use transload_core::{MemoryKind, RawBuffer, TransferMethod};
use transload_streams::CudaStream;
use transload_transfer::{CopyBuilder, TransferOptions};

use super::Library;
use crate::{
    comparison::{Comparison, Fixture, Variant, Verify},
    row::{Goal, Row},
};

/// Most microseconds that making a future, or polling it once, may keep its thread.
const MOST: f64 = 20.0;

/// A copy that is awaited.
struct Awaited {
    name: &'static str,
    what: &'static str,
    src: RawBuffer,
    dst: RawBuffer,
    options: TransferOptions,
    stream: Option<CudaStream>,
    library: Arc<Library>,
}

impl Verify for Awaited {
    fn poison(&self) -> Result<()> {
        let bytes = |value| {
            let host = self.library.allocate(MemoryKind::Pinned, self.src.len())?;
            host.write()?.fill(value);
            Ok::<_, anyhow::Error>(host)
        };
        self.library.manager.copy(&bytes(0x5A)?, &self.src).wait()?;
        self.library.manager.copy(&bytes(0xEE)?, &self.dst).wait()?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let back = self.library.allocate(MemoryKind::Pinned, self.dst.len())?;
        self.library.manager.copy(&self.dst, &back).wait()?;
        let read = back.read()?;
        let wrong = read.iter().position(|byte| *byte != 0x5A);
        wrong.map_or(Ok(()), |at| anyhow::bail!("{}: byte {at} of {} is wrong", self.name, read.len()))
    }
}

impl Awaited {
    fn copy(&self) -> CopyBuilder<'_> {
        let copy = self.library.manager.copy(&self.src, &self.dst).options(self.options);
        match &self.stream {
            Some(stream) => copy.on(stream),
            None => copy,
        }
    }

    /// Returns the dearest of its calls, in microseconds.
    fn run(&self) -> Result<f64> {
        let (outcome, dearest) = dearest_call(|| self.copy().into_future())?;
        outcome?;
        Ok(dearest)
    }

    fn submit(&self) -> Result<f64> {
        let (transfer, took) = timed(|| self.copy().submit())?;
        transfer.wait()?;
        Ok(took)
    }
}

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    if processor_time().is_none() {
        return Ok(Vec::new());
    }
    let library = Arc::new(Library::new(fixture)?);
    let copies = copies(fixture, &library)?;
    for copy in &copies {
        library.manager.prepare(copy.src.place(), copy.dst.place(), &copy.options)?;
    }
    let nothing = || {
        let (_, dearest) = dearest_call(|| std::future::ready(()))?;
        Ok(dearest)
    };
    let call = || {
        let (outcome, dearest) = dearest_call(|| library.manager.spawn_blocking(|| ()))?;
        outcome?;
        Ok(dearest)
    };
    let mut rows = Vec::new();
    let comparison = |bytes| Comparison {
        id: format!("awaiting/{bytes}"),
        what: "processor time of the thread, the dearest of making a future and each of its polls".to_owned(),
        unit: "us",
        bytes,
        repetitions: fixture.repetitions(300),
    };
    let thread = || {
        let (outcome, dearest) = dearest_call(|| library.manager.executor().spawn_thread(|| ()))?;
        outcome?;
        Ok(dearest)
    };
    let variants = vec![
        Variant::new("nothing", "a future that is ready", nothing),
        Variant::new("thread", "spawn_thread, which starts one, as of load_async", thread)
            .goal(Goal::AtMost(MOST)),
        Variant::new("call", "spawn_blocking, as of prepare_async and other calls", call)
            .goal(Goal::AtMost(MOST)),
    ];
    rows.extend(comparison(0).rows(fixture, variants)?);
    for copy in &copies {
        let variants = vec![
            Variant::new("submit", "submit() of the same copy", || copy.submit())
                .by_library()
                .verified_by(copy),
            Variant::new(copy.name, copy.what, || copy.run()).goal(Goal::AtMost(MOST)).verified_by(copy),
        ];
        rows.extend(comparison(copy.src.len() as u64).rows(fixture, variants)?);
    }
    drop(copies);
    let library = Arc::into_inner(library).context("a copy is left")?;
    library.finish()?;
    Ok(rows)
}

fn copies(fixture: &Fixture<'_>, library: &Arc<Library>) -> Result<Vec<Awaited>> {
    use MemoryKind::{Device, Pageable, Pinned};
    let staged = TransferOptions::new().only(TransferMethod::HostStaged);
    let usual = TransferOptions::new();
    let (small, large) = (4096, if fixture.is_simulated() { 8 << 20 } else { 64 << 20 });
    let stream = CudaStream::new(&fixture.device)?;
    let of = |name, what, (from, to), bytes, options, stream| {
        let (src, dst) = (library.allocate(from, bytes)?, library.allocate(to, bytes)?);
        Ok(Awaited { name, what, src, dst, options, stream, library: Arc::clone(library) })
    };
    [
        of("pinned-up", "pinned upload", (Pinned, Device), small, usual, None),
        of("pinned-down", "pinned download", (Device, Pinned), small, usual, None),
        of("on-stream", "pinned upload on a stream", (Pinned, Device), small, usual, Some(stream)),
        of("pageable-up", "pageable upload", (Pageable, Device), small, usual, None),
        of("pageable-down", "pageable download", (Device, Pageable), small, usual, None),
        of("host", "within the host", (Pageable, Pageable), small, usual, None),
        of("pinned-up", "pinned upload", (Pinned, Device), large, usual, None),
        of("staged-up", "staged upload", (Pageable, Device), large, staged, None),
        of("staged-down", "staged download", (Device, Pageable), large, staged, None),
        of("host", "within the host", (Pageable, Pageable), large, usual, None),
    ]
    .into_iter()
    .collect()
}

/// Makes a future and runs it to its end, by a thread that parks while it is pending. Returns the most microseconds of processor
/// time that making it or one of its polls took.
fn dearest_call<F: Future>(make: impl FnOnce() -> F) -> Result<(F::Output, f64)> {
    struct Unparks(Thread);
    impl Wake for Unparks {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unparks(thread::current())));
    let (future, mut dearest) = timed(make)?;
    let mut future = pin!(future);
    loop {
        let (polled, took) = timed(|| future.as_mut().poll(&mut Context::from_waker(&waker)))?;
        dearest = f64::max(dearest, took);
        match polled {
            Poll::Ready(outcome) => return Ok((outcome, dearest)),
            Poll::Pending => thread::park(),
        }
    }
}

fn timed<R>(call: impl FnOnce() -> R) -> Result<(R, f64)> {
    let now = || processor_time().context("no clock of the thread's processor time");
    let begun = now()?;
    let result = call();
    Ok((result, now()? - begun))
}

/// Returns the microseconds for which the calling thread ran, where the system tells.
#[cfg(target_os = "linux")]
fn processor_time() -> Option<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is that of a local value.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    (code == 0).then_some(time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3)
}

#[cfg(not(target_os = "linux"))]
fn processor_time() -> Option<f64> {
    None
}
