//! What the buffers of a copy exclude: methods that apply to their places and cannot copy them.

use transload_core::{Error, ErrorKind, RawBuffer, Result, TransferMethod};

use super::{
    candidate::{Candidate, bit},
    planner::PathRoutes,
};
use crate::{TransferOptions, strided::Rows};

/// What is copied.
#[derive(Clone, Copy)]
pub(crate) enum Copied<'a> {
    /// Any buffers of the places.
    Any,
    All(&'a RawBuffer, &'a RawBuffer),
    Rows(&'a RawBuffer, &'a RawBuffer, &'a Rows),
    Pairs(&'a [(RawBuffer, RawBuffer)]),
}

impl<'a> Copied<'a> {
    pub(crate) fn new((src, dst): (&'a RawBuffer, &'a RawBuffer), rows: Option<&'a Rows>) -> Self {
        rows.map_or(Self::All(src, dst), |rows| Self::Rows(src, dst, rows))
    }

    fn try_for_each(self, mut check: impl FnMut(&RawBuffer, &RawBuffer) -> Result<()>) -> Result<()> {
        match self {
            Self::Any => Ok(()),
            Self::All(src, dst) => check(src, dst),
            Self::Rows(src, dst, rows) => {
                rows.first_ones(src, dst)?.iter().try_for_each(|(src, dst)| check(src, dst))
            }
            Self::Pairs(pairs) => {
                let mut pairs = pairs.iter().filter(|(src, _)| !src.is_empty());
                pairs.try_for_each(|(src, dst)| check(src, dst))
            }
        }
    }
}

impl Candidate {
    /// Returns whether there are buffers along its route that it may not copy.
    pub(super) fn checks_buffers(&self) -> bool {
        let path = self.info.stats.path;
        let second = self.route.second.as_ref().map(|(backend, _)| backend);
        let mut backends = [&self.route.backend].into_iter().chain(second);
        self.is_in_place_by_host()
            || backends.any(|backend| backend.checks_copies(path.src) || backend.checks_copies(path.dst))
    }

    fn is_in_place_by_host(&self) -> bool {
        self.method() == TransferMethod::ZeroCopy && self.route.lane.is_cpu()
    }

    /// # Errors
    /// Why it cannot copy them.
    fn check(&self, src: &RawBuffer, dst: &RawBuffer) -> Result<()> {
        let backend = &self.route.backend;
        let own = |buffer: &'_ RawBuffer| !buffer.place().device.is_cpu();
        match self.method() {
            TransferMethod::DirectCopy | TransferMethod::PeerToPeer => {
                backend.check_copy(Some(src), Some(dst))
            }
            // From and to memory of the host.
            TransferMethod::HostStaged => {
                let of_dst = self.route.second.as_ref().map_or(backend, |(second, _)| second);
                backend.check_copy(Some(src).filter(|src| own(src)), None)?;
                of_dst.check_copy(None, Some(dst).filter(|dst| own(dst)))
            }
            TransferMethod::ZeroCopy if self.is_in_place_by_host() => {
                let is_mapped = src.mapped_address().is_some() && dst.mapped_address().is_some();
                let unmapped = || {
                    let text = "a buffer is not mapped for the host, such as one that a framework made";
                    Error::new(ErrorKind::Unsupported, text)
                };
                if is_mapped { Ok(()) } else { Err(unmapped()) }
            }
            _ => Ok(()),
        }
    }
}

impl PathRoutes {
    /// Returns the methods that cannot copy these buffers: a bit for each method's index.
    #[cold]
    pub(crate) fn unfit(&self, copied: Copied<'_>) -> u8 {
        if !self.checks_buffers || transload_core::mutant!("transfer/buffers-are-checked") {
            return 0;
        }
        let unfit =
            |candidate: &&Candidate| copied.try_for_each(|src, dst| candidate.check(src, dst)).is_err();
        self.candidates.iter().filter(unfit).fold(0, |methods, candidate| methods | bit(candidate.method()))
    }

    /// Returns the error of a choice without a method left, with what is wrong with the buffers, if a method that is not forbidden lacks that.
    #[cold]
    pub(crate) fn with_cause(&self, error: Error, copied: Copied<'_>, options: &TransferOptions) -> Error {
        if !self.checks_buffers || error.kind() != ErrorKind::Unsupported {
            return error;
        }
        let check = |candidate: &Candidate| copied.try_for_each(|src, dst| candidate.check(src, dst)).err();
        let mut allowed = self.candidates.iter().filter(|candidate| options.allows(candidate.method()));
        match allowed.find_map(check) {
            Some(cause) => Error::caused_by(ErrorKind::Unsupported, error.to_string(), cause),
            None => error,
        }
    }
}
