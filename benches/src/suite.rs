//! Runs all groups in order.

use anyhow::{Context as _, Result, ensure};
use transload_backend_cpu::CpuBackend;
use transload_core::{DeviceId, MemoryKind, Place, TransferPath};
use transload_transfer::CrossBackendTransferManager;

use crate::{
    case::HostTestbed,
    content::Content,
    grid::{self, Point},
    json::Results,
    machine::Machine,
    methods::{self, Methods},
    options::{Group, Options},
    progress::Progress,
    row::Row,
    rows::Bench,
};

/// Measures the selected groups. The CUDA rows are measured on `device`, if given.
///
/// # Errors
/// If the library or the driver fails, or anything is still allocated at the end.
pub fn run(options: &Options, device: Option<u32>) -> Result<Results> {
    let (mut rows, mut methods) = (Vec::new(), Methods::default());
    let longest = grid::method_sizes(options).into_iter().fold(grid::largest(options), usize::max);
    let mut content = Content::new(longest, options.seed);
    let progress = Progress::new(0);
    let mut description = ("no CUDA device was used".to_owned(), None, None);
    if let Some(ordinal) = device {
        description = cuda(options, ordinal, &mut content, &progress, &mut rows, &mut methods)?;
    }
    if options.wants(Group::Cpu) {
        let manager = CrossBackendTransferManager::new();
        manager.register_backend(CpuBackend::new()?)?;
        let mut bench = Bench { options, manager: &manager, testbed: &HostTestbed, content: &mut content };
        measure(&mut bench, &grid::cpu_paths(), &progress, &mut rows)?;
        all_methods(&mut bench, &grid::cpu_paths(), &progress, &mut rows, &mut methods)?;
        check_nothing_allocated(&manager)?;
    }
    #[cfg(all(feature = "wgpu", any(target_os = "linux", windows)))]
    if options.wants(Group::Wgpu) {
        // Rows tell of the chosen method, not of one that is tried.
        let manager = CrossBackendTransferManager::builder().registration(false).exploration(false).build();
        let begin = |what: &str| {
            progress.expect(1);
            progress.next(what);
        };
        let measured = crate::wgpu::rows(options, &manager, begin)?;
        rows.extend(measured.rows);
        methods.failures.extend(measured.failures);
        check_nothing_allocated(&manager)?;
        if device.is_none() && !measured.devices.is_empty() {
            description = (measured.devices.join("; "), crate::machine::kernel_driver(), None);
        }
    }
    eprintln!("measured in {:.1} s", progress.finish());
    let (hardware, driver, cuda) = description;
    Ok(Results::new(Machine::here(hardware, driver, cuda), rows, methods))
}

type Description = (String, Option<String>, Option<String>);

#[cfg(any(target_os = "linux", windows))]
fn cuda(
    options: &Options,
    ordinal: u32,
    content: &mut Content,
    progress: &Progress,
    rows: &mut Vec<Row>,
    methods: &mut Methods,
) -> Result<Description> {
    use crate::{case::Testbed as _, comparison};

    let (manager, first) = crate::first_use::start(ordinal, grid::largest(options))?;
    rows.extend(first);
    let session = crate::cuda::Session::open(ordinal)?;
    let mut bench = Bench { options, manager: &manager, testbed: &session, content };
    let begin = |what: &str| {
        progress.expect(1);
        progress.next(what);
    };
    if options.wants(Group::Cuda) {
        measure(&mut bench, &grid::cuda_paths(session.device()), progress, rows)?;
        if options.wants_part("baselines") {
            add(rows, "baselines", bench.method_baselines(&session, begin)?);
        }
        let paths = grid::method_paths(session.device(), session.peer());
        all_methods(&mut bench, &paths, progress, rows, methods)?;
    }
    let groups = [
        (Group::Streams, crate::streams::PARTS),
        (Group::Memory, crate::memories::PARTS),
        (Group::Scaling, crate::scaling::PARTS),
        (Group::Choice, crate::choice::PARTS),
        (Group::Many, crate::many::PARTS),
        (Group::Beside, crate::beside::PARTS),
        (Group::Strided, crate::strided::PARTS),
        (Group::Cast, crate::cast::PARTS),
        #[cfg(target_os = "linux")]
        (Group::Load, crate::load::PARTS),
    ];
    for (group, parts) in groups.into_iter().filter(|(group, _)| options.wants(*group)) {
        if group == Group::Scaling {
            rows.extend(crate::scaling::host_rows(options, &mut methods.failures, &begin));
        }
        let more = comparison::rows(parts, (options, &session, ordinal), &begin, &mut methods.failures)?;
        rows.extend(more.into_iter().map(|row| match options.processors {
            Some(processors) if group == Group::Choice => kept_to(row, processors),
            _ => row,
        }));
    }
    check_nothing_allocated(&manager)?;
    session.describe()
}

