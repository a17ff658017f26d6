//! Lists of pairs that are planned and recorded once, and replayed any number of times.

use std::{fmt, ops::ControlFlow, sync::Arc};

use parking_lot::ReentrantMutex;
use transload_core::{
    DeviceId, Error, ErrorKind, MemoryKind, RawBuffer, Result, Transfer, TransferId, TransferMethod,
    TransferPath, TransferReport, TransferState, Wanted, runs_by_allocation,
};

use super::{
    CopyManyTransfer, ListOptions, Pair, Pieces,
    groups::{Group, check_apart},
    recorded_graph::{PlannedPair, RecordedGraph},
    transfer::Pairs,
};
use crate::{
    CrossBackendTransferManager, TransferOptions,
    attempt::Extras,
    built_in::RECORDED_COPIES,
    planning::{copied::Copied, request::PlanInput},
};

/// A recorded list of pairs, which keeps its buffers alive. Any thread may replay it. Two replays have the effect of one after the
/// other; each of their groups is ordered against all other work on its buffers, like any transfer.
pub struct RecordedTransfers {
    manager: CrossBackendTransferManager,
    options: TransferOptions,
    by_kernel: bool,
    /// Number of pairs.
    count: usize,
    segments: Vec<Segment>,
    /// Whether some touch common bytes, and a replay is several operations.
    is_ordered: bool,
    /// Locked while ordered pairs are submitted, so that those of another replay do not come between.
    submitting: ReentrantMutex<()>,
}

/// Pairs that a replay submits as one, where a method can.
struct Segment {
    /// Their indices in the list, ascending; `None` if they are the whole list.
    indices: Option<Arc<[usize]>>,
    planned: TransferReport,
    work: Work,
}

/// How a replay submits them.
enum Work {
    /// As one operation of a device's queue.
    Graph(Box<RecordedGraph>),
    /// Anew: pairs of one path.
    Anew(Group, Vec<Pair>),
}

/// What the pairs of a segment have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    /// The device whose queue records them.
    Lane(DeviceId),
    /// The path of pairs that are not recorded.
    Path(TransferPath),
}

impl RecordedTransfers {
    /// Runs all transfers again. They read what the sources hold then. Submitted before this returns, which blocks the thread where
    /// [`CopyBuilder::submit`](crate::CopyBuilder::submit) of a pair that is not recorded does.
    ///
    /// If some touch common bytes and not all are one operation of a queue, a second thread's replay waits until this one's pairs are
    /// submitted, and so until the [`Observer`](transload_core::Observer) and subscribers of `tracing` have taken their events: these may
    /// not wait for another thread's replay. Such a replay stops at the first pair or group that is refused.
    ///
    /// The report has a group for each device, and one for each path that is not recorded. A device's has the bytes of all its
    /// transfers, their number (as chunks), and the path and method of the first one.
    ///
    /// # Errors
    /// By the [`CopyManyTransfer`], with the pairs of each group that failed, and those that were not submitted after them:
    /// [`ErrorKind::Busy`] if a host view is open on a range, [`ErrorKind::DeviceLost`]; the backend's. [`ErrorKind::Unsupported`] if an
    /// observer or subscriber calls it while it takes an event of such a replay of this recording.
    pub fn replay(&self) -> CopyManyTransfer {
        let mut transfer = CopyManyTransfer::new(&self.manager.context, self.count);
        self.segments.iter().for_each(|segment| transfer.add_group(segment.indices.clone()));
        if self.submitting.is_owned_by_current_thread() {
            let text = "the thread is submitting this recording; its observers cannot replay it";
            let error = Error::new(ErrorKind::Unsupported, text);
            transfer
                .add(self.manager.refuse(TransferId::if_wanted(Wanted::Failure), error), Pairs::From(0, 0));
            return transfer;
        }
        let is_ordered = self.is_ordered && !transload_core::mutant!("transfer/recorded-replays-in-order");
        let _in_order = is_ordered.then(|| self.submitting.lock());
        let mut segments = self.segments.iter().enumerate();
        // What is missing is told by the transfer.
        let _stopped = segments.try_for_each(|(index, segment)| self.submit(index, segment, &mut transfer));
        transfer
    }

