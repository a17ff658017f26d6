//! The exact rank test of two samples, Holm's correction, and an interval for the ratio.
//!
//! The test is that of Mann and Whitney. It assumes no distribution: of all ways to deal the values to the two samples, it counts
//! those that are at least as extreme, with equal values at their mean rank.

use crate::row::Summary;

/// Returns the probability, if the two samples are of one distribution, that `more` exceeds `less` as much as it does.
pub(super) fn exceeds(more: &[f64], less: &[f64]) -> f64 {
    let all = || more.iter().chain(less);
    // Twice the rank, so that it is whole.
    let rank = |value: &f64| {
        let below = all().filter(|other| *other < value).count();
        let equal = all().filter(|other| *other == value).count();
        2 * below + equal + 1
    };
    let ranks: Vec<usize> = all().map(rank).collect();
    let observed: usize = ranks.iter().take(more.len()).sum();
    distribution(&ranks, more.len()).iter().skip(observed).sum()
}

/// Returns what [`exceeds`] returns for samples of this size that do not overlap but for one value, which is out of place.
pub(super) fn with_one_astray(size: usize) -> f64 {
    let less: Vec<f64> = (1..size).chain([2 * size]).map(|value| value as f64).collect();
    let more: Vec<f64> = (size..2 * size).map(|value| value as f64).collect();
    exceeds(&more, &less)
}

/// Returns how probable each sum is of as many of these ranks, drawn at random.
fn distribution(ranks: &[usize], drawn: usize) -> Vec<f64> {
    let largest: usize = ranks.iter().sum();
    // Ways to draw so many ranks with such a sum.
    let mut ways = vec![vec![0.0; largest + 1]; drawn + 1];
    ways[0][0] = 1.0;
    for rank in ranks {
        for count in (1..=drawn).rev() {
            for sum in (*rank..=largest).rev() {
                ways[count][sum] += ways[count - 1][sum - rank];
            }
        }
    }
    let of_sums = ways.swap_remove(drawn);
    let all: f64 = of_sums.iter().sum();
    of_sums.into_iter().map(|ways| ways / all).collect()
}

/// Takes off what the references differ by between processes, where the values of all processes are closer together without it. `None`
/// where they are not, or a process has no reference. Does not regard which sample a value is of.
pub(super) fn without_reference(samples: [&[(f64, Option<f64>)]; 2]) -> Option<[Vec<f64>; 2]> {
    let all = samples.concat();
    let references: Vec<f64> = all.iter().map(|(_, reference)| *reference).collect::<Option<_>>()?;
    let usual = median(&references);
    let adjust = |(value, reference): &(f64, Option<f64>)| value - reference.unwrap_or(usual) + usual;
    let spread = |values: Vec<f64>| {
        let middle = median(&values);
        median(&values.into_iter().map(|value| (value - middle).abs()).collect::<Vec<_>>())
    };
    let measured = spread(all.iter().map(|(value, _)| *value).collect());
    let is_closer = spread(all.iter().map(adjust).collect()) < measured;
    is_closer.then(|| samples.map(|sample| sample.iter().map(adjust).collect()))
}

fn median(values: &[f64]) -> f64 {
    Summary::of(values).p50
}

/// Corrects probabilities for their number, by Holm's method: of all rows that do not differ, the probability that any is at most
/// this.
pub(super) fn corrected(found: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..found.len()).collect();
    order.sort_by(|a, b| found[*a].total_cmp(&found[*b]));
    let (mut corrected, mut largest) = (vec![1.0; found.len()], 0.0_f64);
    for (place, index) in order.into_iter().enumerate() {
        largest = largest.max(found[index] * (found.len() - place) as f64).min(1.0);
        corrected[index] = largest;
    }
    corrected
}

/// Returns the ratio of two samples and its interval at 95 %: the median of the ratios of all pairs, and those between which the test
/// rejects no ratio. Absent if a value is not positive.
pub(super) fn ratio(new: &[f64], old: &[f64]) -> Option<[f64; 3]> {
    if !new.iter().chain(old).all(|value| *value > 0.0) {
        return None;
    }
    let mut ratios: Vec<f64> = new.iter().flat_map(|new| old.iter().map(move |old| new / old)).collect();
    ratios.sort_by(f64::total_cmp);
    let ranks: Vec<usize> = (1..=new.len() + old.len()).collect();
    let least: usize = ranks.iter().take(new.len()).sum();
    let mut below = 0.0;
    // A ratio is rejected if at most so many of the pairs, less one, are below it.
    let outside = distribution(&ranks, new.len()).into_iter().skip(least).take_while(|share| {
        below += share;
        below <= 0.025
    });
    let (outside, last) = (outside.count().saturating_sub(1), ratios.len().checked_sub(1)?);
    let middle = (ratios[last / 2] + ratios[last.div_ceil(2)]) / 2.0;
    Some([middle, *ratios.get(outside)?, *ratios.get(last.checked_sub(outside)?)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_tables() {
        let (low, high) = ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]);
        assert_eq!(exceeds(&high, &low), 1.0 / 20.0);
        assert_eq!(exceeds(&low, &high), 1.0);
        assert_eq!(exceeds(&[2.0; 3], &[1.0, 1.0, 1.0]), 1.0 / 20.0);
        // Two samples of 7 of which 7 pairs are the other way round: 0.0131 in the tables.
        assert!((with_one_astray(7) - 0.0131).abs() < 1e-4, "{}", with_one_astray(7));
    }

    #[test]
    fn equal_values_show_nothing() {
        assert_eq!(exceeds(&[2.0; 7], &[2.0; 7]), 1.0);
        assert_eq!(exceeds(&[1.0; 7], &[0.0; 7]), 1.0 / 3432.0);
    }

    #[test]
    fn correction_grows_with_the_rows_and_keeps_the_order() {
        assert_eq!(corrected(&[0.01, 0.04, 0.03]), [0.03, 0.06, 0.06]);
        assert_eq!(corrected(&[0.6, 0.5]), [1.0, 1.0]);
    }

    #[test]
    fn interval_encloses_the_ratio() {
        let old: Vec<f64> = (0..7).map(|index| 100.0 + f64::from(index)).collect();
        let new: Vec<f64> = old.iter().map(|value| value * 1.1).collect();
        let [middle, low, high] = ratio(&new, &old).unwrap();
        assert!((middle - 1.1).abs() < 0.01 && (1.04..1.1).contains(&low) && (1.1..1.16).contains(&high));
        assert_eq!(ratio(&[0.0], &[1.0]), None);
    }
}
