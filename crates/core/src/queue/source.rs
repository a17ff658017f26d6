//! The fallible work whose bytes an operation read: the operation's fence reports those failures, too.

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use crate::{BufferId, Error, ErrorKind, Fence, Place, Result, TimelineId, TransferPath};

/// Bytes that an operation read, and the fence of the operation that wrote them.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Without sources of its own: the list contains them separately.
    fence: Fence,
    buffer: BufferId,
    place: Place,
    range: Range<usize>,
}

/// Sources, deduplicated after the list has doubled: many ranges may have the same ones. One is stored inline.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourceList {
    list: SmallVec<[Source; 1]>,
    /// Number of sources after the last sort.
    folded: usize,
    /// The last operation that was added.
    last: Option<(TimelineId, u64)>,
}

/// Sources up to which a list is not sorted.
const MAX_UNSORTED: usize = 16;

impl SourceList {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds the sources of a reader of `range` that `fence`'s operation wrote: that operation if it can fail, and
    /// its own sources. Leaves out work known to have succeeded, so lists are as short as what is in flight.
    pub(crate) fn add(&mut self, fence: &Fence, (buffer, place): (BufferId, Place), range: Range<usize>) {
        let added = Some((fence.timeline().id(), fence.point()));
        if self.last == added {
            return;
        }
        self.last = added;
        if fence.timeline().can_fail() {
            self.list.push(Source { fence: fence.without_sources(), buffer, place, range });
        }
        self.add_sources_of(fence);
    }

    /// Adds the sources of an operation.
    pub(crate) fn add_sources_of(&mut self, fence: &Fence) {
        let sources = fence.sources().into_iter().flat_map(|sources| &sources.list);
        let unknown =
            sources.filter(|source| !(source.fence.is_known_complete() && source.fence.poll().is_ok()));
        self.list.extend(unknown.cloned());
        if self.list.len() > MAX_UNSORTED.max(2 * self.folded) {
            self.sort();
        }
    }

    /// Keeps one source for each operation.
    fn sort(&mut self) {
        self.list.sort_by_key(|source| (source.fence.timeline_address(), source.fence.point()));
        self.list.dedup_by(|one, other| one.fence.is_same_as(&other.fence));
        self.folded = self.list.len();
    }
}

/// All fallible work whose bytes an operation read and that was not known to have succeeded.
#[derive(Debug)]
pub(crate) struct Sources {
    list: SmallVec<[Source; 1]>,
    /// Source and destination of the operation, if it is a transfer.
    path: Option<TransferPath>,
}

impl Sources {
    pub(crate) fn new(mut list: SourceList, path: Option<TransferPath>) -> Option<Arc<Self>> {
        if list.list.len() > 1 {
            list.sort();
        }
        (!list.is_empty()).then(|| Arc::new(Self { list: list.list, path }))
    }

    /// Returns the first failure among the sources. Queries their timelines without waiting: incomplete work
    /// has not failed.
    ///
    /// # Errors
    /// [`ErrorKind::SourceFailed`].
    pub(crate) fn outcome(&self) -> Result<()> {
        self.list.iter().try_for_each(|source| match source.fence.poll() {
            Ok(_) => Ok(()),
            Err(error) => Err(self.failure(source, &error)),
        })
    }

    #[cold]
    fn failure(&self, source: &Source, error: &Error) -> Error {
        let Source { buffer, place, range, .. } = source;
        let reader = self.path.map_or_else(String::new, |path| format!(" by a transfer {path}"));
        let text = format!(
            "bytes {} to {} of {buffer} ({place}) were read{reader}, but the operation that wrote them failed",
            range.start, range.end
        );
        source_failed(text, error)
    }
}

/// Returns an [`ErrorKind::SourceFailed`] whose cause is the original error, not another `SourceFailed`.
pub(crate) fn source_failed(text: String, error: &Error) -> Error {
    let mut first = error;
    while first.kind() == ErrorKind::SourceFailed
        && let Some(earlier) = first.cause().and_then(|cause| cause.downcast_ref::<Error>())
    {
        first = earlier;
    }
    Error::caused_by(ErrorKind::SourceFailed, text, first.clone())
}