    /// Submits a segment: as one if a method can, else pair by pair.
    fn submit(&self, index: usize, segment: &Segment, transfer: &mut CopyManyTransfer) -> ControlFlow<()> {
        let (group, pairs) = match &segment.work {
            Work::Graph(graph) => return self.add(graph.replay(), Pairs::Group(index), transfer),
            Work::Anew(group, pairs) => (group, pairs),
        };
        let id = self.manager.context.transfer_id(group.input.bytes);
        let extras = Extras { id, ..Extras::default() };
        let (options, wanted) =
            (&self.options, ListOptions { exclusive: self.by_kernel, ..ListOptions::default() });
        let pieces = Pieces::Pairs(pairs);
        if let Some(whole) = self.manager.submit_group(group, pieces, wanted, (options, &extras)) {
            return self.add(whole, Pairs::Group(index), transfer);
        }
        transfer.begin_singles(index, id);
        let added = pairs.iter().enumerate().try_for_each(|(pair, (src, dst))| {
            let extras = Extras { id: transfer.part_id(index), ..Extras::default() };
            let one = self.manager.attempt(src, dst, options, Some(&extras));
            self.add(one, Pairs::One(index, pair), transfer)
        });
        transfer.end_singles(index);
        added
    }

    /// Adds a transfer of some of the pairs. Breaks if it was refused and later ones may depend on it, which then fail too.
    fn add(&self, one: Transfer, of: Pairs, transfer: &mut CopyManyTransfer) -> ControlFlow<()> {
        let is_refused = self.is_ordered && one.fence().is_none() && one.state() == TransferState::Refused;
        if !is_refused || transload_core::mutant!("transfer/recorded-stops-at-refusal") {
            transfer.add(one, of);
            return ControlFlow::Continue(());
        }
        let (group, pair) = match of {
            Pairs::One(group, pair) | Pairs::From(group, pair) => (group, pair),
            Pairs::Group(group) => (group, 0),
            Pairs::Refused(_) => (0, 0),
        };
        transfer.add(one, Pairs::From(group, pair));
        ControlFlow::Break(())
    }

    /// Returns what a replay would report of each group, before it is submitted. Of a group that each replay submits anew, it is the plan of
    /// one copy of all bytes, and the replay chooses for the list.
    pub fn planned(&self) -> impl ExactSizeIterator<Item = &TransferReport> {
        self.segments.iter().map(|segment| &segment.planned)
    }
}

impl CrossBackendTransferManager {
    /// Records transfers, each from all of its first buffer to all of its second, to be submitted together any number of times. Moves
    /// nothing. Those that touch common bytes take effect in the order given.
    ///
    /// The transfers of one device become one operation of its queue: a CUDA graph with a node for each, or with one launch of a kernel
    /// for all, if none of them touch common bytes, and a kernel copies every one of them, or all are of one path within the device and
    /// the kernel is predicted to be faster. If some of the list touch common bytes, each run of transfers of one device is one operation.
    /// The others are prepared once and submitted anew by each replay: what a queue cannot record, which is staged copies, those of
    /// pageable memory and those within the host; and if none of the list touch common bytes, more than three of a path by copy engines
    /// between pinned or mapped memory and a device, or between peers, for which a batch call, or a copy kernel, is faster than a graph.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] without pairs; [`ErrorKind::Unsupported`] if a pair has no method, with the reason of each, or if a
    /// device's backend cannot record; those of [`copy`](Self::copy) that do not depend on earlier work.
    pub fn record(
        &self,
        pairs: &[(RawBuffer, RawBuffer)],
        options: &TransferOptions,
    ) -> Result<RecordedTransfers> {
        self.record_with(pairs, options, false)
    }

