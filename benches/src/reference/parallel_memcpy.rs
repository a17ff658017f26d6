//! Host to host: the C library's `memcpy` on several persistent threads.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Result;

use super::{Memcpy, Reference, ReferenceThreads};

/// Longest part that a thread takes, in bytes.
const PART: usize = 2 << 20;

/// A copy in parts; each idle thread takes the next one.
#[derive(Debug)]
pub struct ParallelMemcpy {
    next: Arc<AtomicUsize>,
    threads: ReferenceThreads,
}

/// The memory of a copy.
#[derive(Clone, Copy)]
struct Ends(NonNull<u8>, NonNull<u8>);

// SAFETY: the constructor's caller promises memory that nobody else uses meanwhile.
unsafe impl Send for Ends {}
// SAFETY: as above; a thread takes a part by a counter.
unsafe impl Sync for Ends {}

impl ParallelMemcpy {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Safety
    /// * Those of [`Memcpy::new`].
    pub unsafe fn new(src: NonNull<u8>, dst: NonNull<u8>, bytes: usize, threads: usize) -> Result<Self> {
        let (ends, part) = (Ends(src, dst), bytes.div_ceil(2 * threads).next_multiple_of(4096).min(PART));
        let next = Arc::new(AtomicUsize::new(0));
        let taken = Arc::clone(&next);
        let threads = ReferenceThreads::start("memcpy", threads, move |runs| {
            runs.serve(|| {
                let Ends(src, dst) = { ends };
                loop {
                    let start = taken.fetch_add(part, Ordering::Relaxed);
                    if start >= bytes {
                        return Ok(());
                    }
                    // SAFETY: the part lies within the promised memory, and is this thread's alone.
                    unsafe { Memcpy::new(src.add(start), dst.add(start), part.min(bytes - start)) }
                        .submit()?;
                }
            });
            Ok(())
        })?;
        Ok(Self { next, threads })
    }
}

impl Reference for ParallelMemcpy {
    fn submit(&mut self) -> Result<()> {
        self.next.store(0, Ordering::Relaxed);
        self.threads.begin();
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.threads.finish()
    }

    fn timed(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }
}
