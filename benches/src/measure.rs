//! Alternates both sides repetition by repetition, so that drift affects both.

use anyhow::Result;

use crate::{
    case::{Case, Ends, Side},
    content::Content,
    reference::Reference,
    row::Summary,
};

/// Repetitions before the first that counts.
const WARM_UP: usize = 5;

/// Results of both sides.
#[derive(Clone, Debug)]
pub struct Both {
    /// The library.
    pub ours: Summary,
    /// The reference.
    pub reference: Summary,
    /// Whether all bytes of the first and last repetition of both were correct.
    pub verified: bool,
}

impl Both {
    /// Applies a monotonic function to each percentile, swapping p10 and p90 if it decreases.
    #[must_use]
    pub fn map(&self, value: impl Fn(f64) -> f64) -> Self {
        let each = |summary: Summary| {
            let (a, b) = (value(summary.p10), value(summary.p90));
            Summary { p10: a.min(b), p50: value(summary.p50), p90: a.max(b) }
        };
        Self { ours: each(self.ours), reference: each(self.reference), verified: self.verified }
    }
}

/// Alternates both; each comes first in every second repetition.
///
/// # Errors
/// If one of them fails. Wrong bytes are reported on standard error and by [`Both::verified`].
pub fn in_turns(
    case: &mut Case<'_>,
    content: &mut Content,
    repetitions: usize,
    mut ours: impl FnMut(&Ends<'_>) -> Result<f64>,
    mut reference: impl FnMut(&mut dyn Reference) -> Result<f64>,
) -> Result<Both> {
    for _ in 0..WARM_UP {
        ours(&case.ends)?;
        reference(&mut *case.reference)?;
    }
    let mut values = [Vec::with_capacity(repetitions), Vec::with_capacity(repetitions)];
    let mut verified = true;
    for repetition in 0..repetitions {
        let is_checked = repetition == 0 || repetition + 1 == repetitions;
        let order = match repetition % 2 {
            0 => [Side::Ours, Side::Reference],
            _ => [Side::Reference, Side::Ours],
        };
        for side in order {
            if is_checked {
                let start = content.draw();
                case.prepare(side, content, start)?;
            }
            let value = match side {
                Side::Ours => ours(&case.ends)?,
                Side::Reference => reference(&mut *case.reference)?,
            };
            if let Some(values) = values.get_mut(side as usize) {
                values.push(value);
            }
            if is_checked && let Err(error) = case.check(side, content) {
                eprintln!("WRONG BYTES, {side:?}, repetition {repetition}: {error:#}");
                verified = false;
            }
        }
    }
    let [ours, reference] = &values;
    Ok(Both { ours: Summary::of(ours), reference: Summary::of(reference), verified })
}
