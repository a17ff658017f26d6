//! The fallible work whose bytes an operation read: the operation's fence reports those failures, too.

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use crate::{BufferId, Error, ErrorKind, Fence, Place, Result, TransferPath};

/// Bytes that an operation read, and the fence of the operation that wrote them.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Without sources of its own: the list contains them separately.
    fence: Fence,
    buffer: BufferId,
    place: Place,
    range: Range<usize>,
}

/// One source is stored inline.
pub(crate) type SourceList = SmallVec<[Source; 1]>;

/// All fallible work whose bytes an operation read and that was not known to have succeeded.
#[derive(Debug)]
pub(crate) struct Sources {
    list: SourceList,
    /// Source and destination of the operation, if it is a transfer.
    path: Option<TransferPath>,
}

impl Sources {
    pub(crate) fn new(mut list: SourceList, path: Option<TransferPath>) -> Option<Arc<Self>> {
        if list.len() > 1 {
            list.sort_by_key(|source| (source.fence.timeline_address(), source.fence.point()));
            list.dedup_by(|one, other| one.fence.is_same_as(&other.fence));
        }
        (!list.is_empty()).then(|| Arc::new(Self { list, path }))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Source> {
        self.list.iter()
    }

    /// Returns the first failure among the sources. Queries their timelines without waiting: incomplete work
    /// has not failed.
    ///
    /// # Errors
    /// [`ErrorKind::SourceFailed`].
    pub(crate) fn outcome(&self) -> Result<()> {
        self.list.iter().try_for_each(|source| match source.fence.timeline().poll(source.fence.point()) {
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

/// Adds the sources of a reader of `range` that `fence`'s operation wrote: that operation if it can fail, and
/// its own sources. Leaves out work known to have succeeded, so lists are as short as what is in flight.
pub(crate) fn add_sources(
    list: &mut SourceList,
    fence: &Fence,
    (buffer, place): (BufferId, Place),
    range: Range<usize>,
) {
    if fence.timeline().can_fail() {
        list.push(Source { fence: fence.without_sources(), buffer, place, range });
    }
    let earlier = fence.sources().into_iter().flat_map(|sources| &sources.list);
    let unknown = earlier.filter(|source| {
        !(source.fence.is_known_complete() && source.fence.timeline().poll(source.fence.point()).is_ok())
    });
    list.extend(unknown.cloned());
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
