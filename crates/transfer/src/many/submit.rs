//! Submits a list: each group as one transfer if a method can, else pair by pair.

use std::{
    cell::Cell,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use transload_core::{
    BlockList, DeviceId, Error, ErrorKind, ListWay, Result, Submission, Timing, Transfer, TransferId,
    TransferMethod, TransferScope, Turns, Wanted,
};

use super::{
    CopyManyTransfer, List, ListOptions, Pair, Pieces,
    choose::load_kernel,
    groups::{BadPairs, Group, check_apart, grouped},
    through_device::{Rule, is_staged, may_go_through_device, ordered},
    transfer::Pairs,
};
use crate::{
    CrossBackendTransferManager, TransferOptions,
    attempt::{Deferral, Extras, NotSubmitted, TaskContext, is_the_callers},
    built_in::through_device::{LEAST_OPPOSED, SHORT},
    context::{ManagerContext, is_observed},
    methods::TransferRequest,
    planning::{
        candidate::{CandidateInfo, Excluded, THROUGH_DEVICE, bit},
        copied::Copied,
    },
    report_events,
    task_submission::{TaskSubmission, Work, is_pageable},
};

/// Pairs up to which the thread that polls a task checks and submits a list itself.
const FEW: usize = 64;

/// A list on its way.
pub(super) struct ManyCopies<'a> {
    pub(super) list: List<'a>,
    pub(super) wanted: ListOptions,
    /// That of its first group, if it was asked for already.
    id: Option<Option<TransferId>>,
    /// `None` until the list was checked.
    checked: Option<Checked>,
}

/// A checked list, and what was submitted of it.
struct Checked {
    groups: Vec<Group>,
    /// Index of the group to submit next.
    next: usize,
    /// How many of its pairs were submitted one by one; `None` if it is not known yet that they are.
    singles: Option<usize>,
    turns: Turns,
    /// That of what is submitted next, once it was asked for.
    id: Option<Option<TransferId>>,
    transfer: CopyManyTransfer,
}

/// Returns the device at an end of the first pair that copies something.
fn lane_of(list: &[Pair]) -> DeviceId {
    let first = list.iter().find(|(src, _)| !src.is_empty());
    let mut ends = first.into_iter().flat_map(|(src, dst)| [dst.place().device, src.place().device]);
    ends.find(|device| !device.is_cpu()).unwrap_or(DeviceId::Cpu)
}

impl<'a> ManyCopies<'a> {
    pub(super) fn new(list: List<'a>, wanted: ListOptions, id: Option<Option<TransferId>>) -> Self {
        Self { list, wanted, id, checked: None }
    }

