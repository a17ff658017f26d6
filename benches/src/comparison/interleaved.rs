//! Measures several variants of one operation interleaved, and creates rows that compare them with the first.

use anyhow::Result;

use super::Fixture;
use crate::{
    row::{Goal, Row, Summary},
    rows::is_verified,
};

/// Repetitions before the first that counts.
const WARM_UP: usize = 5;

/// Verifies the bytes that a variant moves.
pub(crate) trait Verify {
    /// Overwrites every destination.
    fn poison(&self) -> Result<()>;
    /// Compares every byte.
    fn check(&self) -> Result<()>;
}

/// One variant of the operation.
pub(crate) struct Variant<'a> {
    /// Last part of the row's id.
    pub(crate) name: String,
    /// Description of the method.
    pub(crate) method: String,
    pub(crate) goal: Option<Goal>,
    /// Whether it runs the library, which is told of references.
    pub(crate) is_library: bool,
    /// Runs it once and returns a value in the comparison's unit.
    pub(crate) run: Box<dyn FnMut() -> Result<f64> + 'a>,
    /// Verifies the result, if it moves bytes.
    pub(crate) verifier: Option<&'a dyn Verify>,
}

impl<'a> Variant<'a> {
    pub(crate) fn new(name: &str, method: &str, run: impl FnMut() -> Result<f64> + 'a) -> Self {
        Self {
            name: name.to_owned(),
            method: method.to_owned(),
            goal: None,
            is_library: false,
            run: Box::new(run),
            verifier: None,
        }
    }

    pub(crate) fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// Says that the library does it: a change of it may slow down the reference, too.
    pub(crate) fn by_library(mut self) -> Self {
        self.is_library = true;
        self
    }

    pub(crate) fn verified_by(mut self, verifier: &'a dyn Verify) -> Self {
        self.verifier = Some(verifier);
        self
    }
}

/// A comparison of variants.
pub(crate) struct Comparison {
    /// Prefix of the rows' ids after the group.
    pub(crate) id: String,
    /// Description of the operation.
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    /// Bytes moved by one run, or 0.
    pub(crate) bytes: u64,
    pub(crate) repetitions: usize,
}

impl Comparison {
    /// Measures all variants interleaved. The first is the reference; each other one becomes a row.
    pub(crate) fn rows(&self, fixture: &Fixture<'_>, variants: Vec<Variant<'_>>) -> Result<Vec<Row>> {
        self.rows_of(fixture.group, fixture.is_simulated(), variants)
    }

    /// Like [`rows`](Self::rows), but without a device.
    pub(crate) fn rows_of(
        &self,
        group: &str,
        is_simulated: bool,
        variants: Vec<Variant<'_>>,
    ) -> Result<Vec<Row>> {
        self.rows_over_best(1, group, is_simulated, variants)
    }

    /// Like [`rows_of`](Self::rows_of), with the fastest of the first variants as the reference; the others of them have no rows, since which
    /// it is changes from run to run.
    pub(crate) fn rows_over_best(
        &self,
        forms: usize,
        group: &str,
        is_simulated: bool,
        mut variants: Vec<Variant<'_>>,
    ) -> Result<Vec<Row>> {
        let values = in_turns(&mut variants, self.repetitions)?;
        let mut measured = Vec::with_capacity(variants.len());
        for (mut variant, values) in variants.into_iter().zip(values) {
            let verified = verify(&mut variant)?;
            measured.push((variant, Summary::of(&values), verified));
        }
        // A rate is the better the higher it is.
        let sign = if self.unit.ends_with("/s") { -1.0 } else { 1.0 };
        let rank = |(_, (_, summary, _)): &(usize, &(_, Summary, _))| sign * summary.p50;
        let best = measured.iter().enumerate().take(forms).min_by(|a, b| rank(a).total_cmp(&rank(b)));
        let Some(best) = best.map(|(index, _)| index) else { return Ok(Vec::new()) };
        let mut references: Vec<_> = measured.drain(..forms.min(measured.len())).collect();
        let (reference, reference_summary, reference_verified) = references.swap_remove(best);
        let row = |(variant, summary, verified): (Variant<'_>, Summary, bool)| {
            let id = format!("{group}/{}/{}", self.id, variant.name);
            let what = format!("{group}: {}", self.what);
            let row = Row::new(id, what, &variant.method, self.bytes, self.unit, summary);
            let row = match reference.is_library {
                true => row.against_library(&reference.method, reference_summary),
                false => row.against(&reference.method, reference_summary),
            };
            row.obtained(is_simulated, verified && reference_verified).with_goal(variant.goal)
        };
        Ok(measured.into_iter().map(row).collect())
    }
}

