//! The memory limits of the process's control groups, of both versions.

use super::mounts::{Mount, Version};
use crate::MemoryInfo;

/// Returns the limit of each group that the process is in, from its own outwards, as far as limits are set.
pub(super) fn limits<'a>(
    read: &'a impl Fn(&str) -> Option<String>,
    groups: &'a str,
    mounts: &'a [Mount],
) -> impl Iterator<Item = MemoryInfo> + 'a {
    let with_groups = mounts.iter().filter_map(|mount| Some((mount, group_of(groups, mount.version)?)));
    with_groups.flat_map(|(mount, group)| {
        folders(mount, group).into_iter().filter_map(|folder| limit(read, &folder, mount.version))
    })
}

/// Returns the process's group from the lines of `/proc/self/cgroup`, each `number:controllers:path`.
fn group_of(groups: &str, version: Version) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_it = match version {
            Version::One => controllers.split(',').any(|controller| controller == "memory"),
            Version::Two => number == "0" && controllers.is_empty(),
        };
        // Groups outside of the container's view cannot be read.
        (is_it && path.starts_with('/') && !path.split('/').any(|part| part == "..")).then_some(path)
    })
}

/// Returns the folders of a group and of its parents, as far as they are mounted.
fn folders(mount: &Mount, group: &str) -> Vec<String> {
    let root = mount.root.trim_end_matches('/');
    let below = group.strip_prefix(root).filter(|below| below.is_empty() || below.starts_with('/'));
    // A group's name that does not fit is from outside the container; what is mounted is the container's own
    // group.
    let mut below = below.unwrap_or_default().trim_end_matches('/');
    let point = mount.point.trim_end_matches('/');
    let mut folders = vec![format!("{point}{below}")];
    while let Some((around, _)) = below.rsplit_once('/') {
        below = around;
        folders.push(format!("{point}{below}"));
    }
    folders
}

/// Returns the limit of a group, or `None` if it has none.
fn limit(read: &impl Fn(&str) -> Option<String>, folder: &str, version: Version) -> Option<MemoryInfo> {
    /// Version 1 writes "no limit" as a number near `i64::MAX`.
    const NONE: u64 = 1 << 60;
    let (limit, usage, prefix) = match version {
        Version::One => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        Version::Two => ("memory.max", "memory.current", ""),
    };
    let number = |file: &str| read(&format!("{folder}/{file}"))?.trim().parse::<u64>().ok();
    let total = number(limit).filter(|total| *total < NONE)?;
    let used = number(usage).unwrap_or(0);
    let statistics = read(&format!("{folder}/memory.stat")).unwrap_or_default();
    let cached = cached(&statistics, prefix).min(used);
    Some(MemoryInfo { free: total.saturating_sub(used - cached), total })
}

/// Returns the bytes charged to the group that the system reclaims on demand.
fn cached(statistics: &str, prefix: &str) -> u64 {
    let of = |name: &str| {
        let value =
            |line: &str| line.strip_prefix(prefix)?.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        statistics.lines().find_map(value).unwrap_or(0_u64)
    };
    ["inactive_file", "active_file", "slab_reclaimable"].into_iter().map(of).fold(0, u64::saturating_add)
}
