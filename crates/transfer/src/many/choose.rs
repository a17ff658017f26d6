//! Chooses the way of a list.

use transload_core::{DeviceId, Error, ErrorKind, ListWay, Result, StreamPriority, TransferMethod};

use super::ListOptions;
use crate::{
    CrossBackendTransferManager, TransferOptions,
    methods::device_scratch::has_kernel,
    planning::{
        candidate::{Candidate, Excluded, bit},
        planner::{Choice, PathRoutes},
        request::PlanInput,
    },
};

impl CrossBackendTransferManager {
    /// Chooses the method that copies a group as one, and whether by kernel: what is predicted to take the least time. `None` if none
    /// does, or one by one is predicted to be faster.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the list is to go by a way that its path does not have.
    pub(super) fn choose_for_many(
        &self,
        routes: &mut PathRoutes,
        (input, count): (&PlanInput, usize),
        (options, wanted): (&TransferOptions, ListOptions),
        excluded: Excluded,
    ) -> Result<Option<Choice>> {
        if wanted.way == Some(ListWay::OneByOne) {
            return Ok(None);
        }
        let pieces = u64::try_from(count).unwrap_or(u64::MAX).max(1);
        let list = (pieces, input.bytes);
        let average = PlanInput { bytes: (input.bytes / pieces).max(1), ..*input };
        // What is queued for a copy engine changes no way that is wanted.
        let options = &match wanted.way {
            None => *options,
            Some(ListWay::CopyEngine | ListWay::ThroughDevice) => {
                options.priority(StreamPriority::Normal).forbid(TransferMethod::ZeroCopy)
            }
            Some(_) => options.priority(StreamPriority::Normal),
        };
        let single = match routes.choose(&average, options, &self.context, excluded) {
            Err(_) if excluded.declined != 0 && wanted.way.is_none() => return Ok(None),
            single => single?,
        };
        let takes = |candidate: &&Candidate| !candidate.method.takes_many(&input.path);
        let not = routes.candidates.iter().filter(takes);
        let unsuited = not.fold(excluded.unsuited, |methods, candidate| methods | bit(candidate.method()));
        let excluded = Excluded { unsuited, ..excluded };
        let has_in_place = routes.candidates.iter().any(|candidate| candidate.is_in_place());
        let choose = |routes: &mut PathRoutes, options: &TransferOptions| {
            let choice = routes.choose(input, options, &self.context, excluded).ok()?;
            // Reports list why methods do not apply to the path at all.
            Some(Choice { excluded: Excluded::default(), ..choice })
        };
        let of_devices = !input.path.src.device.is_cpu() && !input.path.dst.device.is_cpu();
        // One that accesses the host's memory delays other kernels, and waits for them.
        let may_be_kernel = of_devices
            || wanted.exclusive
            || wanted.way == Some(ListWay::CopyKernel)
            || routes.lists.are_known_beside()
            || transload_core::mutant!("transfer/many-kernel-unasked");
        let may_be_kernel = may_be_kernel && !wanted.through_device;
        let exclusive = wanted.exclusive
            || !routes.lists.are_known_beside()
            || transload_core::mutant!("transfer/list-beside");
        let kernels = options.allows(TransferMethod::ZeroCopy);
        // A single copy by one is what the caller asked for.
        let is_in_place = |routes: &PathRoutes, choice: &Choice| {
            routes.candidates.get(choice.index).is_some_and(|candidate| candidate.is_in_place())
        };
        let may_be_in_place = may_be_kernel || is_in_place(routes, &single);
        let usual = choose(routes, options).filter(|choice| may_be_in_place || !is_in_place(routes, choice));
        let can_be_kernel = |choice: &Choice| {
            (kernels || of_devices)
                && routes.candidates.get(choice.index).is_some_and(|candidate| candidate.route.has_kernel)
        };
        let by_kernel = match usual.filter(can_be_kernel) {
            _ if !may_be_kernel => None,
            Some(choice) => Some(Choice { by_kernel: true, ..choice }),
            None if kernels && has_in_place => choose(routes, &options.only(TransferMethod::ZeroCopy)),
            None => None,
        };
        let way = wanted.way.unwrap_or(match by_kernel {
            _ if wanted.through_device => ListWay::ThroughDevice,
            Some(_) if routes.lists.is_kernel_faster(exclusive, list) => ListWay::CopyKernel,
            _ => ListWay::CopyEngine,
        });
        let choice = if way == ListWay::CopyKernel { by_kernel } else { usual };
        if wanted.way.is_some() {
            let is_between = input.path.src.device.is_cpu() != input.path.dst.device.is_cpu();
            // The host's threads are none.
            let is_by_device = |choice: &Choice| {
                routes.candidates.get(choice.index).is_some_and(|Candidate { route, .. }| {
                    let may_go = || is_between && has_kernel(&*route.backend, route.lane);
                    !route.lane.is_cpu() && (way != ListWay::ThroughDevice || may_go())
                })
            };
            let choice = choice.filter(is_by_device);
            let text = || format!("no list {} can go by {way}", input.path);
            return choice.map(Some).ok_or_else(|| Error::new(ErrorKind::Unsupported, text()));
        }
        // The costs of single copies are those on an idle device.
        let time = |choice: &Choice| routes.lists.predict(way, true, list).unwrap_or(choice.predicted);
        let one_by_one = routes.lists.one_by_one(list, single.predicted);
        let is_beyond_singles = routes.lists.is_beyond_singles(pieces);
        Ok(choice.filter(|choice| time(choice) <= one_by_one).or(usual.filter(|_| is_beyond_singles)))
    }
}

/// Loads the kernel of a way that is wanted: copy engines would do what it is to do.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the driver rejects it; [`ErrorKind::DeviceLost`].
pub(super) fn load_kernel(
    candidate: &Candidate,
    choice: &Choice,
    (wanted, queue): (Option<ListWay>, Option<DeviceId>),
) -> Result<()> {
    let needs_kernel = choice.by_kernel || wanted == Some(ListWay::ThroughDevice);
    if wanted.is_none() || !needs_kernel || transload_core::mutant!("transfer/wanted-kernel-is-loaded") {
        return Ok(());
    }
    // Of two peers, a stream of either takes a list.
    let lane = queue.unwrap_or(candidate.route.lane);
    candidate.route.backend.prepare_in_place(lane).map_err(|error| match error.kind() {
        ErrorKind::DeviceLost => error,
        _ => Error::caused_by(ErrorKind::Unsupported, format!("{lane} cannot load the copy kernel"), error),
    })
}
