//! Where the system shows control groups that limit memory.

/// A mounted hierarchy of control groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) version: Version,
    /// The group that is mounted: of a container its own, where it sees the whole hierarchy's names.
    pub(super) root: String,
    /// Where it is mounted.
    pub(super) point: String,
}

/// Of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// The hierarchies among the lines of `/proc/self/mountinfo` that may limit memory.
pub(super) fn of_memory(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(of_line).collect()
}

fn of_line(line: &str) -> Option<Mount> {
    // Between the two halves there is any number of optional fields.
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

/// A path as it is: the kernel writes what would end a field as three octal digits.
fn plain(escaped: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(escaped.to_owned(), |path, (code, character)| path.replace(code, character))
}

#[cfg(test)]
#[path = "../../../tests/unit/mounts.rs"]
mod tests;
