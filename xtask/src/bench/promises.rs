//! The rows that a device must have: what is promised of speed.

use super::{
    goals::{KEPT_TO, can_run},
    results::{ResultRow, Results},
};

/// Ids of rows that must have goals, or what they begin with, up to a `/`: one without a row is missed.
const EXPECTED: [&str; 153] = [
    "wait/cpu.pinned-to-cuda:0.device/",
    "await/cpu.pinned-to-cuda:0.device/",
    "allocations/cpu.pinned-to-cuda:0.device/",
    "wgpu/0/pageable-up/16777216/auto",
    "wgpu/0/pageable-up/67108864/auto",
    "wgpu/0/pageable-up/268435456/auto",
    "wgpu/0/pageable-up/1073741824/auto",
    "wgpu/0/pageable-down/16777216/auto",
    "wgpu/0/pageable-down/67108864/auto",
    "wgpu/0/pageable-down/268435456/auto",
    "wgpu/0/pageable-down/1073741824/auto",
    "wgpu/0/within/16777216/copy",
    "wgpu/0/within/67108864/copy",
    "wgpu/0/within/268435456/copy",
    "wgpu/0/within/1073741824/copy",
    "wgpu/0/raw-up/",
    "wgpu/0/raw-down/",
    "wgpu/0/up/4096/copy",
    "wgpu/0/up/4096/shared-device",
    "wgpu/0/up/4096/foreign-device",
    "wgpu/0/pieces-1000/4096/copy-many",
    "wgpu/0/allocate/4096/allocate",
    "wgpu/0/cuda-copy/268435456/shared",
    "wgpu/0/from-cuda/16777216/auto",
    "wgpu/0/from-cuda/268435456/auto",
    "wgpu/0/to-cuda/16777216/auto",
    "wgpu/0/to-cuda/268435456/auto",
    "wgpu/0/hand-over/4096/in-order",
    "wgpu/0/hand-over-host/32/host",
    "choice/unfinished",
    "choice/regret/mean",
    "choice/regret/worst",
    "choice/lists/mean",
    "choice/lists/worst",
    "choice/long-lists/mean",
    "choice/long-lists/worst",
    "choice/busy/mean",
    "choice/busy/worst",
    "choice/loaded/mean",
    "choice/loaded/worst",
    "many/up-1000/4096/exclusive",
    "many/up-1000/4096/blocks",
    "many/up-10000/4096/exclusive",
    "many/up-10000/4096/blocks",
    "many/up-4096/32768/exclusive",
    "many/down-4096/32768/exclusive",
    "many/pageable-up-1000/4096/exclusive",
    "many/pageable-up-1000/65536/exclusive",
    "many/pageable-up-300/1048576/exclusive",
    "many/state-dict/up/",
    "many/state-dict/down/",
    "beside/4096/busy/copy-blocks",
    "beside/4096/slowdown/copy-blocks",
    "beside/4096/idle/exclusive",
    "beside/24576/busy/copy-blocks",
    "beside/24576/slowdown/copy-blocks",
    "beside/24576/idle/exclusive",
    "beside/131072/busy/copy-blocks",
    "beside/131072/slowdown/copy-blocks",
    "beside/131072/idle/exclusive",
    "beside/2097152/busy/copy-blocks",
    "beside/2097152/slowdown/copy-blocks",
    "beside/2097152/idle/exclusive",
    "load/one/first/load",
    "load/one/later/load",
    "load/two/later/load",
    "load/fresh/ours/16777216/",
    "load/fresh/ours/268435456/",
    "load/fresh/callers/268435456/",
    "strided/up-4096/4096/",
    "strided/down-4096/4096/",
    "scaling/large/up/67108864/",
    "scaling/large/down/67108864/",
    "scaling/large/up/268435456/",
    "scaling/large/down/268435456/",
    "scaling/large/up/1073741824/",
    "scaling/large/down/1073741824/",
    "scaling/both-ways/268435456/",
    "scaling/by-hand/up/50331648/",
    "scaling/by-hand/down/50331648/",
    "scaling/by-hand/up/268435456/",
    "scaling/by-hand/down/268435456/",
    "scaling/pytorch/up/50331648/",
    "scaling/pytorch/down/50331648/",
    "scaling/pytorch/up/268435456/",
    "scaling/pytorch/down/268435456/",
    "scaling/confined-2/up/50331648/copy",
    "scaling/confined-2/down/50331648/copy",
    "scaling/confined-2/up/268435456/copy",
    "scaling/confined-2/down/268435456/copy",
    "scaling/confined-8/up/50331648/copy",
    "scaling/confined-8/down/50331648/copy",
    "scaling/confined-8/up/268435456/copy",
    "scaling/confined-8/down/268435456/copy",
    "scaling/short/65536/copy",
    "scaling/short/1048576/back-to-back",
    "scaling/short/1048576/after-pause",
    "scaling/short/3145728/back-to-back",
    "scaling/download/4096/wait",
    "scaling/planning/submit/",
    "scaling/urgent/pinned/1048576/beside-low",
    "scaling/urgent/pinned/1048576/beside-compute",
    "scaling/urgent/mapped/1048576/beside-low",
    "scaling/urgent/mapped/1048576/beside-compute",
    "scaling/host/64/wait",
    "scaling/host/4096/wait",
    "scaling/host/65536/wait",
    "scaling/host/1048576/wait",
    "scaling/host/4194304/wait",
    "scaling/host/16777216/wait",
    "scaling/host/67108864/wait",
    "scaling/host/268435456/wait",
    "scaling/host/1073741824/wait",
    "scaling/profiling/wait/default",
    "scaling/profiling/submit/default",
    "scaling/profiling/threads-8/wait/default",
    "wgpu/0/down/4096/copy",
    "wgpu/0/down/4096/shared-device",
    "wgpu/0/down/4096/foreign-device",
    "wgpu/0/pieces-1000/4096/odd-offsets",
    "wgpu/0/pieces-1000/4096/pageable",
    "wgpu/0/pieces-down-1000/4096/copy-many",
    "wgpu/0/pieces-down-1000/4096/odd-offsets",
    "wgpu/0/pieces-down-1000/4096/pageable",
    "wgpu/0/cuda-to-vulkan/268435456/handed-over",
    "scaling/profiling/threads-8/submit/default",
    "scaling/profiling/enqueue/default",
    "scaling/profiling/threads-8/enqueue/default",
    "scaling/profiling/copy-many/default",
    "scaling/profiling/threads-8/copy-many/default",
    "scaling/profiling/engines/agree/",
    "scaling/profiling/clock/off",
    "scaling/profiling/clock/stated",
    "scaling/trace/perfetto/write",
    "scaling/trace/chrome/write",
    "scaling/advice/pin",
    "scaling/advice/lists",
    "choice-2/regret/mean",
    "choice-2/regret/worst",
    "choice-2/lists/mean",
    "choice-2/lists/worst",
    "choice-8/regret/mean",
    "choice-8/regret/worst",
    "choice-8/lists/mean",
    "choice-8/lists/worst",
    "cast/up-67108864/cast",
    "cast/down-67108864/cast",
    "cast/widening-up-67108864/cast",
    "many/peers-16/4096/copy-many",
    "many/peers-1000/4096/copy-many",
    "many/peers-4096/32768/copy-many",
    "many/peers-1000/65536/copy-many",
    "many/peers-300/1048576/copy-many",
];
/// What begins the ids of rows of two devices.
const OF_TWO_DEVICES: [&str; 2] = ["load/two/", OF_PEERS];
const OF_PEERS: &str = "many/peers-";
/// What begins the ids of rows next to a program that may be absent: without it they have no goal and say why.
const BESIDE_OTHERS: &str = "scaling/pytorch/";

