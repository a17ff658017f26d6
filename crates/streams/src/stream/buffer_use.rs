//! Uses of buffers by work that other code enqueues on a stream.

use std::collections::VecDeque;

use parking_lot::{Mutex, ReentrantMutex};
use transload_core::{Access, DeviceId, Error, ErrorKind, Loan, RawBuffer, Result, events::report};
use transload_memory::lift;

use crate::{
    CudaStream,
    completion::{reactor::Reactor, timeline::StreamTimeline},
};

/// Loans that could not be ended yet: a fence of a stream can be taken only after its capture.
static PENDING: Mutex<VecDeque<(Loan, CudaStream)>> = Mutex::new(VecDeque::new());
/// Held while they are retried. The end of a loan may wake tasks inline that begin and end others.
static RETRYING: ReentrantMutex<()> = ReentrantMutex::new(());

/// A use of a buffer by work that other code enqueues on a stream, such as launches through its raw handle; see
/// [`CudaStream::use_buffer`]. Dropping it ends the use like [`end`](Self::end), and loses the error.
#[derive(Debug)]
#[must_use = "the use ends when this is dropped"]
pub struct StreamUse {
    /// Taken at the end.
    loan: Option<Loan>,
    stream: CudaStream,
}

impl CudaStream {
    /// Begins a use of a buffer by work that the caller enqueues on this stream until the use ends: that work comes after all earlier
    /// work on the buffer, and later work on the buffer comes after it. **May block**: while staged transfers or other backends' work
    /// use the bytes, since the stream cannot wait for those by itself. Meanwhile conflicting operations and host views return `Busy`.
    ///
    /// Work that the caller enqueues on other streams is not covered. Any memory may be used on any stream: whether the stream's device
    /// can access it depends on the work, since the driver also copies memory that kernels there cannot access. Unlike a
    /// [launch](crate::Launch), this does not check it.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if a conflicting host view, use or loan is open, and while this stream is being captured;
    /// [`ErrorKind::SourceFailed`] if an operation that wrote some of the bytes failed, also for writing: a caller that replaces them
    /// all needs [`RawBuffer::assume_written`];
    /// [`ErrorKind::InvalidArgument`] for writing to memory that is not writable, and for a per-thread default stream, since only its
    /// thread could end the use without blocking; the driver's.
    pub fn use_buffer(&self, buffer: &RawBuffer, access: Access) -> Result<StreamUse> {
        let loan = self.borrow(buffer, access)?;
        self.begin_use(loan)
    }

    /// Like [`use_buffer`](Self::use_buffer), but awaits the work that the stream cannot wait for by itself, and blocks no thread. The
    /// buffer is in use from the first poll on, until the future or its result is dropped.
    ///
    /// # Errors
    /// As for `use_buffer`.
    pub fn use_buffer_async(
        &self,
        buffer: &RawBuffer,
        access: Access,
    ) -> impl Future<Output = Result<StreamUse>> + Send + use<> {
        let (stream, buffer) = (self.clone(), buffer.clone());
        async move {
            let loan = stream.borrow(&buffer, access)?;
            // `begin_use` waits for all other work on the host.
            for fence in loan.after().iter().filter(|fence| !fence.timeline().as_any().is::<StreamTimeline>())
            {
                let _its_transfer_reports_errors = fence.clone().await;
            }
            stream.begin_use(loan)
        }
    }