    /// Like [`record`](Self::record), by kernels where they apply, if `exclusive` and they are predicted to be faster.
    pub(super) fn record_with(
        &self,
        pairs: &[Pair],
        options: &TransferOptions,
        exclusive: bool,
    ) -> Result<RecordedTransfers> {
        let by_kernel = exclusive && options.allows(TransferMethod::ZeroCopy) && self.is_kernel_faster(pairs);
        let planned = pairs.iter().map(|pair| self.plan_recorded(pair, options, by_kernel));
        let mut planned = planned.collect::<Result<Vec<_>>>()?;
        let is_apart = pairs.len() == 1 || check_apart(pairs).is_ok();
        if is_apart {
            leave_to_engines(&mut planned);
        }
        let (keys, mut planned): (Vec<Key>, Vec<Option<PlannedPair>>) = planned.into_iter().unzip();
        let mut segments = Vec::new();
        let parts = parts_of(&keys, is_apart);
        let is_one = parts.len() == 1;
        for (key, indices) in parts {
            let part: Vec<Pair> = indices.iter().filter_map(|index| pairs.get(*index).cloned()).collect();
            let planned = indices.iter().filter_map(|index| planned.get_mut(*index)?.take()).collect();
            let (planned, work) = self.prepare_segment(key, part, planned, options)?;
            segments.push(Segment { indices: (!is_one).then(|| indices.into()), planned, work });
        }
        if segments.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a recording needs at least one transfer"));
        }
        let is_ordered = !is_apart && !matches!(segments.as_slice(), [Segment { work: Work::Graph(_), .. }]);
        Ok(RecordedTransfers {
            manager: self.clone(),
            options: *options,
            by_kernel,
            count: pairs.len(),
            segments,
            is_ordered,
            submitting: ReentrantMutex::new(()),
        })
    }

    /// Returns the pair's key, and how a queue would record it, if one can.
    fn plan_recorded(
        &self,
        pair: &Pair,
        options: &TransferOptions,
        by_kernel: bool,
    ) -> Result<(Key, Option<PlannedPair>)> {
        let kernel = by_kernel.then(|| self.plan_single(pair, &options.only(TransferMethod::ZeroCopy)));
        let single = match kernel {
            Some(Ok(single)) => Ok(single),
            _ => self.plan_single(pair, options),
        };
        match single {
            Ok(single) if !single.report.lane.is_cpu() => Ok((Key::Lane(single.report.lane), Some(single))),
            Err(error) if error.kind() != ErrorKind::Unsupported => Err(error),
            _ => {
                let input = PlanInput::of(&pair.0, &pair.1)?;
                self.plan_on(&input, options, None, Copied::All(&pair.0, &pair.1))
                    .map(|_| (Key::Path(input.path), None))
            }
        }
    }

    fn prepare_segment(
        &self,
        key: Key,
        pairs: Vec<Pair>,
        planned: Vec<PlannedPair>,
        options: &TransferOptions,
    ) -> Result<(TransferReport, Work)> {
        match key {
            Key::Lane(_) => {
                let graph = RecordedGraph::new(self, options, &pairs, &planned)?;
                Ok((graph.planned().clone(), Work::Graph(Box::new(graph))))
            }
            Key::Path(path) => {
                let mut group = Group::new(path);
                runs_by_allocation(&pairs).for_each(|run| group.add(run));
                let mut report = TransferReport::clone(&*self.plan_on(
                    &group.input,
                    options,
                    None,
                    Copied::Pairs(&pairs),
                )?);
                report.chunks = u32::try_from(pairs.len()).unwrap_or(u32::MAX);
                Ok((report, Work::Anew(group, pairs)))
            }
        }
    }
}

/// Takes many copies by engines between the host and a device, or between peers, out of the recording: a list is faster.
fn leave_to_engines(planned: &mut [(Key, Option<PlannedPair>)]) {
    let path_of = |planned: &Option<PlannedPair>| {
        let TransferReport { path, method, .. } = planned.as_ref()?.report;
        let is_fixed = [path.src, path.dst].iter().all(|place| place.kind != MemoryKind::Unified);
        let is_link = path.src.device.is_cpu() != path.dst.device.is_cpu() && is_fixed;
        (method == TransferMethod::DirectCopy && is_link || method == TransferMethod::PeerToPeer)
            .then_some(path)
    };
    let mut counts: Vec<(TransferPath, usize)> = Vec::new();
    for path in planned.iter().filter_map(|(_, planned)| path_of(planned)) {
        match counts.iter_mut().find(|(of, _)| *of == path) {
            Some((_, count)) => *count += 1,
            None => counts.push((path, 1)),
        }
    }
    for (key, planned) in planned {
        if let Some(path) = path_of(planned)
            && counts.iter().any(|(of, count)| *of == path && *count > RECORDED_COPIES)
        {
            (*key, *planned) = (Key::Path(path), None);
        }
    }
}

/// Returns the indices of the pairs of each segment: all of a key, or runs of them if their order matters.
fn parts_of(keys: &[Key], is_apart: bool) -> Vec<(Key, Vec<usize>)> {
    let are_apart = is_apart || transload_core::mutant!("transfer/recorded-runs");
    let mut parts: Vec<(Key, Vec<usize>)> = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        let latest = if are_apart { 0 } else { parts.len().saturating_sub(1) };
        match parts.iter_mut().skip(latest).find(|(of, _)| of == key) {
            Some((_, indices)) => indices.push(index),
            None => parts.push((*key, vec![index])),
        }
    }
    parts
}

impl fmt::Debug for RecordedTransfers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordedTransfers({} transfers", self.count)?;
        self.planned().try_for_each(|group| write!(f, ", {group}"))?;
        f.write_str(")")
    }
}