    /// Submits what is left. Blocks the thread if there is no task, which says whether it may be slow.
    ///
    /// # Errors
    /// When to try again, if there is a task.
    pub(super) fn attempt(
        &mut self,
        manager: &CrossBackendTransferManager,
        (options, extras): (&TransferOptions, &Extras<'_>),
        may_be_slow: Option<bool>,
    ) -> Result<CopyManyTransfer, Deferral> {
        let list = &*self.list;
        // A way that is wanted is checked before anything is submitted, and may need a kernel.
        if may_be_slow == Some(false) && (list.len() > FEW || self.wanted.way.is_some()) {
            return Err(Deferral::Slow(lane_of(list)));
        }
        let checked = match &mut self.checked {
            Some(checked) => checked,
            none => match Checked::new(manager, list, self.wanted, (options, extras)) {
                Ok(checked) => none.insert(Checked { id: self.id, ..checked }),
                Err(bad) => return Ok(refused(manager, list.len(), bad)),
            },
        };
        while let Some(group) = checked.groups.get(checked.next) {
            let pairs = group.pairs(list);
            let context = may_be_slow.map(|may_be_slow| {
                let turns = &checked.turns;
                TaskContext { turns, may_be_slow, deferral: Cell::default() }
            });
            // Several are waited for one after the other, and only the last one is waited for as soon as it is submitted.
            let (is_last, is_one) = (checked.next + 1 == checked.groups.len(), checked.groups.len() == 1);
            let is_last_single = |pair| is_last && pair + 1 == pairs.len();
            let waits = extras.waits && checked.singles.map_or(is_one, is_last_single);
            let has_others = !is_one || checked.singles.is_some() && pairs.len() > 1;
            // Not again where a task tries again, nor for each of the pairs.
            let id = *checked.id.get_or_insert_with(|| manager.context.transfer_id(group.input.bytes));
            let id = match checked.singles {
                Some(_) if !transload_core::mutant!("transfer/list-by-pairs-is-one") => {
                    checked.transfer.part_id(checked.next)
                }
                _ => id,
            };
            let extras = Extras { id, task: context.as_ref(), waits, has_others, ..*extras };
            let transfer = match checked.singles {
                None => manager.submit_group(group, Pieces::Pairs(pairs), self.wanted, (options, &extras)),
                Some(pair) => match pairs.get(pair) {
                    Some((src, dst)) if !src.is_empty() => {
                        Some(manager.attempt(src, dst, options, Some(&extras)))
                    }
                    _ => None,
                },
            };
            if let Some(deferral) = context.and_then(|context| context.deferral.take()) {
                return Err(deferral);
            }
            if transfer.is_none() && checked.singles.is_none() {
                // A list of one group is checked by the queue that takes it.
                if group.is_whole()
                    && let Err(bad) = check_apart(list)
                {
                    return Ok(refused(manager, list.len(), bad));
                }
                checked.singles = Some(0);
                checked.transfer.begin_singles(checked.next, id);
                continue;
            }
            let index = checked.next;
            let of = match checked.singles {
                None => Pairs::Group(index),
                Some(pair) => Pairs::One(index, pair),
            };
            let has_more = checked.singles.is_some_and(|pair| pair + 1 < pairs.len());
            if let Some(transfer) = transfer {
                checked.transfer.add(transfer, of);
            }
            checked.turns = Turns::default();
            if has_more {
                checked.singles = checked.singles.map(|pair| pair + 1);
            } else {
                checked.transfer.end_singles(index);
                (checked.singles, checked.next, checked.id) = (None, index + 1, None);
            }
        }
        let none_left = CopyManyTransfer::new(&manager.context, 0);
        Ok(mem::replace(&mut checked.transfer, none_left))
    }
}

/// Returns the handle of a list of which nothing was copied.
fn refused(
    manager: &CrossBackendTransferManager,
    count: usize,
    (indices, error): BadPairs,
) -> CopyManyTransfer {
    let mut transfer = CopyManyTransfer::new(&manager.context, count);
    transfer.add(manager.refuse(TransferId::if_wanted(Wanted::Failure), error), Pairs::Refused(indices));
    transfer
}

impl Checked {
    /// Checks the list. If it has several groups, each has a method, and the way that is wanted: nothing is copied otherwise.
    fn new(
        manager: &CrossBackendTransferManager,
        list: &[Pair],
        wanted: ListOptions,
        (options, extras): (&TransferOptions, &Extras<'_>),
    ) -> Result<Self, BadPairs> {
        let mut transfer = CopyManyTransfer::new(&manager.context, list.len());
        let mut groups = grouped(list)?;
        for group in &mut groups {
            let Some(all) = group.indices.take() else {
                transfer.add_whole(group.empty_of(list));
                continue;
            };
            let queue = extras.queue.map(|queue| queue.device());
            let planned = manager.plan_on(&group.input, options, queue, Copied::Pairs(group.pairs(list)));
            let checked = planned.and_then(|_| manager.check_way((group, list), (options, wanted), queue));
            checked.map_err(|error| (all.as_slice().into(), error))?;
            transfer.add_group(Some(all.into()));
        }
        Ok(Self { groups, next: 0, singles: None, turns: Turns::default(), id: None, transfer })
    }
}

impl CrossBackendTransferManager {
    /// Submits a list of blocks as one transfer, without making its pairs. `None` if nothing was submitted: the pairs are to be submitted, with
    /// the id if it was asked for.
    pub(super) fn submit_blocks(
        &self,
        blocks: &BlockList,
        wanted: ListOptions,
        (options, extras): (&TransferOptions, &Extras<'_>),
        asked: &mut Option<Option<TransferId>>,
    ) -> Option<CopyManyTransfer> {
        let group = Group::of_blocks(blocks).filter(|_| extras.after.is_empty())?;
        let id = self.context.transfer_id(group.input.bytes);
        *asked = Some(id).filter(|_| !transload_core::mutant!("transfer/blocks-are-asked-for-once"));
        let extras = Extras { id, waits: extras.waits && id.is_none(), ..*extras };
        let mut transfer = CopyManyTransfer::new(&self.context, blocks.len());
        transfer.add_group(None);
        let submitted = self.submit_group(&group, Pieces::Blocks(blocks), wanted, (options, &extras))?;
        transfer.add(submitted, Pairs::Group(0));
        Some(transfer)
    }

    /// Submits a group as one transfer. `None` if nothing was submitted: the task knows why, or the pairs are to be copied one by one,
    /// or two overlap, or blocks go as pairs.
    pub(super) fn submit_group(
        &self,
        group: &Group,
        pieces: Pieces<'_>,
        wanted: ListOptions,
        (options, extras): (&TransferOptions, &Extras<'_>),
    ) -> Option<Transfer> {
        let (Group { input, count, .. }, id) = (group, extras.id);
        let (src, dst) = pieces.first()?;
        let timing = options.timing.unwrap_or_default();
        let registry = &*self.registry;
        let (mut cache, mut declined) = (registry.route_cache(), 0);
        let is_wanted = wanted.way == Some(ListWay::ThroughDevice);
        let is_opposed = wanted.exclusive
            && wanted.way.is_none()
            && input.bytes >= LEAST_OPPOSED
            && cache
                .opposite(registry, &input.path)
                .is_some_and(|copies| copies.in_flight() >= input.bytes / 2);
        let exclusive = wanted.exclusive && !is_opposed;
        let mut in_order = None;
        let mut shortage: Option<(Error, Submission, Arc<CandidateInfo>)> = None;
        if (wanted.way.is_none() || is_wanted) && options.allows(TransferMethod::DirectCopy) {
            let mut known = || {
                let lists = &cache.routes(registry, &input.path).ok()?.lists;
                lists.is_faster_through_device(exclusive, (*count as u64, input.bytes))
            };
            let rule = if is_wanted { Rule::Wanted } else { known().map_or(Rule::BuiltIn, Rule::Faster) };
            if may_go_through_device(*count as u64, input, exclusive, rule) {
                if is_staged(&input.path) {
                    // As pairs, if these are blocks.
                    pieces.pairs()?;
                }
                in_order = ordered(pieces, input, exclusive, rule);
            }
        }
        // Short pieces that cannot go so are still copied faster by a kernel than by engines.
        let are_long = input.bytes > SHORT.saturating_mul(*count as u64);
        let exclusive = wanted.exclusive && !(is_opposed && (in_order.is_some() || are_long));
        let wanted = ListOptions { through_device: in_order.is_some(), exclusive, ..wanted };
        loop {
            let chosen = cache.routes(registry, &input.path).and_then(|routes| {
                let unsuited = extras.queue.map_or(Ok(0), |queue| routes.off_queue(queue.device()))?;
                let copied = match pieces.pairs() {
                    Some(pairs) => Copied::Pairs(pairs),
                    // As pairs.
                    None if routes.checks_buffers => return Ok(None),
                    None => Copied::Any,
                };
                let unfit = routes.unfit(copied);
                let excluded = Excluded { declined, unsuited, unfit, ..Excluded::default() };
                let choice = self.choose_for_many(routes, (input, *count), (options, wanted), excluded);
                let choice = choice.map_err(|error| routes.with_cause(error, copied, options))?;
                Ok(choice.and_then(|choice| Some((routes.candidates.get_mut(choice.index)?, choice))))
            });
            let (candidate, choice) = match chosen {
                Ok(chosen) => chosen?,
                Err(error) => {
                    return Some(match shortage {
                        Some((shortage, submission, info)) => self.failed(shortage, &submission, &info, id),
                        None => self.refuse(id, error),
                    });
                }
            };
            if let Some(task) = extras.task
                && !task.may_be_slow
                && candidate.is_slow_to_submit(input, options.priority)
            {
                task.deferral.set(Some(Deferral::Slow(candidate.route.lane)));
                return None;
            }
            if let Err(methods) = registry.prepare(&input.path, candidate) {
                report_events::declined(id, input.path, candidate.method());
                declined |= methods;
                continue;
            }
            let queue = extras.queue.map(|queue| queue.device());
            if let Err(error) = load_kernel(candidate, &choice, (wanted.way, queue)) {
                return Some(self.refuse(id, error));
            }
            let by_kernel = choice.by_kernel;
            let request = TransferRequest { src, dst, options, timing, by_kernel, extras: Some(extras) };
            let mut submission = candidate.submission(input, &choice);
            submission.chunks = u32::try_from(*count).unwrap_or(u32::MAX);
            // The costs are those of single copies.
            submission.predicted = Duration::ZERO;
            let info = candidate.share_info();
            self.context.unobserved.check_few(&self.context);
            if timing == Timing::Measured || is_observed(id) {
                submission.begun = Some(Instant::now());
            }
            let scope = TransferScope::enter(id);
            let mut through_device = Ok(None);
            if let Some(in_order) = &in_order {
                through_device =
                    candidate.method.submit_through_device(&candidate.route, &request, in_order.pairs());
            }
            let submitted = match through_device.transpose() {
                Some(submitted) => {
                    submission.tag |= THROUGH_DEVICE;
                    submitted
                }
                None if is_wanted => {
                    // Their pools may overlap.
                    pieces.pairs()?;
                    let text = format!("a list {} cannot go through device memory", input.path);
                    Err(NotSubmitted::Failed(Error::new(ErrorKind::Unsupported, text)))
                }
                None => match pieces {
                    Pieces::Pairs(pairs) => candidate.method.submit_many(&candidate.route, &request, pairs),
                    Pieces::Blocks(blocks) => {
                        candidate.method.submit_blocks(&candidate.route, &request, blocks).transpose()?
                    }
                },
            };
            drop(scope);
            if let Some(begun) = submission.begun {
                submission.submitting = begun.elapsed();
            }
            let error = match submitted {
                Ok(end) => {
                    self.accepted(candidate, &choice, options.priority, (&end, &submission, &info), id);
                    return Some(Self::handle_of(end, submission, info, id));
                }
                Err(NotSubmitted::Deferred(deferral)) => {
                    if let Some(task) = extras.task {
                        task.deferral.set(Some(deferral));
                    }
                    return None;
                }
                Err(NotSubmitted::Failed(error)) => error,
            };
            let method = candidate.method();
            match error.kind() {
                ErrorKind::Overlap => return None,
                // The peer's memory grants no access, which copies of single pairs do not need.
                ErrorKind::Unsupported if method == TransferMethod::PeerToPeer && wanted.way.is_none() => {
                    return None;
                }
                // Its queues cannot take a list, or memory is short.
                ErrorKind::Unsupported => declined |= bit(method),
                ErrorKind::OutOfMemory if !transload_core::mutant!("transfer/list-shortage-declines") => {
                    declined |= bit(method);
                    shortage.get_or_insert((error, submission, info));
                }
                kind if is_the_callers(kind) => return Some(self.refuse(id, error)),
                _ => return Some(self.failed(error, &submission, &info, id)),
            }
        }
    }

    /// Checks that a group can go by the way that is wanted.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if not.
    fn check_way(
        &self,
        (group, list): (&Group, &[Pair]),
        (options, wanted): (&TransferOptions, ListOptions),
        queue: Option<DeviceId>,
    ) -> Result<()> {
        if wanted.way.is_none() || transload_core::mutant!("transfer/list-ways-checked-first") {
            return Ok(());
        }
        let Group { input, count, .. } = group;
        let (mut cache, mut declined) = (self.registry.route_cache(), 0);
        loop {
            let routes = cache.routes(&self.registry, &input.path)?;
            let unsuited = queue.map_or(Ok(0), |queue| routes.off_queue(queue))?;
            let unfit = routes.unfit(Copied::Pairs(group.pairs(list)));
            let excluded = Excluded { declined, unsuited, unfit, ..Excluded::default() };
            let choice = self.choose_for_many(routes, (input, *count), (options, wanted), excluded)?;
            let Some(choice) = choice else { return Ok(()) };
            let Some(candidate) = routes.candidates.get(choice.index) else { return Ok(()) };
            match self.registry.prepare(&input.path, candidate) {
                Ok(()) => return load_kernel(candidate, &choice, (wanted.way, queue)),
                Err(methods) => declined |= methods,
            }
        }
    }
}

/// The list of a task.
pub(super) struct OwnedList(pub(super) ManyCopies<'static>);

impl Work for OwnedList {
    type Submitted = CopyManyTransfer;

    fn attempt(task: &mut TaskSubmission<Self>, may_be_slow: bool) -> Result<CopyManyTransfer, Deferral> {
        let TaskSubmission { manager, options, after, queue, work: OwnedList(copies), .. } = task;
        let extras = Extras { after, queue: queue.as_deref(), ..Extras::default() };
        copies.attempt(manager, (options, &extras), Some(may_be_slow))
    }

    fn uses_pageable(&self) -> bool {
        self.0.list.iter().any(|(src, dst)| is_pageable(src.place()) || is_pageable(dst.place()))
    }

    fn refused(work: Option<Self>, context: &Arc<ManagerContext>, refusal: Transfer) -> CopyManyTransfer {
        match work.and_then(|OwnedList(copies)| copies.checked) {
            Some(Checked { next, singles, mut transfer, .. }) => {
                transfer.add(refusal, Pairs::From(next, singles.unwrap_or(0)));
                transfer
            }
            None => CopyManyTransfer::refused(context, refusal),
        }
    }
}
