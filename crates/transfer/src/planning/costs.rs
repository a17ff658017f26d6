//! The cost of each method on each path, and its origin.

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;

use transload_core::{CostBasis, CostModel, ListCost, PathCost, TransferMethod, TransferPath};

use crate::planning::{
    list_costs::ListCosts,
    observations::{Observations, sizes_with},
};

/// A cost and its origin.
#[derive(Clone)]
pub(crate) struct Cost {
    pub(crate) model: CostModel,
    pub(crate) basis: CostBasis,
    /// The model before all corrections, if there were any.
    uncorrected: Option<CostModel>,
    /// What transfers took since the cost was set or corrected.
    pub(crate) observations: Arc<Observations>,
}

impl Cost {
    fn new(model: CostModel, basis: CostBasis) -> Self {
        Self { model, basis, uncorrected: None, observations: Arc::default() }
    }

    /// Returns the predicted time for `bytes`, or that before all corrections if it is less.
    pub(crate) fn least(&self, bytes: u64) -> Duration {
        let predicted = self.model.predict(bytes);
        let before =
            self.uncorrected.as_ref().filter(|_| !transload_core::mutant!("transfer/corrections-last"));
        before.map_or(predicted, |before| before.predict(bytes).min(predicted))
    }

    /// Returns the time that the next try counts as, and its part of the predicted time: see [`Observations::charge`].
    pub(crate) fn charge(&self, bytes: u64) -> (Duration, f64) {
        let predicted = self.model.predict(bytes);
        let least = self.least(bytes).as_secs_f64() / predicted.as_secs_f64();
        let charge = self.observations.charge(bytes, least);
        (if charge < 1.0 { predicted.mul_f64(charge) } else { predicted }, charge)
    }
}

/// The costs of a manager. Transfers read those that their cached routes have.
#[derive(Default)]
pub(crate) struct Costs {
    table: RwLock<Arc<CostTable>>,
    /// Number of changes that make cached routes obsolete, of costs or of what else routes depend on. Counted after the change.
    changes: AtomicU64,
}

impl Costs {
    /// Returns the number of changes so far. Read it before what changes.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Makes all cached routes obsolete.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn table(&self) -> Arc<CostTable> {
        Arc::clone(&self.table.read())
    }

    /// See [`CostTable::set`].
    pub(crate) fn set(&self, costs: Vec<PathCost>, basis: CostBasis) {
        Arc::make_mut(&mut *self.table.write()).set(costs, basis);
        self.changed();
    }

    /// Adds the costs of lists that were measured, and removes other measured ones of the paths whose lists on an idle device, or beside
    /// kernels, they replace.
    pub(crate) fn set_measured_lists(
        &self,
        costs: Vec<ListCost>,
        are_replaced: impl Fn(TransferPath, bool) -> bool,
    ) {
        let mut table = self.table.write();
        for (path, lists) in &mut Arc::make_mut(&mut *table).lists {
            lists.forget_measured(|exclusive| are_replaced(*path, exclusive));
        }
        drop(table);
        self.set_lists(costs, CostBasis::Measured);
    }

    /// Adds the costs of lists, except where one of a better basis is known.
    pub(crate) fn set_lists(&self, costs: Vec<ListCost>, basis: CostBasis) {
        let mut table = self.table.write();
        let lists = &mut Arc::make_mut(&mut *table).lists;
        for cost in costs {
            lists.entry(cost.path).or_default().set(cost, basis);
        }
        drop(table);
        self.changed();
    }

    /// Multiplies a cost by a factor, for the sizes near `bytes`. Returns `false` if it was set or corrected since `cost` was read.
    pub(crate) fn refine(
        &self,
        (path, method): (TransferPath, TransferMethod),
        cost: &Cost,
        (bytes, factor): (u64, f64),
    ) -> bool {
        let is_refined =
            Arc::make_mut(&mut *self.table.write()).refine((path, method), cost, (bytes, factor));
        if is_refined {
            self.changed();
        }
        is_refined
    }
}

