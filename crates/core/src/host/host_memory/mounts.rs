//! Mounted control groups that limit memory.

/// A mounted hierarchy of control groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) version: Version,
    /// The mounted group: a container's own group, if the container sees the names of the whole hierarchy.
    pub(super) root: String,
    /// The mount point.
    pub(super) point: String,
}

/// Version of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// Returns the hierarchies that may limit memory, from the lines of `/proc/self/mountinfo`.
pub(super) fn of_memory(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(of_line).collect()
}

fn of_line(line: &str) -> Option<Mount> {
    // Any number of optional fields precedes the separator.
    let (mount, file_system) = line.split_once(" - ")?;
    let mut file_system = file_system.split(' ');
    let version = match file_system.next()? {
        "cgroup" => Version::One,
        "cgroup2" => Version::Two,
        _ => return None,
    };
    let controllers = file_system.nth(1).unwrap_or_default();
    if version == Version::One && !controllers.split(',').any(|controller| controller == "memory") {
        return None;
    }
    let mut fields = mount.split(' ').skip(3);
    Some(Mount { version, root: plain(fields.next()?), point: plain(fields.next()?) })
}

/// Decodes a path: the kernel writes characters that would end a field as three octal digits.
fn plain(escaped: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(escaped.to_owned(), |path, (code, character)| path.replace(code, character))
}

#[cfg(test)]
#[path = "../../../tests/unit/mounts.rs"]
mod tests;