    fn borrow(&self, buffer: &RawBuffer, access: Access) -> Result<Loan> {
        Self::retry_loan_ends();
        self.own.check_not_captured()?;
        if access == Access::Write && !buffer.is_writable() {
            let text = format!("{buffer:?} is not writable");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if self.own.is_per_thread() {
            let text = "a use on a per-thread default stream could not end on other threads; valid are streams that every thread can \
                        name, also foreign ones and the legacy default stream";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        buffer.lend(access)
    }

    fn begin_use(&self, loan: Loan) -> Result<StreamUse> {
        if !transload_core::mutant!("streams/use-after-earlier-work") {
            self.wait_fences(loan.after())?;
        }
        if !transload_core::mutant!("streams/use-tells-failure") {
            loan.check_sources()?;
        }
        Ok(StreamUse { loan: Some(loan), stream: self.clone() })
    }

    /// Ends a loan after all work enqueued on this stream so far, also through the raw handle. Does not wait, except for the device's
    /// work where no fence can be taken, as of another thread's default stream. During a capture of the
    /// stream the loan stays, until the capture is over and another loan is begun or ended, or
    /// [`retry_loan_ends`](Self::retry_loan_ends) is called.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] during a capture; the driver's.
    pub fn end_loan(&self, loan: Loan) -> Result<()> {
        Self::retry_loan_ends();
        self.try_end(loan)
    }

    fn try_end(&self, mut loan: Loan) -> Result<()> {
        let ended = match self.fence() {
            Ok(fence) => {
                let after = [fence];
                loan.end_after(if transload_core::mutant!("streams/use-ends-after-its-work") {
                    &[]
                } else {
                    &after
                });
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::Busy => Err(error),
            // No event: the loan ends once all work is complete.
            Err(_) if transload_core::mutant!("streams/use-ends-after-a-wait") => Ok(()),
            Err(error) => {
                report::call_failed("waiting for a stream instead of a fence", self.device(), &error);
                self.own.synchronize_driver().map_err(lift)
            }
        };
        match ended {
            // No work runs on a lost device.
            Err(error) if error.kind() != ErrorKind::DeviceLost => {
                if transload_core::mutant!("streams/captured-use-stays") {
                    return Err(error);
                }
                PENDING.lock().push_back((loan, self.clone()));
                Err(error)
            }
            over => over,
        }
    }

    /// Ends the loans that could not be ended during a capture that is over now. Returns at once while another thread does that.
    pub fn retry_loan_ends() {
        if let Some(_retrying) = RETRYING.try_lock() {
            Self::retry_all();
        }
    }

    /// Like [`retry_loan_ends`](Self::retry_loan_ends), but waits while another thread does that, and tells whether loans are left.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if a loan stays whose stream is one of this device.
    pub fn drain_loan_ends(device: DeviceId) -> Result<()> {
        let retrying = (!transload_core::mutant!("streams/drain-waits-for-retries")).then(|| RETRYING.lock());
        Self::retry_all();
        let left = PENDING.lock().iter().filter(|(_, stream)| stream.device() == device).count();
        drop(retrying);
        if left == 0 {
            return Ok(());
        }
        let text = format!(
            "{left} uses of buffers on streams of {device} have not ended, since the streams are being captured into graphs; end the \
             captures first"
        );
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Waits until the thread that polls streams for tasks holds no handle of a stream whose other handles were dropped before this
    /// call. For a drain that shall see the owners of such streams.
    pub fn wait_for_poller() {
        Reactor::wait_for_handles();
    }

    fn retry_all() {
        let pending = PENDING.lock().len();
        for _ in 0..pending {
            // The others stay in sight of whom an end wakes on this thread.
            let Some((loan, stream)) = PENDING.lock().pop_front() else { return };
            // It stays if that fails, as during a capture.
            let _stays_if_it_fails = stream.try_end(loan);
        }
    }
}

impl StreamUse {
    /// Ends the use after everything enqueued on the stream so far.
    ///
    /// # Errors
    /// As for [`CudaStream::end_loan`]; [`ErrorKind::SourceFailed`] if work that the stream waits for is known to have failed by now, so
    /// that the work of the use read bytes that may be damaged. A later failure is returned by the next use of the buffer.
    pub fn end(mut self) -> Result<()> {
        let Some(loan) = self.loan.take() else { return Ok(()) };
        let outcome = loan.check_sources();
        self.stream.end_loan(loan).and(outcome)
    }
}

impl Drop for StreamUse {
    fn drop(&mut self) {
        if let Some(loan) = self.loan.take()
            && let Err(error) = self.stream.end_loan(loan)
        {
            report::call_failed("a loan ends later", self.stream.device(), &error);
        }
    }
}
