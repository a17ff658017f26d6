//! What the manager adds to an operation: its plan, lease, dispatch and statistics. A copy by it next to the same operation that core
//! submits to a stream.

use std::time::Instant;

use anyhow::Result;
use transload_core::{MemoryKind, Operation, Timing, submit};
use transload_streams::CudaStream;

use super::{Library, urgent::End};
use crate::{
    comparison::{Comparison, Fixture, Variant},
    row::{Goal, Row},
};

const BYTES: usize = 4 << 10;
/// Goal: nanoseconds over core's submission.
const MOST_OVER: f64 = 200.0;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let library = Library::new(fixture)?;
    let stream = CudaStream::new(&fixture.device)?;
    let end = End::new(&library, MemoryKind::Pinned, BYTES)?;
    let (src, dst) = (&end.src, &end.dst);
    let nanoseconds = |begun: Instant| begun.elapsed().as_secs_f64() * 1e9;
    let operation = Operation::Copy { src, dst };
    let comparison = |id: &str, what: &str| Comparison {
        id: format!("planning/{id}"),
        what: format!("a copy of {BYTES} bytes from pinned memory, {what}"),
        unit: "ns",
        bytes: BYTES as u64,
        repetitions: fixture.repetitions(3000),
    };
    let mut rows = comparison("submit", "its submission").rows(
        fixture,
        vec![
            Variant::new("core", "core's submit() to a stream", || {
                let begun = Instant::now();
                let fence = submit(&stream, &operation, Timing::Off)?;
                let took = nanoseconds(begun);
                fence.wait()?;
                Ok(took)
            })
            .by_library()
            .verified_by(&end),
            Variant::new("manager", "copy().submit()", || {
                let begun = Instant::now();
                let transfer = library.manager.copy(src, dst).submit();
                let took = nanoseconds(begun);
                transfer.wait()?;
                Ok(took)
            })
            .goal(Goal::AtMostOver(MOST_OVER))
            .verified_by(&end),
        ],
    )?;
    rows.extend(comparison("wait", "its submission and end").rows(
        fixture,
        vec![
            Variant::new("core", "core's submit() to a stream, wait()", || {
                let begun = Instant::now();
                submit(&stream, &operation, Timing::Off)?.wait()?;
                Ok(nanoseconds(begun))
            })
            .by_library()
            .verified_by(&end),
            Variant::new("manager", "copy().wait()", || {
                let begun = Instant::now();
                library.manager.copy(src, dst).wait()?;
                Ok(nanoseconds(begun))
            })
            .goal(Goal::AtMostOver(MOST_OVER))
            .verified_by(&end),
        ],
    )?);
    drop((stream, end));
    library.finish()?;
    Ok(rows)
}
