//! Staged uploads while a staged download waits for a kernel of five seconds, which must not block them.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use transload_core::{Access, TransferMethod};
use transload_streams::{CudaModule, CudaStream, LaunchConfig};
use transload_transfer::TransferOptions;

use super::{Library, staging::Pairs};
use crate::{
    comparison::{Fixture, Verify as _},
    reference::SPIN,
    row::{Goal, Row, Summary},
    rows::is_verified,
};

const BYTES: usize = 16 << 20;
/// Duration of the kernel; 0 on the software driver.
const NANOSECONDS: u64 = 5_000_000_000;
/// Goals: rate relative to the same uploads alone, of the median and of the slowest.
const LEAST: f64 = 0.95;
const LEAST_OF_SLOWEST: f64 = 0.5;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let library = Library::new(fixture)?;
    let bytes = fixture.bytes(BYTES);
    // On one device other lanes of it.
    let elsewhere = library.peer.unwrap_or(library.device);
    let download = Pairs::on(&library, library.device, false, 1, bytes)?;
    let uploads = Pairs::on(&library, elsewhere, true, 1, bytes)?;
    let ((late, to), (src, dst)) =
        (download.list.first().context("no pair")?, uploads.list.first().context("no pair")?);
    let staged = TransferOptions::new().only(TransferMethod::HostStaged);
    let upload = || -> Result<f64> {
        let begun = Instant::now();
        library.manager.copy(src, dst).options(staged).wait()?;
        Ok(bytes as f64 / begun.elapsed().as_secs_f64() / 1e9)
    };
    // All must be over before the kernel.
    let repetitions = fixture.repetitions(30).min(100);
    let rates = || (0..repetitions).map(|_| upload()).collect::<Result<Vec<f64>>>();
    // The first transfer of each direction allocates the staging buffers.
    upload()?;
    library.manager.copy(late, to).options(staged).wait()?;
    let alone = rates()?;
    download.poison()?;
    uploads.poison()?;
    let stream = CudaStream::new(&fixture.device)?;
    let kernel = CudaModule::from_ptx(&fixture.device, SPIN)?.kernel("transload_spin")?;
    let launch =
        kernel.launch(LaunchConfig::linear(1, 1)).arg(NANOSECONDS).arg(0_u64).declares(late, Access::Write);
    // SAFETY: the parameters are the kernel's; with an address of 0 it stores nothing, so that the buffer keeps its bytes.
    unsafe { launch.enqueue(&stream) }?;
    let waiting = library.manager.copy(late, to).options(staged).submit();
    let beside = rates();
    // An upload that waits for it is one of many: the median would not show it.
    let is_blocked = !waiting.is_complete();
    waiting.wait()?;
    let beside = beside?;
    ensure!(is_blocked || fixture.is_simulated(), "the download was over before the uploads beside it");
    let verified = [&download, &uploads].into_iter().all(|pairs| is_verified(pairs.check()));
    let where_to = if library.peer.is_some() { "another device" } else { "the same device" };
    let row = |id: &str, which: &str, of: fn(&[f64]) -> Summary, least| {
        let id = format!("{}/staged/beside-blocked-download/{bytes}{id}", fixture.group);
        let what = format!(
            "{}: {which} of staged uploads of {bytes} bytes to {where_to} while a staged download waits for a kernel of 5 s",
            fixture.group
        );
        Row::new(id, what, "HostStaged", bytes as u64, "GB/s", of(&beside))
            .against_library("the same uploads alone", of(&alone))
            .obtained(fixture.is_simulated(), verified)
            .with_goal(Some(Goal::RatioAtLeast(least)))
    };
    let slowest = |rates: &[f64]| Summary::single(rates.iter().copied().fold(f64::INFINITY, f64::min));
    let rows = vec![
        row("", "the median", Summary::of, LEAST),
        row("/slowest", "the slowest", slowest, LEAST_OF_SLOWEST),
    ];
    drop((download, uploads));
    library.finish()?;
    Ok(rows)
}
