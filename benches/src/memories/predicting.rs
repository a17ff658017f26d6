//! Automatic prefetch beside none and beside one written by hand, where it can help and where it must not harm.

use std::time::Duration;

use anyhow::Result;

use crate::{
    comparison::{Contest, Rig, Way},
    prediction::{self, Course, CourseSize, Pattern},
    row::{Goal, Row},
};

/// How many times as long as without any prefetch it may take at most.
const MOST: f64 = 1.02;

pub(super) fn rows(rig: &Rig<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for pattern in Pattern::ALL {
        rows.extend(course(rig, pattern)?);
    }
    Ok(rows)
}

/// So many uses of 4 MiB take some milliseconds in every pattern.
fn size(rig: &Rig<'_>, pattern: Pattern) -> CourseSize {
    let (ranges, times) = match pattern {
        Pattern::Sequential => (24, 1),
        Pattern::Strided => (72, 1),
        Pattern::Steps | Pattern::Random => (12, 4),
    };
    CourseSize {
        ranges,
        bytes: rig.bytes(4 << 20),
        times,
        busy: Duration::from_micros(200),
        depth: 3,
        seed: 0x5EED,
    }
}

fn course(rig: &Rig<'_>, pattern: Pattern) -> Result<Vec<Row>> {
    let size = size(rig, pattern);
    let course = &Course::new(&rig.device, &rig.memory, pattern, size)?;
    let ways = prediction::Way::ALL.map(|way| {
        let method = match way {
            prediction::Way::Nothing => "no prefetch: by page faults",
            prediction::Way::ByHand => "prefetches of the next ranges, written by hand",
            prediction::Way::Automatic => "AutoPrefetcher, else by page faults",
            prediction::Way::Executor => "LaunchExecutor, which prefetches what a launch declares",
            prediction::Way::Predicting => "LaunchExecutor with prediction",
        };
        // Every run adds up its own result and fails where that is wrong.
        let run = Way::new(way.name(), method, move || {
            let (took, _predicted) = course.run(way)?;
            Ok(took.as_secs_f64() * 1e6)
        });
        match way {
            prediction::Way::Automatic => run.goal(Goal::RatioAtMost(MOST)),
            _ => run,
        }
    });
    let contest = Contest {
        id: format!("predict/{}", pattern.name()),
        what: format!(
            "{} uses of {} bytes of unified memory by kernels, order {}",
            course.uses(),
            size.bytes,
            pattern.name()
        ),
        unit: "us",
        bytes: 0,
        repetitions: rig.repetitions(30),
    };
    contest.rows(rig, ways.into())
}