/// Costs by path and method. A user's costs take precedence over measured ones, those over a backend's defaults.
#[derive(Clone, Default)]
pub(crate) struct CostTable {
    costs: HashMap<(TransferPath, TransferMethod), Cost>,
    /// The backends' defaults, for methods of which a later calibration has no cost.
    built_in: HashMap<(TransferPath, TransferMethod), CostModel>,
    lists: HashMap<TransferPath, ListCosts>,
}

impl CostTable {
    /// Adds costs, except where one of a better basis is known. Of two defaults the first stays, of others the last. Measured ones replace
    /// all that was measured or corrected of their paths: a method that they lack could not be used.
    pub(crate) fn set(&mut self, costs: Vec<PathCost>, basis: CostBasis) {
        if basis == CostBasis::Measured {
            let is_replaced = |(path, _): &(TransferPath, TransferMethod), known: &mut Cost| {
                let is_of_user_or_built_in = [CostBasis::User, CostBasis::BuiltIn].contains(&known.basis);
                !is_of_user_or_built_in && costs.iter().any(|cost| cost.path == *path)
            };
            let replaced: Vec<_> = self.costs.extract_if(is_replaced).map(|(key, _)| key).collect();
            for key in replaced {
                if let Some(model) = self.built_in.get(&key) {
                    self.costs.insert(key, Cost::new(model.clone(), CostBasis::BuiltIn));
                }
            }
        }
        for PathCost { path, method, model } in costs {
            if basis == CostBasis::BuiltIn {
                self.built_in.entry((path, method)).or_insert_with(|| model.clone());
            }
            let keeps = self.costs.get(&(path, method)).is_some_and(|old| {
                old.basis > basis || (old.basis == CostBasis::BuiltIn && basis == CostBasis::BuiltIn)
            });
            if !keeps {
                self.costs.insert((path, method), Cost::new(model, basis));
            }
        }
    }

    /// Returns the cost of a method on a path. An unknown cost is assumed to be high, 100 µs and 1 GB/s, so that a
    /// method of known cost is preferred.
    pub(crate) fn get(&self, path: TransferPath, method: TransferMethod) -> Cost {
        let unknown = || CostModel::linear(Duration::from_micros(100), 1e9);
        self.costs.get(&(path, method)).cloned().unwrap_or_else(|| Cost::new(unknown(), CostBasis::BuiltIn))
    }

    /// Returns the costs of a path's lists.
    pub(crate) fn lists(&self, path: TransferPath) -> ListCosts {
        self.lists.get(&path).cloned().unwrap_or_default()
    }

    /// Returns all known costs of lists with their origins, sorted by path and way.
    pub(crate) fn all_lists(&self) -> Vec<(ListCost, CostBasis)> {
        let known = self.lists.values().flat_map(ListCosts::all);
        let mut list: Vec<_> = known.map(|(cost, basis)| (cost.clone(), basis)).collect();
        list.sort_by_key(|(cost, _)| (cost.path, cost.way, !cost.exclusive));
        list
    }

    fn refine(
        &mut self,
        key: (TransferPath, TransferMethod),
        cost: &Cost,
        (bytes, factor): (u64, f64),
    ) -> bool {
        let known = self.costs.entry(key).or_insert_with(|| cost.clone());
        if !Arc::ptr_eq(&known.observations, &cost.observations) {
            return false;
        }
        let corrected = known.model.scaled(sizes_with(bytes), factor);
        let before = mem::replace(&mut known.model, corrected);
        known.uncorrected.get_or_insert(before);
        known.basis = CostBasis::Refined;
        // Times that were compared with the model before this correction do not count again.
        if !transload_core::mutant!("transfer/corrects-once") {
            known.observations = Arc::default();
        }
        true
    }

    /// Returns all known costs with their origins, sorted by path and method.
    pub(crate) fn list(&self) -> Vec<(PathCost, CostBasis)> {
        let cost = |(&(path, method), Cost { model, basis, .. }): (&_, &Cost)| {
            (PathCost { path, method, model: model.clone() }, *basis)
        };
        let mut list: Vec<_> = self.costs.iter().map(cost).collect();
        list.sort_by_key(|(cost, _)| (cost.path, cost.method));
        list
    }
}

