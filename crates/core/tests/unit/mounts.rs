//! Mount tables of control groups.

use super::*;

#[test]
fn mounts_keep_only_memory_hierarchies() {
    let text = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                31 30 0:27 / /sys/fs/cgroup/cpu rw shared:9 master:1 - cgroup cgroup rw,cpu,cpuacct\n\
                32 30 0:28 /pod /sys/fs/cgroup/memory rw shared:9 master:1 - cgroup cgroup rw,memory\n\
                33 30 0:29 / /mnt/a\\040b rw - cgroup2 none rw\n\
                damage\n- cgroup2\n";
    let mount =
        |version, root: &str, point: &str| Mount { version, root: root.to_owned(), point: point.to_owned() };
    let expected =
        [mount(Version::One, "/pod", "/sys/fs/cgroup/memory"), mount(Version::Two, "/", "/mnt/a b")];
    assert_eq!(of_memory(text), expected);
}