/// Measures each variant in the order of [`turns`] and returns its values.
fn in_turns(variants: &mut [Variant<'_>], repetitions: usize) -> Result<Vec<Vec<f64>>> {
    let mut values: Vec<Vec<f64>> = variants.iter().map(|_| Vec::with_capacity(repetitions)).collect();
    for repetition in 0..WARM_UP + repetitions {
        for index in turns(variants.len(), repetition) {
            let (Some(variant), Some(values)) = (variants.get_mut(index), values.get_mut(index)) else {
                continue;
            };
            let value = (variant.run)()?;
            if repetition >= WARM_UP {
                values.push(value);
            }
        }
    }
    Ok(values)
}

/// Returns the order of the variants in a repetition. A run affects the caches and the driver, and so the next run. In any
/// `2 * variants` repetitions each variant comes first, and directly after each other one, equally often: a Williams design
/// (1949). The transition between repetitions is not balanced.
fn turns(variants: usize, repetition: usize) -> impl Iterator<Item = usize> {
    let reversed = (repetition / variants.max(1)) % 2 == 1;
    (0..variants).map(move |turn| {
        let place = if reversed { variants - 1 - turn } else { turn };
        // 0, 1, n - 1, 2, n - 2 …
        let step = if place % 2 == 1 { place.div_ceil(2) } else { variants - place / 2 };
        (step + repetition) % variants
    })
}

/// Runs a variant once more on poisoned destinations and verifies the result.
fn verify(variant: &mut Variant<'_>) -> Result<bool> {
    let Some(verifier) = variant.verifier else { return Ok(false) };
    verifier.poison()?;
    (variant.run)()?;
    Ok(is_verified(verifier.check()))
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn each_variant_gets_its_own_values() {
        let variant = |name: &'static str, value: f64| Variant::new(name, name, move || Ok(value));
        let values = in_turns(&mut [variant("a", 1.0), variant("b", 2.0), variant("c", 3.0)], 4).unwrap();
        assert_eq!(values, [vec![1.0; 4], vec![2.0; 4], vec![3.0; 4]]);
    }

    #[test]
    fn order_of_variants_is_balanced() {
        for variants in 1..9 {
            let (mut first, mut behind) = (vec![0; variants], vec![vec![0; variants]; variants]);
            for repetition in 0..2 * variants {
                let order: Vec<usize> = turns(variants, repetition).collect();
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..variants), "each has one turn: {order:?}");
                first[order[0]] += 1;
                order.windows(2).for_each(|pair| behind[pair[0]][pair[1]] += 1);
            }
            assert!(first.iter().all(|times| *times == 2), "{variants} variants: {first:?}");
            for (variant, times) in behind.iter().enumerate() {
                let others: Vec<i32> = times
                    .iter()
                    .enumerate()
                    .filter(|(other, _)| *other != variant)
                    .map(|(_, n)| *n)
                    .collect();
                assert!(
                    others.iter().all(|times| *times == 2),
                    "{variants} variants, behind {variant}: {others:?}"
                );
            }
        }
    }

    #[test]
    fn fastest_form_is_the_reference() {
        for (unit, best) in [("us", "a"), ("GB/s", "b")] {
            let comparison = Comparison { id: "x".into(), what: "y".into(), unit, bytes: 0, repetitions: 2 };
            let variant = |name: &'static str, value: f64| Variant::new(name, name, move || Ok(value));
            let variants = vec![variant("a", 1.0), variant("b", 2.0), variant("c", 3.0)];
            let rows = comparison.rows_over_best(2, "z", false, variants).unwrap();
            assert_eq!(rows.iter().map(|row| row.method.as_str()).collect::<Vec<_>>(), ["c"]);
            assert!(rows.iter().all(|row| row.reference.as_deref() == Some(best)));
        }
    }

    #[test]
    fn variant_with_wrong_bytes_is_not_verified() {
        struct WrongBytes;
        impl Verify for WrongBytes {
            fn poison(&self) -> Result<()> {
                Ok(())
            }
            fn check(&self) -> Result<()> {
                bail!("the bytes differ")
            }
        }
        assert!(!verify(&mut Variant::new("a", "a", || Ok(1.0)).verified_by(&WrongBytes)).unwrap());
        assert!(!verify(&mut Variant::new("a", "a", || Ok(1.0))).unwrap());
    }
}
