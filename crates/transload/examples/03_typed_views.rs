//! 03 Typed buffers and views: slices by element, guards, casts, and code that takes any memory.
//!
//! `cargo run -p transload --features cuda --example 03_typed_views`; append `-- --simulate` to try it without a GPU.
#![cfg_attr(not(any(target_os = "linux", windows)), no_main)]
#![cfg(any(target_os = "linux", windows))]

mod simulate;

use transload::{Buffer, ErrorKind, Result, Runtime};

/// Code over `Buffer` takes arrays on any device, unified memory, and the buffers of single backends.
fn sum(buffer: &dyn Buffer<f32>) -> Result<f32> {
    let mut elements = vec![0.0; buffer.len()];
    buffer.copy_to_host(&mut elements)?;
    Ok(elements.iter().sum())
}

pub(crate) fn main() -> Result<()> {
    simulate::if_asked();
    let rt = Runtime::discover()?;
    let gpu = rt.cuda(0)?;

    // Three rows of four. A slice is a view: it shares the memory, and keeps it alive.
    let matrix = rt.host((0..12).map(|i| i as f32).collect())?;
    let row = matrix.slice(4..8)?;
    assert_eq!(*row.read()?, [4.0, 5.0, 6.0, 7.0]);

    // A guard opens elements for the host. It waits for work in flight that conflicts, and while it is open such work is
    // refused: a race with the GPU cannot be written in safe code.
    let mut writing = row.write()?;
    writing[0] = 40.0;
    let there = gpu.alloc::<f32>(12)?;
    let refused = rt.copy(&matrix, &there).wait();
    assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Busy));
    drop(writing);
    rt.copy(&matrix, &there).wait()?;

    // Views of the GPU's memory work alike: rows are exchanged and filled there.
    rt.copy(&matrix.slice(..4)?, &there.slice(8..)?).wait()?;
    there.slice(..4)?.fill(0.5)?;
    assert_eq!(*rt.download(&there).wait()?, [0.5, 0.5, 0.5, 0.5, 40.0, 5.0, 6.0, 7.0, 0.0, 1.0, 2.0, 3.0]);
    assert_eq!(sum(&there)?, 66.0);
    assert_eq!(sum(&row)?, 58.0);

    // Whole arrays are copied: a part of one is a slice. Lengths are checked, element types by the compiler.
    let unequal = rt.copy(&row, &there).wait();
    println!("refused: {}", unequal.as_ref().err().map(ToString::to_string).unwrap_or_default());
    assert_eq!(unequal.err().map(|error| error.kind()), Some(ErrorKind::InvalidArgument));

    // A view with a shape and strides, as tensors have them, takes what is no slice: here the columns 1 and 2, packed on the GPU.
    let columns = matrix.view(&[3, 4])?.narrow(1, 1..3)?;
    let packed = gpu.alloc::<f32>(6)?;
    rt.copy_strided(&columns, &packed.view(&[3, 2])?)?.wait()?;
    assert_eq!(*rt.download(&packed).wait()?, [1.0, 2.0, 5.0, 6.0, 9.0, 10.0]);

    // The same bytes as another type; length and alignment are checked.
    let bits = there.slice(..1)?.cast::<u32>()?;
    assert_eq!(*rt.download(&bits).wait()?, [0.5_f32.to_bits()]);

    // What a download returns belongs to the caller alone: it needs no guard, and becomes an array without a copy.
    let mut owned = rt.download(&there).wait()?;
    owned.sort_by(f32::total_cmp);
    assert_eq!(owned[11], 40.0);
    let again = owned.into_array();
    assert_eq!(sum(&again)?, 66.0);

    drop((matrix, row, there, columns, packed, bits, again));
    rt.drain()
}
