//! Adds the search path of the placeholder archive that satisfies cust's `-lcuda` where no toolkit is installed.

use std::{env, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let Some(root) = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from) else { return };
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        // A search path from a dependency comes after the ones of cust's own build script, so an installed
        // toolkit's stub library is found first: both end in the same place, because the symbols that cust
        // asks for are defined by this crate and nothing is left for `-lcuda` to supply.
        println!("cargo:rustc-link-search=native={}", root.join("placeholder").join("lib64").display());
    }
}