/// What begins the ids of rows on fewer processors than there are; their number follows.
const CONFINED: [&str; 2] = ["scaling/confined-", "choice-"];

/// Returns what is promised and cannot be measured on this machine of so many processors, each with the reason.
pub(super) fn skipped(results: &Results, processors: usize) -> Vec<(&'static str, String)> {
    let reason = |id: &'static str| {
        let mut confined = CONFINED.iter().filter_map(|start| id.strip_prefix(start)?.split_once('/'));
        if confined.any(|(count, _)| !can_run(&[KEPT_TO, count], processors)) {
            return Some((id, format!("{processors} processors can be used")));
        }
        if is_of_two_devices(id) && results.hardware.starts_with("1 x ") {
            return Some((id, "there is one device".to_owned()));
        }
        let has_peers = || results.rows.iter().any(|row| row.id.starts_with(OF_PEERS));
        if id.starts_with(OF_PEERS) && !has_peers() {
            // A part that fails is told elsewhere.
            return Some((id, "the two devices are no peers".to_owned()));
        }
        let mut of_id = results.rows.iter().filter(|row| is_of(&row.id, id));
        let row = of_id.find(|_| id.starts_with(BESIDE_OTHERS)).filter(|row| row.reference.is_none());
        row.map(|row| (id, row.path.clone()))
    };
    EXPECTED.into_iter().filter_map(reason).collect()
}

/// Returns what is promised, is not skipped, and has no goal among the rows.
pub(super) fn absent(rows: &[ResultRow], skipped: &[(&str, String)]) -> Vec<&'static str> {
    let has_goal = |id: &str| rows.iter().any(|row| row.met.is_some() && is_of(&row.id, id));
    let is_skipped = |id: &str| skipped.iter().any(|(skipped, _)| *skipped == id);
    EXPECTED.into_iter().filter(|id| !is_skipped(id) && !has_goal(id)).collect()
}