#[cfg(test)]
mod tests {
    use transload_core::{DeviceId, MemoryKind, Place};

    use super::*;

    fn cost(micros: u64) -> Vec<PathCost> {
        let place = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
        vec![PathCost {
            path: TransferPath::new(place, place),
            method: TransferMethod::DirectCopy,
            model: CostModel::linear(Duration::from_micros(micros), 1e9),
        }]
    }

    #[test]
    fn a_better_basis_is_not_replaced_by_a_weaker_one() {
        let path = cost(1)[0].path;
        let mut table = CostTable::default();
        let micros = |table: &CostTable| {
            let cost = table.get(path, TransferMethod::DirectCopy);
            (cost.model.predict(0).as_micros(), cost.basis)
        };
        assert_eq!(micros(&table), (100, CostBasis::BuiltIn));
        table.set(cost(1), CostBasis::BuiltIn);
        table.set(cost(2), CostBasis::BuiltIn);
        assert_eq!(micros(&table), (1, CostBasis::BuiltIn));
        table.set(cost(3), CostBasis::User);
        table.set(cost(4), CostBasis::Measured);
        table.set(cost(5), CostBasis::BuiltIn);
        assert_eq!(micros(&table), (3, CostBasis::User));
        table.set(cost(6), CostBasis::User);
        assert_eq!(micros(&table), (6, CostBasis::User));
    }

    #[test]
    fn measured_costs_of_a_path_replace_all_that_was_measured() {
        let path = cost(1)[0].path;
        let mut table = CostTable::default();
        let other = |method, micros| PathCost { method, ..cost(micros).remove(0) };
        let all = TransferMethod::ALL.map(|method| other(method, 2));
        table.set(vec![all[1].clone(), other(all[2].method, 7)], CostBasis::BuiltIn);
        table.set([&all[0], &all[2], &all[3]].map(PathCost::clone).to_vec(), CostBasis::Measured);
        table.set(vec![all[3].clone()], CostBasis::User);
        let seen = table.get(path, all[2].method);
        assert!(table.refine((path, all[2].method), &seen, (1 << 20, 3.0)));
        table.set(cost(5), CostBasis::Measured);
        let known = table.list().into_iter().map(|(cost, basis)| (cost.method, basis));
        let expected = [
            (all[0].method, CostBasis::Measured),
            (all[1].method, CostBasis::BuiltIn),
            (all[2].method, CostBasis::BuiltIn),
            (all[3].method, CostBasis::User),
        ];
        assert!(known.eq(expected), "{:?}", table.list());
        assert_eq!(table.get(path, all[2].method).model.predict(0).as_micros(), 7, "the backend's");
    }

    #[test]
    fn only_the_cost_that_was_observed_is_refined() {
        let key = (cost(1)[0].path, TransferMethod::DirectCopy);
        let mut table = CostTable::default();
        let time = |table: &CostTable, bytes| table.get(key.0, key.1).model.predict(bytes).as_micros();
        table.set(cost(1), CostBasis::BuiltIn);
        let seen = table.get(key.0, key.1);
        assert!(table.refine(key, &seen, (1 << 20, 3.0)));
        // 1 µs and a byte each ns.
        assert_eq!((time(&table, 1 << 20), time(&table, 1 << 22)), (3148, 4195));
        assert_eq!(table.get(key.0, key.1).basis, CostBasis::Refined);
        assert!(!table.refine(key, &seen, (1 << 20, 3.0)), "corrected since");
        let seen = table.get(key.0, key.1);
        assert!(table.refine(key, &seen, (u64::MAX, 2.0)), "other sizes");
        assert_eq!((time(&table, 1 << 29), time(&table, 1 << 31)), (536_871, 4_294_969));
        table.set(cost(1), CostBasis::Measured);
        assert!(!table.refine(key, &seen, (1 << 20, 3.0)), "measured since");
        assert_eq!((time(&table, 1 << 20), table.get(key.0, key.1).basis), (1049, CostBasis::Measured));
    }
}
