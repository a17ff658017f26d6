//! Lists of nodes, and the effect of a preferred node.

use super::{
    super::mapping::{Mapping, MappingOptions},
    count,
};

#[test]
fn a_list_of_nodes_is_counted() {
    for (list, nodes) in [
        ("0", 1),
        ("0-1", 2),
        ("0-3,5", 5),
        ("", 0),
        ("x", 0),
        ("3-1", 0),
        ("0-18446744073709551615,5", usize::MAX),
    ] {
        assert_eq!(count(list), nodes, "{list}");
    }
}

#[test]
fn preferred_node_is_reported_by_the_system() {
    /// `MPOL_F_ADDR`: the page at an address, not the thread.
    const OF_ADDRESS: usize = 2;
    const NODES: usize = 1024;
    let wanted = MappingOptions { huge: false, node: Some(0) };
    let mapping = Mapping::new(100_000, wanted).unwrap();
    let (mut mode, mut mask) = (-1_i32, [0_u64; NODES / 64]);
    // SAFETY: both out pointers are valid, the mask for the given number of bits; the address is mapped.
    let code = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.as_mut_ptr(),
            NODES + 1,
            mapping.start().as_ptr(),
            OF_ADDRESS,
        )
    };
    if code != 0 {
        println!("skipped: the system does not tell: {}", std::io::Error::last_os_error());
        return;
    }
    assert_eq!((mode, mask[0], mask[1..].iter().sum::<u64>()), (libc::MPOL_PREFERRED, 1, 0));
}

#[test]
fn node_beyond_the_mask_is_refused() {
    assert!(super::prefer(std::ptr::null_mut(), 0, u32::MAX).is_err());
}
