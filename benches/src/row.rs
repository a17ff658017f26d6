//! One measurement and its reference.

use serde::Serialize;

/// One row of the results; its fields are part of the file's schema.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Stable ASCII id.
    pub id: String,
    /// The part of its group that measured it, for `--parts`. Absent if it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// Source and destination, or the group.
    pub path: String,
    /// Method, for people.
    pub method: String,
    /// Bytes of one transfer.
    pub bytes: u64,
    /// The median.
    pub value: f64,
    /// Unit of `value` and all others.
    pub unit: &'static str,
    /// 10th percentile.
    pub p10: f64,
    /// 50th percentile.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// Name of the reference.
    pub reference: Option<String>,
    /// The reference's median.
    pub reference_value: Option<f64>,
    /// Whether the reference is the library itself, which a change of it may slow down too. Absent if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub own_reference: bool,
    /// `value` over `reference_value`.
    pub ratio: Option<f64>,
    /// Goal with its direction.
    pub goal: Option<String>,
    /// Whether the goal is met.
    pub met: Option<bool>,
    /// Whether the software driver played the device.
    pub simulated: bool,
    /// Whether bytes were moved and all were compared.
    pub verified: bool,
}

/// The goal of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The ratio of times, ours over the reference's, is at most this.
    RatioAtMost(f64),
    /// The ratio of rates, ours over the reference's, is at least this.
    RatioAtLeast(f64),
    /// The value itself is at least this.
    AtLeast(f64),
    /// The value itself is at most this.
    AtMost(f64),
    /// The value is at most this much above the reference's.
    AtMostOver(f64),
}

impl Goal {
    fn text(self, unit: &str) -> String {
        match self {
            Self::RatioAtMost(most) => format!("time <= {most} x reference"),
            Self::RatioAtLeast(least) => format!("rate >= {least} x reference"),
            Self::AtLeast(least) => format!(">= {least} {unit}"),
            Self::AtMost(most) => format!("<= {most} {unit}"),
            Self::AtMostOver(most) => format!("<= reference + {most} {unit}"),
        }
    }

    fn is_met(self, row: &Row) -> bool {
        match self {
            Self::RatioAtMost(most) => row.ratio.is_some_and(|ratio| ratio <= most),
            Self::RatioAtLeast(least) => row.ratio.is_some_and(|ratio| ratio >= least),
            Self::AtLeast(least) => row.value >= least,
            Self::AtMost(most) => row.value <= most,
            Self::AtMostOver(most) => {
                row.reference_value.is_some_and(|reference| row.value - reference <= most)
            }
        }
    }
}

/// Percentiles of repeated measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// 10th percentile.
    pub p10: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
}

impl Summary {
    /// Summarises values; all zero if empty.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1);
        let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
        let share = |share: f64| at((share * last as f64).round() as usize);
        // Of an even number, the mean of the middle two.
        Self { p10: share(0.1), p50: f64::midpoint(at(last / 2), at(last.div_ceil(2))), p90: share(0.9) }
    }

    /// Summarises one value.
    #[must_use]
    pub fn single(value: f64) -> Self {
        Self { p10: value, p50: value, p90: value }
    }
}

impl Row {
    /// Creates a row without a reference.
    #[must_use]
    pub fn new(
        id: String,
        path: String,
        method: &str,
        bytes: u64,
        unit: &'static str,
        values: Summary,
    ) -> Self {
        Self {
            id,
            part: String::new(),
            path,
            method: method.to_owned(),
            bytes,
            value: values.p50,
            unit,
            p10: values.p10,
            p50: values.p50,
            p90: values.p90,
            reference: None,
            reference_value: None,
            own_reference: false,
            ratio: None,
            goal: None,
            met: None,
            simulated: false,
            verified: false,
        }
    }

    /// Says which part measured it.
    #[must_use]
    pub fn of_part(mut self, part: &str) -> Self {
        part.clone_into(&mut self.part);
        self
    }

    /// Adds a reference of the same unit.
    #[must_use]
    pub fn against(mut self, name: &str, values: Summary) -> Self {
        self.reference = Some(name.to_owned());
        self.reference_value = Some(values.p50);
        self.ratio = (values.p50 > 0.0).then(|| self.value / values.p50);
        self
    }

    /// Like [`against`](Self::against), with a reference that is the library itself.
    #[must_use]
    pub fn against_library(self, name: &str, values: Summary) -> Self {
        Self { own_reference: true, ..self.against(name, values) }
    }

    /// Sets whether it was simulated and whether bytes were compared.
    #[must_use]
    pub fn obtained(mut self, simulated: bool, verified: bool) -> Self {
        self.simulated = simulated;
        self.verified = verified;
        if simulated {
            self.goal = None;
            self.met = None;
        }
        self
    }

    /// Adds a goal, unless the row is simulated: it says nothing about hardware. If there are several, all must be met.
    #[must_use]
    pub fn with_goal(mut self, goal: Option<Goal>) -> Self {
        if let Some(goal) = goal.filter(|_| !self.simulated) {
            self.met = Some(self.met != Some(false) && goal.is_met(&self));
            let text = goal.text(self.unit);
            self.goal = Some(self.goal.map_or(text.clone(), |first| format!("{first} and {text}")));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_sorted_values() {
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(Summary::of(&values), Summary { p10: 10.0, p50: 50.0, p90: 90.0 });
        assert_eq!(Summary::of(&[]), Summary::default());
        assert_eq!(Summary::of(&[6.0, 1.0, 5.0, 2.0, 4.0, 3.0]).p50, 3.5);
        assert_eq!(Summary::of(&[3.0]), Summary::single(3.0));
    }

    fn row() -> Row {
        Row::new("a/1".to_owned(), "a".to_owned(), "m", 1, "us", Summary::single(6.0))
            .against("raw", Summary::single(5.0))
    }

    #[test]
    fn goal_has_a_direction() {
        assert_eq!(row().with_goal(Some(Goal::RatioAtMost(1.3))).met, Some(true));
        assert_eq!(row().with_goal(Some(Goal::RatioAtMost(1.1))).met, Some(false));
        assert_eq!(row().with_goal(Some(Goal::AtLeast(7.0))).met, Some(false));
        assert_eq!(row().with_goal(Some(Goal::AtMost(6.0))).met, Some(true));
        assert_eq!(row().with_goal(Some(Goal::AtMostOver(1.0))).met, Some(true));
        assert_eq!(row().with_goal(Some(Goal::AtMostOver(0.9))).met, Some(false));
    }

    #[test]
    fn several_goals_must_all_be_met() {
        let [ratio, value] = [Goal::RatioAtMost(1.3), Goal::AtMost(5.0)].map(Some);
        for (first, second) in [(ratio, value), (value, ratio)] {
            assert_eq!(row().with_goal(first).with_goal(second).met, Some(false));
        }
        let both = row().with_goal(ratio).with_goal(Some(Goal::AtMost(6.0)));
        assert_eq!(
            (both.goal.as_deref(), both.met),
            (Some("time <= 1.3 x reference and <= 6 us"), Some(true))
        );
    }

    #[test]
    fn simulated_row_has_no_goal() {
        let early = row().with_goal(Some(Goal::AtMost(7.0))).obtained(true, true);
        let late = row().obtained(true, true).with_goal(Some(Goal::AtMost(7.0)));
        for row in [early, late] {
            assert_eq!((row.goal, row.met), (None, None));
        }
    }
}