#[cfg(not(any(target_os = "linux", windows)))]
fn cuda(
    _: &Options,
    _: u32,
    _: &mut Content,
    _: &Progress,
    _: &mut Vec<Row>,
    _: &mut Methods,
) -> Result<Description> {
    anyhow::bail!("there is no CUDA on this platform")
}

/// Measures all rows of `paths`.
fn measure(
    bench: &mut Bench<'_>,
    paths: &[TransferPath],
    progress: &Progress,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let (points, options) = (grid::points(bench.options), bench.options);
    let small = Point::aligned(4096);
    let up = paths.first().copied().unwrap_or(TransferPath::new(
        Place::new(DeviceId::Cpu, MemoryKind::Pageable),
        Place::new(DeviceId::Cpu, MemoryKind::Pageable),
    ));
    progress.expect((paths.len() * (points.len() + 1) + 3) as u64);
    for path in paths {
        for point in &points {
            let part = format!("{}/{}", grid::name(*path), grid::size(*point));
            if !options.wants_part(&part) {
                continue;
            }
            progress.next(&format!("{path}, {} bytes", point.bytes));
            let more = bench.grid(*path, *point).with_context(|| format!("{path}, {} bytes", point.bytes))?;
            add(rows, &part, more);
        }
    }
    let part_of = |part: &str, path: &TransferPath| format!("{part}/{}", grid::name(*path));
    let wants = |part: &str, path: &TransferPath| options.wants_part(&part_of(part, path));
    progress.next("submission");
    let is_submitted = |path: &&TransferPath| path.src.kind != MemoryKind::Mapped && wants("submit", path);
    for path in paths.iter().filter(is_submitted) {
        add(rows, &part_of("submit", path), bench.submitting(*path, small)?);
    }
    progress.next("completion");
    if options.wants_part("completion") {
        add(rows, "completion", bench.completing(up, small)?);
    }
    progress.next("threads");
    if options.wants_part("threads") {
        add(rows, "threads", bench.threads(up, small)?);
    }
    for path in paths.iter().filter(|path| wants("allocations", path)) {
        progress.next(&format!("{path}, allocations"));
        add(rows, &part_of("allocations", path), bench.allocating(*path, small)?);
    }
    Ok(())
}

/// Returns the row with the number of processors after its group, so that it is no other measurement of one with all of them.
#[cfg(any(target_os = "linux", windows))]
fn kept_to(row: Row, processors: u16) -> Row {
    let id = match row.id.split_once('/') {
        Some((group, rest)) => format!("{group}-{processors}/{rest}"),
        None => row.id,
    };
    let path = format!("{}, on {processors} processors", row.path);
    Row { id, path, ..row }
}

/// Adds the rows of a part.
fn add(rows: &mut Vec<Row>, part: &str, more: Vec<Row>) {
    rows.extend(more.into_iter().map(|row| row.of_part(part)));
}

/// Measures every method on `paths`.
fn all_methods(
    bench: &mut Bench<'_>,
    paths: &[TransferPath],
    progress: &Progress,
    rows: &mut Vec<Row>,
    methods: &mut Methods,
) -> Result<()> {
    let options = bench.options;
    progress.expect(paths.len() as u64);
    for path in paths {
        let part = format!("{}{}", methods::GROUP, grid::name(*path));
        if !options.wants_part(&part) {
            continue;
        }
        progress.next(&format!("{path}, every method"));
        add(rows, &part, bench.methods(*path, methods).with_context(|| format!("{path}, every method"))?);
    }
    Ok(())
}

/// Fails if anything is still allocated.
fn check_nothing_allocated(manager: &CrossBackendTransferManager) -> Result<()> {
    manager.drain()?;
    for (name, counts) in manager.resource_counts() {
        ensure!(counts.is_empty(), "still allocated in the {name} backend: {counts}");
    }
    Ok(())
}

#[cfg(all(test, any(target_os = "linux", windows)))]
mod tests {
    use super::*;
    use crate::row::Summary;

    #[test]
    fn rows_on_few_processors_have_ids_of_their_own() {
        let row =
            Row::new("choice/regret/mean".to_owned(), "choice".to_owned(), "", 0, "x", Summary::default());
        let row = kept_to(row, 2);
        assert_eq!((row.id.as_str(), row.path.as_str()), ("choice-2/regret/mean", "choice, on 2 processors"));
    }
}
