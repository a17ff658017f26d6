//! The ways in which the lists of a path can go, with their costs.

use std::{sync::Arc, time::Duration};

use transload_core::{CostBasis, ListCost, ListWay};

use crate::calibration::MOST_SINGLES;

/// The costs of a path's lists, by way: beside kernels that compute, and on an idle device.
#[derive(Clone, Default)]
pub(crate) struct ListCosts([[Option<Known>; ListWay::ALL.len()]; 2]);

type Known = (Arc<ListCost>, CostBasis);

impl ListCosts {
    /// Sets a cost, unless one of a better basis is known.
    pub(crate) fn set(&mut self, cost: ListCost, basis: CostBasis) {
        if let Some(slot) = self.0[usize::from(cost.exclusive)].get_mut(cost.way as usize)
            && slot.as_ref().is_none_or(|(_, known)| *known <= basis)
        {
            *slot = Some((Arc::new(cost), basis));
        }
    }

    /// Removes the measured costs on an idle device, or beside kernels, for which this is `true`.
    pub(crate) fn forget_measured(&mut self, of: impl Fn(bool) -> bool) {
        let replaced = self.0.iter_mut().zip([false, true]).filter(|(_, exclusive)| of(*exclusive));
        for slot in replaced.flat_map(|(costs, _)| costs) {
            slot.take_if(|(_, basis)| *basis == CostBasis::Measured);
        }
    }

    /// Returns the cost of a way on an idle device, or beside kernels that compute.
    pub(crate) fn get(&self, way: ListWay, exclusive: bool) -> Option<(&ListCost, CostBasis)> {
        let (cost, basis) = self.0[usize::from(exclusive)].get(way as usize)?.as_ref()?;
        Some((&**cost, *basis))
    }

    /// Returns the known costs.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&ListCost, CostBasis)> {
        let both = [true, false].into_iter().flat_map(|exclusive| ListWay::ALL.map(|way| (way, exclusive)));
        both.filter_map(|(way, exclusive)| self.get(way, exclusive))
    }

    /// Returns whether it was measured what lists do beside kernels that compute.
    #[inline]
    pub(crate) fn are_known_beside(&self) -> bool {
        self.get(ListWay::CopyEngine, false).is_some()
    }

    /// Returns the predicted time of a list by a way, if its cost is known.
    #[inline]
    pub(crate) fn predict(
        &self,
        way: ListWay,
        exclusive: bool,
        (pieces, bytes): (u64, u64),
    ) -> Option<Duration> {
        self.get(way, exclusive).map(|(cost, _)| cost.model.predict(pieces, bytes))
    }

    /// Returns the predicted time of a list one by one on an idle device, of which a single copy takes `single`.
    pub(crate) fn one_by_one(&self, list: (u64, u64), single: Duration) -> Duration {
        let pieces = u32::try_from(list.0).unwrap_or(u32::MAX);
        self.predict(ListWay::OneByOne, true, list).unwrap_or_else(|| single.saturating_mul(pieces))
    }

    /// Returns whether a list has more pieces than were measured one by one, so that copy engines are faster: they make the same copies by fewer
    /// calls. Not if the user set what that takes.
    pub(crate) fn is_beyond_singles(&self, pieces: u64) -> bool {
        let is_of = |way, of| self.get(way, true).is_some_and(|(_, basis)| basis == of);
        pieces > MOST_SINGLES as u64
            && is_of(ListWay::OneByOne, CostBasis::Measured)
            && !is_of(ListWay::CopyEngine, CostBasis::User)
    }

    /// Returns whether a copy kernel is predicted to be faster than copy engines. A way without a cost is slower than one with.
    #[inline]
    pub(crate) fn is_kernel_faster(&self, exclusive: bool, list: (u64, u64)) -> bool {
        let time = |way| self.predict(way, exclusive, list).unwrap_or(Duration::MAX);
        time(ListWay::CopyKernel) < time(ListWay::CopyEngine)
            || transload_core::mutant!("transfer/list-kernel-always")
    }

    /// Returns whether lists go through device memory faster than by the other ways. `None` if that was not measured.
    pub(crate) fn is_faster_through_device(&self, exclusive: bool, list: (u64, u64)) -> Option<bool> {
        let through = self.predict(ListWay::ThroughDevice, exclusive, list)?;
        let others = [ListWay::CopyEngine, ListWay::CopyKernel];
        Some(others.iter().filter_map(|way| self.predict(*way, exclusive, list)).all(|other| through < other))
    }
}
