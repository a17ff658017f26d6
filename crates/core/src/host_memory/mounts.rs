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
mod tests {
    use super::*;

    #[test]
    fn only_hierarchies_that_limit_memory_are_kept_with_whatever_fields_between() {
        let text = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                    31 30 0:27 / /sys/fs/cgroup/cpu rw shared:9 master:1 - cgroup cgroup rw,cpu,cpuacct\n\
                    32 30 0:28 /pod /sys/fs/cgroup/memory rw shared:9 master:1 - cgroup cgroup rw,memory\n\
                    33 30 0:29 / /mnt/a\\040b rw - cgroup2 none rw\n\
                    damage\n- cgroup2\n";
        let mount = |version, root: &str, point: &str| Mount {
            version,
            root: root.to_owned(),
            point: point.to_owned(),
        };
        let expected =
            [mount(Version::One, "/pod", "/sys/fs/cgroup/memory"), mount(Version::Two, "/", "/mnt/a b")];
        assert_eq!(of_memory(text), expected);
    }
}
