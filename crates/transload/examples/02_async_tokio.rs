//! 02 Async with tokio: a thousand copies there and back, awaited by a thousand tasks on two threads.
//!
//! `cargo run -p transload --features cuda --example 02_async_tokio`; append `-- --simulate` to try it without a GPU.
#![cfg_attr(not(any(target_os = "linux", windows)), no_main)]
#![cfg(any(target_os = "linux", windows))]

mod simulate;

use std::{error::Error, time::Instant};

use transload::Runtime;

const TASKS: usize = 1000;
/// Elements of each task: 64 KiB.
const EACH: usize = 16 << 10;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    simulate::if_asked();
    let rt = Runtime::discover_async().await?;
    let gpu = rt.cuda(0)?;

    // Pinned memory of the host: the GPU's copy engines read and write it without the processor. Pinning takes the calling thread
    // long, so it is none of the tasks' two.
    let allocate = move || -> transload::Result<_> {
        let len = TASKS * EACH;
        Ok((gpu.pinned::<u32>(len)?, gpu.alloc::<u32>(len)?, gpu.pinned::<u32>(len)?))
    };
    let (source, there, back) = tokio::task::spawn_blocking(allocate).await??;
    source.write_async().await?.iter_mut().zip(0..).for_each(|(element, i)| *element = i);

    // What the first copies have to set up may take long. A thread of the library does it, here before the clock runs.
    rt.prepare_async(source.place(), there.place()).await?;
    rt.prepare_async(there.place(), back.place()).await?;

    let begun = Instant::now();
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        // Clones of the runtime and slices of arrays are cheap handles, so that tasks own what they use.
        let (rt, range) = (rt.clone(), task * EACH..(task + 1) * EACH);
        let (from, over, to) =
            (source.slice(range.clone())?, there.slice(range.clone())?, back.slice(range)?);
        tasks.push(tokio::spawn(async move {
            rt.copy(&from, &over).await?;
            rt.copy(&over, &to).await
        }));
    }
    let mut simulated = "";
    for task in tasks {
        let report = task.await??;
        if report.simulated {
            simulated = " (simulated)";
        }
    }
    println!("{TASKS} copies of 64 KiB there and back in {:.1?}{simulated}", begun.elapsed());
    assert!(*back.read_async().await? == *source.read_async().await?);

    // A copy whose future is dropped has either not begun or will end by itself: the
    // memory stays alive as long as the GPU uses it.
    drop(rt.copy(&source, &there).submit_async());

    // A vector goes in, and comes back filled.
    let elements = rt.download_into(&there.slice(..5)?, vec![0; 5]).await?;
    assert_eq!(elements, [0, 1, 2, 3, 4]);

    drop((source, there, back));
    rt.drain_async().await?;
    Ok(())
}
