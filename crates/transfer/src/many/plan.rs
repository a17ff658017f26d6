//! What a list would do, and which of its ways is the fastest.

use std::{fmt, time::Duration};

use transload_core::{
    CostBasis, Error, ErrorKind, ListWay, Place, RawBuffer, Result, TransferMethod, TransferPath,
};

use super::{
    ListOptions,
    through_device::{Rule, may_go_through_device},
};
use crate::{
    CrossBackendTransferManager, NotChosen, TransferOptions,
    planning::{
        candidate::Excluded,
        request::{PlanInput, path_of},
    },
};

/// What a list of equally long pieces of one path would do.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ListPlan {
    /// Source and destination.
    pub path: TransferPath,
    /// Number of pieces.
    pub pieces: u64,
    /// Bytes of all pieces.
    pub bytes: u64,
    /// The method.
    pub method: TransferMethod,
    /// What copies the pieces as one piece of work; `None` if they are copied one by one, or within the host by its threads.
    pub way: Option<ListWay>,
    /// The predicted time.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "predicted_seconds", with = "transload_core::serde_seconds")
    )]
    pub predicted: Duration,
    /// Origin of the cost that the prediction uses.
    pub basis: CostBasis,
    /// The other ways of known cost, fastest first.
    pub alternatives: Vec<ListAlternative>,
    /// Whether the copies would run on a software driver.
    pub simulated: bool,
}

/// A way that was not chosen for a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ListAlternative {
    /// What would copy the pieces; `None` if they would be copied one by one.
    pub way: Option<ListWay>,
    /// The predicted time.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "predicted_seconds", with = "transload_core::serde_seconds")
    )]
    pub predicted: Duration,
    /// Origin of the cost that the prediction uses.
    pub basis: CostBasis,
    /// Why it was not chosen.
    pub reason: NotChosen,
}

fn name(way: Option<ListWay>) -> String {
    way.map_or_else(|| "one by one".to_owned(), |way| way.to_string())
}

impl fmt::Display for ListPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, pieces, bytes, method, way, predicted, basis, .. } = self;
        let is_within_host = path.src.device.is_cpu() && path.dst.device.is_cpu();
        let way = if is_within_host { "host threads".to_owned() } else { name(*way) };
        write!(f, "{pieces} pieces, {bytes} bytes {path} by {method}, {way}: ")?;
        write!(f, "about {predicted:.1?} ({basis})")?;
        if self.simulated {
            f.write_str(" (simulated)")?;
        }
        self.alternatives.iter().try_for_each(|ListAlternative { way, predicted, basis, reason }| {
            write!(f, "\n  {reason}: {}: about {predicted:.1?} ({basis})", name(*way))
        })
    }
}

impl CrossBackendTransferManager {
    /// Returns what a list of `pieces` copies of `bytes` each would do, after [`exclusive`](crate::CopyManyBuilder::exclusive) or without it.
    /// Moves nothing. Of a list whose pieces have several lengths, the average counts. Lists go through device memory in the plan only where
    /// that was measured, as if the pieces followed each other in the host's memory.
    ///
    /// # Errors
    /// Those of [`plan`](Self::plan) for one piece; [`ErrorKind::InvalidArgument`] for no pieces.
    pub fn plan_many(
        &self,
        src: Place,
        dst: Place,
        (pieces, bytes): (u64, u64),
        exclusive: bool,
    ) -> Result<ListPlan> {
        let options = TransferOptions::new();
        let single = self.plan(src, dst, bytes, &options)?;
        if pieces == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "a list of no pieces; at least 1 is valid"));
        }
        let (path, all) = (TransferPath::new(src, dst), bytes.saturating_mul(pieces));
        let input = PlanInput { path, bytes: all, device_visible: true };
        let count = usize::try_from(pieces).unwrap_or(usize::MAX);
        let mut cache = self.registry.route_cache();
        let routes = cache.routes(&self.registry, &path)?;
        let is_faster = routes.lists.is_faster_through_device(exclusive, (pieces, all)) == Some(true);
        let is_through = may_go_through_device(pieces, &input, exclusive, Rule::Faster(is_faster));
        let wanted = ListOptions { exclusive, through_device: is_through, way: None };
        let column = exclusive || !routes.lists.are_known_beside();
        let choice =
            self.choose_for_many(routes, (&input, count), (&options, wanted), Excluded::default())?;
        let one_by_one = routes.lists.one_by_one((pieces, all), single.predicted);
        let known = routes.lists.get(ListWay::OneByOne, true).map(|(_, basis)| basis);
        let mut times = vec![(None, one_by_one, known.unwrap_or(single.basis))];
        times.extend(
            routes
                .lists
                .all()
                .filter(|(cost, _)| cost.exclusive == column && cost.way != ListWay::OneByOne)
                .map(|(cost, basis)| (Some(cost.way), cost.model.predict(pieces, all), basis)),
        );
        let (way, method) = match &choice {
            None => (None, single.method),
            Some(choice) if routes.candidates[choice.index].route.lane.is_cpu() => {
                let candidate = &routes.candidates[choice.index];
                times = vec![(None, choice.predicted, candidate.info.cost.basis)];
                (None, candidate.method())
            }
            Some(choice) => {
                let candidate = &routes.candidates[choice.index];
                let by_kernel = choice.by_kernel || candidate.is_in_place();
                let way = match by_kernel {
                    true => ListWay::CopyKernel,
                    false if is_through => ListWay::ThroughDevice,
                    false => ListWay::CopyEngine,
                };
                if times.iter().all(|(known, ..)| *known != Some(way)) {
                    times.push((Some(way), choice.predicted, candidate.info.cost.basis));
                }
                (Some(way), candidate.method())
            }
        };
        let chosen = times.iter().find(|(of, ..)| *of == way).copied();
        let (_, predicted, basis) = chosen.unwrap_or((way, one_by_one, single.basis));
        times.sort_by_key(|(_, time, _)| *time);
        let other = |(of, time, basis)| {
            let waits = time < predicted && of == Some(ListWay::CopyKernel);
            let reason = if waits { NotChosen::WaitsForKernels } else { NotChosen::Slower };
            ListAlternative { way: of, predicted: time, basis, reason }
        };
        let alternatives = times.into_iter().filter(|(of, ..)| *of != way).map(other).collect();
        let simulated = single.simulated;
        Ok(ListPlan { path, pieces, bytes: all, method, way, predicted, basis, alternatives, simulated })
    }

    /// Returns whether pairs are copied faster by a kernel than by copy engines, as if all had the path of the first to or from a device.
    pub(crate) fn is_kernel_faster(&self, pairs: &[(RawBuffer, RawBuffer)]) -> bool {
        let mut of_device =
            pairs.iter().filter(|(src, dst)| ![src, dst].iter().all(|end| end.place().device.is_cpu()));
        let Some((src, dst)) = of_device.next() else { return false };
        let path = path_of(src, dst);
        let bytes = pairs.iter().map(|(src, _)| src.len() as u64).fold(0, u64::saturating_add);
        let mut cache = self.registry.route_cache();
        let routes = cache.routes(&self.registry, &path);
        routes.is_ok_and(|routes| routes.lists.is_kernel_faster(true, (pairs.len() as u64, bytes)))
    }
}
