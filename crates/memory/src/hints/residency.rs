//! The driver's record of a unified-memory range: its advice, and its last prefetch destination.

use std::{ffi::c_void, os::raw::c_int};

use transload_core::{RawBuffer, Result};
use transload_cuda_sys::{Context, Driver, DriverError, RelaxedCapture, check, ffi};

use super::{
    MemoryLocation,
    calls::{Range, context_for, explain_hint, range_of},
    driver_location::has_v2,
};
use crate::lift;

/// The driver's record of hints about a range. A value is only reported if it holds for every page; query smaller
/// ranges for more detail. The driver does not report where pages currently are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Residency {
    /// Whether every page is advised as mostly read.
    pub read_mostly: bool,
    /// Preferred location, if all pages have the same one.
    pub preferred: Option<MemoryLocation>,
    /// Accessors that every page is advised with, in the driver's order.
    pub accessed_by: Vec<MemoryLocation>,
    /// Destination of the last prefetch, if all pages agree. The prefetch may not be complete.
    pub last_prefetch: Option<MemoryLocation>,
}

impl Residency {
    /// Queries the driver about a unified-memory buffer or slice. Does not wait for work in flight.
    ///
    /// # Errors
    /// `Unsupported` for memory that is not unified, `InvalidArgument` for 0 bytes; the driver's.
    pub fn of(buffer: &RawBuffer) -> Result<Self> {
        Self::of_range(range_of(buffer)?, &context_for(buffer)?)
    }

    pub(super) fn of_range(range: Range, context: &Context) -> Result<Self> {
        let newer = has_v2()?;
        let devices = Driver::get().and_then(Driver::device_count).map_err(lift)?;
        let _bound = context.enter().map_err(lift)?;
        let _capture = RelaxedCapture::enter().map_err(lift)?;
        let query_all = || -> Result<Self, DriverError> {
            let mut accessed = vec![INVALID; devices as usize + 1];
            query(range, ACCESSED_BY, &mut accessed)?;
            Ok(Self {
                read_mostly: query_one(range, READ_MOSTLY)? != 0,
                preferred: query_location(range, newer, PREFERRED, PREFERRED_TYPE)?,
                accessed_by: accessed.into_iter().filter_map(from_v1).collect(),
                last_prefetch: query_location(range, newer, LAST_PREFETCH, LAST_PREFETCH_TYPE)?,
            })
        };
        query_all().map_err(|error| explain_hint(error, range.0, range.1, MemoryLocation::Host))
    }
}

// `CU_MEM_RANGE_ATTRIBUTE_*`. The attribute after a location's type is its number.
const READ_MOSTLY: u32 = 1;
const PREFERRED: u32 = 2;
const ACCESSED_BY: u32 = 3;
const LAST_PREFETCH: u32 = 4;
const PREFERRED_TYPE: u32 = 5;
const LAST_PREFETCH_TYPE: u32 = 7;

/// `CU_DEVICE_INVALID`: no location, or not the same one for all pages.
const INVALID: c_int = -2;

fn query(range: Range, attribute: u32, into: &mut [c_int]) -> Result<(), DriverError> {
    let data = into.as_mut_ptr().cast::<c_void>();
    // SAFETY: the driver stores as many 32-bit numbers as the size says; it refuses a range that is not managed memory.
    check("cuMemRangeGetAttribute", unsafe {
        ffi::cuMemRangeGetAttribute(data, size_of_val(into), attribute, range.0, range.1)
    })
}

fn query_one(range: Range, attribute: u32) -> Result<c_int, DriverError> {
    let mut value = [INVALID];
    query(range, attribute, &mut value).map(|()| value[0])
}

/// Queries a location by type and number if the driver has these attributes; otherwise by the older device number,
/// which reports every NUMA node as the host.
fn query_location(
    range: Range,
    newer: bool,
    older: u32,
    kind: u32,
) -> Result<Option<MemoryLocation>, DriverError> {
    if !newer {
        return query_one(range, older).map(from_v1);
    }
    let found = query_one(range, kind)?;
    // Types without a number have an undefined one.
    let numbered = |of: fn(u32) -> MemoryLocation| {
        query_one(range, kind + 1).map(|number| u32::try_from(number).ok().map(of))
    };
    match found {
        1 => numbered(MemoryLocation::Device),
        2 => Ok(Some(MemoryLocation::Host)),
        3 => numbered(MemoryLocation::HostNuma),
        4 => Ok(Some(MemoryLocation::HostNumaCurrent)),
        _ => Ok(None),
    }
}

fn from_v1(number: c_int) -> Option<MemoryLocation> {
    match number {
        -1 => Some(MemoryLocation::Host),
        number => u32::try_from(number).ok().map(MemoryLocation::Device),
    }
}
