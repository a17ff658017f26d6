//! The ways in which the lists of a path can go, with their costs.

use std::{sync::Arc, time::Duration};

use transload_core::{CostBasis, ListCost, ListWay};

/// The costs of a path's lists, by way.
#[derive(Clone, Default)]
pub(crate) struct ListCosts([Option<(Arc<ListCost>, CostBasis)>; ListWay::ALL.len()]);

impl ListCosts {
    /// Sets a cost, unless one of a better basis is known.
    pub(crate) fn set(&mut self, cost: ListCost, basis: CostBasis) {
        if let Some(slot) = self.0.get_mut(cost.way as usize)
            && slot.as_ref().is_none_or(|(_, known)| *known <= basis)
        {
            *slot = Some((Arc::new(cost), basis));
        }
    }

    pub(crate) fn get(&self, way: ListWay) -> Option<(&ListCost, CostBasis)> {
        let (cost, basis) = self.0.get(way as usize)?.as_ref()?;
        Some((&**cost, *basis))
    }

    /// Returns the known costs.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&ListCost, CostBasis)> {
        ListWay::ALL.into_iter().filter_map(|way| self.get(way))
    }

    /// Returns the predicted time of a list by a way, if its cost is known.
    #[inline]
    pub(crate) fn predict(&self, way: ListWay, (pieces, bytes): (u64, u64)) -> Option<Duration> {
        self.get(way).map(|(cost, _)| cost.model.predict(pieces, bytes))
    }

    /// Returns whether a copy kernel is predicted to be faster than copy engines. A way without a cost is slower than one with.
    #[inline]
    pub(crate) fn is_kernel_faster(&self, list: (u64, u64)) -> bool {
        let time = |way| self.predict(way, list).unwrap_or(Duration::MAX);
        time(ListWay::CopyKernel) < time(ListWay::CopyEngine)
            || transload_core::mutant!("transfer/list-kernel-always")
    }
}