fn is_of_two_devices(id: &str) -> bool {
    OF_TWO_DEVICES.iter().any(|start| id.starts_with(start))
}

/// Returns whether a row is the expected one, or one of those.
fn is_of(id: &str, expected: &str) -> bool {
    if expected.ends_with('/') { id.starts_with(expected) } else { id == expected }
}

/// Returns a row like this one for each promise.
#[cfg(test)]
pub(super) fn all_met(like: &ResultRow) -> Vec<ResultRow> {
    let row = |id: &&str| ResultRow {
        id: id.trim_end_matches('/').to_owned() + if id.ends_with('/') { "/x" } else { "" },
        met: Some(true),
        ..like.clone()
    };
    EXPECTED.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        goals::{RUNS, of_hardware},
        results::sample,
    };

    #[test]
    fn promise_without_a_row_is_missed_and_every_one_is_of_a_row_on_record() {
        let mut rows = all_met(&sample().rows[0]);
        rows.retain(|row| !is_of_two_devices(&row.id) && row.id != "choice/regret/mean");
        let of = |hardware: &str| Results { hardware: hardware.to_owned(), ..sample() };
        let absent_of = |hardware: &str| absent(&rows, &skipped(&of(hardware), 8));
        assert_eq!(absent_of("1 x NVIDIA H200"), ["choice/regret/mean"]);
        assert_eq!(absent_of("2 x NVIDIA H200"), ["choice/regret/mean", "load/two/later/load"]);
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let records = files.filter(|file| file.extension().is_some_and(|extension| extension == "json"));
        let ids: Vec<String> = records
            .flat_map(|file| Results::read_or_record(&file).unwrap().rows.into_iter().map(|row| row.id))
            .collect();
        for expected in EXPECTED {
            assert!(ids.iter().any(|id| is_of(id, expected)), "{expected} is no row");
        }
    }

    #[test]
    fn goal_beside_an_absent_program_is_skipped_with_its_reason() {
        let mut results = of_hardware(&[true]);
        results.hardware = "2 x NVIDIA H200".to_owned();
        let row = results.rows.remove(0);
        let beside = |id: &str, reference: Option<String>| ResultRow {
            id: format!("{BESIDE_OTHERS}{id}/copy"),
            path: "no PyTorch".to_owned(),
            met: reference.as_ref().map(|_| true),
            reference,
            ..row.clone()
        };
        let without = all_met(&row).into_iter().filter(|row| !row.id.starts_with(BESIDE_OTHERS));
        results.rows = without.chain([beside("up/50331648", None)]).collect();
        results.rows.push(beside("down/50331648", row.reference.clone()));
        let skipped = skipped(&results, 8);
        assert_eq!(skipped, [("scaling/pytorch/up/50331648/", "no PyTorch".to_owned())]);
        // Without a row nothing says why.
        let absent = absent(&results.rows, &skipped);
        assert_eq!(absent, ["scaling/pytorch/up/268435456/", "scaling/pytorch/down/268435456/"]);
    }

    #[test]
    fn goals_between_peers_are_skipped_where_there_are_none() {
        let mut results = of_hardware(&[true]);
        results.hardware = "2 x NVIDIA H200".to_owned();
        results.rows = all_met(&results.rows[0]);
        assert_eq!(skipped(&results, 8), []);
        results.rows.retain(|row| !row.id.starts_with(OF_PEERS));
        let skipped = skipped(&results, 8);
        assert!(
            skipped.len() == 5
                && skipped.iter().all(|(id, why)| id.starts_with(OF_PEERS) && why.contains("no peers"))
        );
        assert!(absent(&results.rows, &skipped).is_empty());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn goals_on_more_processors_than_there_are_are_skipped() {
        let on = |processors| {
            let mut results = of_hardware(&[true]);
            results.hardware = "2 x NVIDIA H200".to_owned();
            results.rows = all_met(&results.rows[0]);
            let runs = RUNS.iter().filter(|run| can_run(run, processors)).count();
            let skipped = skipped(&results, processors);
            let is_confined = |id: &str| CONFINED.iter().any(|start| id.starts_with(start));
            assert!(skipped.iter().all(|(id, _)| is_confined(id)), "{skipped:?}");
            (RUNS.len() - runs, skipped.len(), skipped.first().map(|(_, reason)| reason.clone()))
        };
        assert_eq!([on(16), on(8)], [(0, 0, None), (0, 0, None)]);
        assert_eq!(on(4), (2, 8, Some("4 processors can be used".to_owned())));
        assert_eq!(on(1).1, 16);
    }
}
