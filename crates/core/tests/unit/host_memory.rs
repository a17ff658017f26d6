//! What the kernel says of the memory that a program may have, read from files as they are found.

use std::collections::HashMap;

use super::*;

const MEMINFO: &str = "MemTotal:       1000 kB\nMemFree:   1 kB\nMemAvailable:     600 kB\n";
const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                  35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                  41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

fn kib(free: u64, total: u64) -> Option<MemoryInfo> {
    Some(MemoryInfo { free: free << 10, total: total << 10 })
}

/// What a machine with these files says. Numbers of the files are in bytes, as the kernel writes them.
fn told(groups: &str, mountinfo: &str, files: &[(&str, &str)]) -> Option<MemoryInfo> {
    let mut all: HashMap<&str, &str> = files.iter().copied().collect();
    all.insert("/proc/self/cgroup", groups);
    all.entry("/proc/meminfo").or_insert(MEMINFO);
    memory_from(|path| all.get(path).map(|text| (*text).to_owned()), &mounts::of_memory(mountinfo))
}

#[test]
fn meminfo_numbers_are_parsed_or_none() {
    assert_eq!(machine_memory(MEMINFO), kib(600, 1000));
    for text in [
        "",
        "MemTotal: 16 kB\n",
        "MemTotal: 16 MB\nMemAvailable: 1 kB\n",
        "MemTotal: 1 kB\nMemAvailable: x kB",
    ] {
        assert_eq!(machine_memory(text), None, "{text}");
    }
    assert_eq!(told("", "", &[("/proc/meminfo", "")]), None);
    assert_eq!(told("", "", &[]), kib(600, 1000), "a system without control groups");
}

#[test]
fn container_limit_is_total_and_rest_is_free() {
    let files = [
        ("/sys/fs/cgroup/memory.max", "409600\n"),
        ("/sys/fs/cgroup/memory.current", "204800\n"),
        ("/sys/fs/cgroup/memory.stat", "anon 4096\nfile 8192\n"),
    ];
    assert_eq!(told("0::/\n", V2, &files), kib(200, 400));
    // More than the machine has free is not there.
    let much = [files[0], ("/sys/fs/cgroup/memory.current", "0\n"), ("/proc/meminfo", MEMINFO)];
    let little = "MemTotal: 1000 kB\nMemAvailable: 7 kB\n";
    assert_eq!(told("0::/\n", V2, &much), kib(400, 400));
    assert_eq!(told("0::/\n", V2, &[much[0], much[1], ("/proc/meminfo", little)]), kib(7, 400));
}

#[test]
fn narrowest_group_limit_applies() {
    let files = [
        ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
        ("/sys/fs/cgroup/a/b/memory.current", "1024\n"),
        ("/sys/fs/cgroup/a/memory.max", "512000\n"),
        ("/sys/fs/cgroup/a/memory.current", "409600\n"),
        ("/sys/fs/cgroup/memory.max", "307200\n"),
        ("/sys/fs/cgroup/memory.current", "102400\n"),
        ("/sys/fs/cgroup/other/memory.max", "1\n"),
    ];
    assert_eq!(told("0::/a/b\n", V2, &files), kib(100, 300));
    assert_eq!(told("0::/\n", V2, &files), kib(200, 300));
}

#[test]
fn file_pages_that_are_only_a_cache_are_free() {
    let stat = "anon 1\nfile 999999\ninactive_file 40960\nactive_file 20480\nslab_reclaimable 10240\nunevictable 5\n";
    let files = [
        ("/sys/fs/cgroup/memory.max", "102400"),
        ("/sys/fs/cgroup/memory.current", "102400"),
        ("/sys/fs/cgroup/memory.stat", stat),
    ];
    assert_eq!(told("0::/\n", V2, &files), kib(70, 100));
    // Counts of different moments may not fit together.
    let odd = [files[0], ("/sys/fs/cgroup/memory.current", "1024"), files[2]];
    assert_eq!(told("0::/\n", V2, &odd), kib(100, 100));
    let over = [files[0], ("/sys/fs/cgroup/memory.current", "204800")];
    assert_eq!(told("0::/\n", V2, &over), kib(0, 100));
}

#[test]
fn the_first_version_of_control_groups_is_read_as_well() {
    let groups = "4:memory:/pod/job\n1:name=systemd:/x\n0::/\n";
    let files = [
        ("/sys/fs/cgroup/memory/pod/job/memory.limit_in_bytes", "9223372036854771712\n"),
        ("/sys/fs/cgroup/memory/pod/job/memory.usage_in_bytes", "51200\n"),
        ("/sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "409600\n"),
        ("/sys/fs/cgroup/memory/pod/memory.usage_in_bytes", "204800\n"),
        ("/sys/fs/cgroup/memory/pod/memory.stat", "inactive_file 0\ntotal_inactive_file 102400\n"),
    ];
    assert_eq!(told(groups, V1, &files), kib(300, 400));
    assert_eq!(told("4:cpu,cpuacct:/pod/job\n", V1, &files), kib(600, 1000), "another controller's group");
}

#[test]
fn container_group_is_found_by_its_mount() {
    let mounted = "35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
    let files = [
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "409600"),
        ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "0"),
        ("/sys/fs/cgroup/memory/in/memory.limit_in_bytes", "204800"),
        ("/sys/fs/cgroup/memory/in/memory.usage_in_bytes", "0"),
    ];
    assert_eq!(told("4:memory:/docker/ab\n", mounted, &files), kib(400, 400));
    assert_eq!(told("4:memory:/docker/ab/in\n", mounted, &files), kib(200, 200));
    // Only the beginning of the name is the same.
    assert_eq!(told("4:memory:/docker/abc\n", mounted, &files), kib(400, 400));
}

#[test]
fn damaged_files_are_no_limit() {
    for (max, current) in [("", "1"), ("x", "1"), ("-1", "1"), ("409600", ""), ("409600", "y")] {
        let files = [("/sys/fs/cgroup/memory.max", max), ("/sys/fs/cgroup/memory.current", current)];
        let told = told("0::/\n", V2, &files);
        // How much of a limit is used may stay unknown; the limit holds.
        let expected = if max == "409600" { kib(400, 400) } else { kib(600, 1000) };
        assert_eq!(told, expected, "{max:?} {current:?}");
    }
    for groups in ["", "0", "0:", "0::", "::::", "x::/a\n0::/../../b\n"] {
        let files = [("/sys/fs/cgroup/memory.max", "x"), ("/sys/fs/b/memory.max", "1")];
        assert_eq!(told(groups, V2, &files), kib(600, 1000), "{groups:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_name_that_is_no_text_hides_no_other_line() {
    let path = std::env::temp_dir().join(format!("transload-mountinfo-{}", std::process::id()));
    let other = b"29 23 8:1 / /mnt/\xff\xfe rw - ext4 /dev/sda1 rw\n";
    std::fs::write(&path, [other, V2.as_bytes()].concat()).unwrap();
    let told = text(path.to_str().unwrap());
    std::fs::remove_file(&path).unwrap();
    assert_eq!(mounts::of_memory(&told.unwrap()), mounts::of_memory(V2));
    assert_eq!(text("/nonexistent"), None);
}

#[test]
#[cfg(target_os = "linux")]
fn this_machine_tells_its_memory() {
    let told = host_memory().unwrap();
    assert!(0 < told.free && told.free <= told.total, "{told:?}");
}
