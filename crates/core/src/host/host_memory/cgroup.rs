//! What the control groups of this process leave it, of both versions.

use super::mounts::{Mount, Version};
use crate::MemoryInfo;

/// The limit of every group that the process is in, from its own outwards, as far as there are any.
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

/// The group of the process in the lines of `/proc/self/cgroup`, each `number:controllers:path`.
fn group_of(groups: &str, version: Version) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_it = match version {
            Version::One => controllers.split(',').any(|controller| controller == "memory"),
            Version::Two => number == "0" && controllers.is_empty(),
        };
        // A group outside of what a container sees cannot be looked at.
        (is_it && path.starts_with('/') && !path.split('/').any(|part| part == "..")).then_some(path)
    })
}

/// Where the files of a group and of those around it are, as far as they are mounted.
fn folders(mount: &Mount, group: &str) -> Vec<String> {
    let root = mount.root.trim_end_matches('/');
    let below = group.strip_prefix(root).filter(|below| below.is_empty() || below.starts_with('/'));
    // A name that does not fit is one of outside; what is mounted is the container's own.
    let mut below = below.unwrap_or_default().trim_end_matches('/');
    let point = mount.point.trim_end_matches('/');
    let mut folders = vec![format!("{point}{below}")];
    while let Some((around, _)) = below.rsplit_once('/') {
        below = around;
        folders.push(format!("{point}{below}"));
    }
    folders
}

/// `None` where a group has no limit.
fn limit(read: &impl Fn(&str) -> Option<String>, folder: &str, version: Version) -> Option<MemoryInfo> {
    /// The first version says by a number near the largest that there is none.
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

/// Bytes that the group is charged for and that the system gives up when it needs them.
fn cached(statistics: &str, prefix: &str) -> u64 {
    let of = |name: &str| {
        let value =
            |line: &str| line.strip_prefix(prefix)?.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        statistics.lines().find_map(value).unwrap_or(0_u64)
    };
    ["inactive_file", "active_file", "slab_reclaimable"].into_iter().map(of).fold(0, u64::saturating_add)
}
