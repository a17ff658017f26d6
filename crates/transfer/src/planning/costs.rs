//! The cost of each method on each path, and its origin.

use std::{collections::HashMap, time::Duration};

use transload_core::{CostBasis, CostModel, PathCost, TransferMethod, TransferPath};

/// A cost and its origin.
#[derive(Clone, Debug)]
pub(crate) struct Cost {
    pub(crate) model: CostModel,
    pub(crate) basis: CostBasis,
}

/// Costs by path and method. A user's costs take precedence over measured ones, those over a backend's defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct CostTable {
    costs: HashMap<(TransferPath, TransferMethod), Cost>,
}

impl CostTable {
    /// Adds costs, except where one of a better basis is known. Of two defaults the first stays, of others the last.
    pub(crate) fn set(&mut self, costs: Vec<PathCost>, basis: CostBasis) {
        for PathCost { path, method, model } in costs {
            let keeps = self.costs.get(&(path, method)).is_some_and(|old| {
                old.basis > basis || (old.basis == CostBasis::BuiltIn && basis == CostBasis::BuiltIn)
            });
            if !keeps {
                self.costs.insert((path, method), Cost { model, basis });
            }
        }
    }

    /// Returns the cost of a method on a path. An unknown cost is assumed to be high, 100 µs and 1 GB/s, so that a
    /// method of known cost is preferred.
    pub(crate) fn get(&self, path: TransferPath, method: TransferMethod) -> Cost {
        self.costs.get(&(path, method)).cloned().unwrap_or_else(|| Cost {
            model: CostModel::linear(Duration::from_micros(100), 1e9),
            basis: CostBasis::BuiltIn,
        })
    }

    /// Returns all known costs with their origins, sorted by path and method.
    pub(crate) fn list(&self) -> Vec<(PathCost, CostBasis)> {
        let cost = |(&(path, method), Cost { model, basis }): (&_, &Cost)| {
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
}
