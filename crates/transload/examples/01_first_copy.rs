//! 01 First copy: from the host to a GPU and back, with a report that says how.
//!
//! `cargo run -p transload --features cuda --example 01_first_copy`; append `-- --simulate` to try it without a GPU.
#![cfg_attr(not(any(target_os = "linux", windows)), no_main)]
#![cfg(any(target_os = "linux", windows))]

mod simulate;

use transload::{Result, Runtime};

pub(crate) fn main() -> Result<()> {
    simulate::if_asked();

    // The host, and every GPU of this machine. What is not there is no error, but has a reason.
    let rt = Runtime::discover()?;
    for device in rt.devices() {
        println!("found {}: {}", device.id, device.name);
    }
    for (family, reason) in rt.absent() {
        println!("no {family}: {reason}");
    }

    // The first GPU. Without one this error says what was looked for, and where.
    let gpu = rt.cuda(0)?;

    // An array owns elements in any memory. This one takes a vector over, without a copy; the next is the GPU's.
    let weights = rt.host((0..1 << 20).map(|i| i as f32).collect())?;
    let there = gpu.alloc::<f32>(weights.len())?;

    // A copy is asked what it would do, and why, before anything is moved.
    println!("\n{}\n", rt.copy(&weights, &there).plan()?);

    // A copy is waited for, awaited, or submitted. A report comes back in each case. The first one between two places sets up
    // what later ones find: a context, streams, buffers for staging.
    let first = rt.copy(&weights, &there).wait()?;
    let report = rt.copy(&weights, &there).wait()?;
    println!("first {first}\n then {report}");
    assert_eq!(report.bytes, 4 << 20);

    // A download makes its own memory on the host, and reads like a slice. It comes after the copy into `there`: work on
    // common bytes takes effect in the order in which it was submitted, on any streams.
    let back = rt.download(&there.slice(1000..2000)?).wait()?;
    assert_eq!(back.len(), 1000);
    assert!(back.iter().zip(1000..).all(|(element, i)| *element == i as f32));

    // Dropping never waits: memory that is still in use is freed when that use is complete. This waits.
    drop((weights, there, back));
    rt.drain()
}
