//! The system's description of caches.

use super::*;

const MIB: usize = 1 << 20;

#[test]
fn last_cache_counts_once_for_all_that_share_it() {
    let files = |size: &'static str, sharing: &'static str| {
        move |file: &str| {
            let text = match file {
                "index0/level" | "index1/level" => "1\n",
                "index2/level" => "3\n",
                "index2/size" => size,
                "index2/shared_cpu_list" => sharing,
                _ => return None,
            };
            Some(text.to_owned())
        }
    };
    assert_eq!(cache_of(files("307200K\n", "0-15,32-47\n"), 16), Some(300 * MIB));
    // Eight cores share one of these caches.
    assert_eq!(cache_of(files("32M\n", "0-7"), 16), Some(64 * MIB));
    assert_eq!(cache_of(files("32M\n", "0-7"), 2), Some(32 * MIB));
    for (size, sharing) in [("", "0"), ("0K", "0"), ("x", "0"), ("99999999999999999999K", "0"), ("1T", "0")] {
        assert_eq!(cache_of(files(size, sharing), 2), None, "{size}");
    }
    // A list that says nothing is that of all.
    for list in ["", "-", "7-3", "0-18446744073709551615", "a,b"] {
        assert_eq!(cache_of(files("1M", list), 2), Some(MIB), "{list}");
    }
    assert_eq!(cache_of(|_| None, 2), None);
}
