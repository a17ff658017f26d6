//! The sizes at which the fastest method changes.

use std::fmt;

use transload_core::{ErrorKind, Place, Result, TransferMethod};

use crate::{CrossBackendTransferManager, TransferOptions};

/// The largest size that is searched for crossing points.
const LARGEST: u64 = 1 << 40;

/// A size at which the fastest method changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Crossing {
    /// The smallest size, in bytes, at which `to` is the fastest.
    pub bytes: u64,
    /// The fastest method below.
    pub from: TransferMethod,
    /// The fastest method from here on.
    pub to: TransferMethod,
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {} bytes on {} instead of {}", self.bytes, self.to, self.from)
    }
}

impl CrossBackendTransferManager {
    /// Returns the sizes, up to 1 TiB or the largest that both ends can have and ascending, at which the method chosen for a path changes.
    /// Moves nothing.
    ///
    /// # Errors
    /// Those of [`plan`](Self::plan).
    pub fn crossings(&self, src: Place, dst: Place, options: &TransferOptions) -> Result<Vec<Crossing>> {
        find(|bytes| self.plan(src, dst, bytes, options).map(|plan| plan.method))
    }
}

/// Finds where the best method changes: exactly, if it does so once between two of the sizes 1, 1.5, 2, 3, 4, 6, ...
pub(super) fn find(best: impl Fn(u64) -> Result<TransferMethod>) -> Result<Vec<Crossing>> {
    let mut found = Vec::new();
    let (mut low, mut from) = (1, best(1)?);
    let sizes = (1_u64..).map(|step| ((2 + step % 2) << (step / 2)) / 2).take_while(|size| *size <= LARGEST);
    for high in sizes {
        let to = match best(high) {
            // Of a buffer that a device does not allocate.
            Err(error) if error.kind() == ErrorKind::OutOfRange => break,
            to => to?,
        };
        if to != from {
            let (mut under, mut bytes) = (low, high);
            while bytes - under > 1 {
                let middle = under + (bytes - under) / 2;
                if best(middle)? == from { under = middle } else { bytes = middle }
            }
            found.push(Crossing { bytes, from, to: best(bytes)? });
        }
        (low, from) = (high, to);
    }
    Ok(found)
}
