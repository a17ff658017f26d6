//! Measured times of lists of copies.

use transload_core::{Error, ErrorKind, ListCost, ListModel, ListTime, ListWay, Result, TransferPath};

use super::{
    MeasuredTime,
    result::{LARGEST, is_time},
};

/// Lists of more pieces are no measurements.
const MOST: u64 = 1 << 30;
/// Most lists of a path by one way: a calibration measures some forty.
const MOST_LISTS: usize = 256;

/// Measured times of the lists of a path by one way, on an idle device or beside kernels that compute there.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ListCalibration {
    /// Source and destination.
    pub path: TransferPath,
    /// What copied the pieces.
    pub way: ListWay,
    /// Whether the device had no other work. Else the times are means, and include by how much a list delayed the kernels.
    #[cfg_attr(feature = "serde", serde(default = "exclusive"))]
    pub exclusive: bool,
    /// Times by ascending length, then number.
    pub times: Vec<MeasuredList>,
}

/// The time of lists of some shape, from before the submission until the thread that waited goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MeasuredList {
    /// Number of pieces.
    pub pieces: u64,
    /// The time of all, with the bytes of each piece.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub time: MeasuredTime,
}

#[cfg(feature = "serde")]
fn exclusive() -> bool {
    true
}

impl ListCalibration {
    /// Returns the cost: linear between the measured lists. `None` if they are too few.
    #[must_use]
    pub fn cost(&self) -> Option<ListCost> {
        let time = |list: &MeasuredList| {
            let MeasuredList { pieces, time: MeasuredTime { bytes, median, .. } } = *list;
            ListTime { pieces, bytes, time: median }
        };
        let model = ListModel::through(&self.times.iter().map(time).collect::<Vec<_>>())?;
        Some(ListCost { path: self.path, way: self.way, exclusive: self.exclusive, model })
    }

    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it can be no measurement.
    pub(super) fn check(&self) -> Result<()> {
        let Self { path, way, times, .. } = self;
        let is_list = |list: &MeasuredList| {
            let is_short = list.time.bytes.checked_mul(list.pieces).is_some_and(|bytes| bytes <= LARGEST);
            (1..=MOST).contains(&list.pieces) && is_short && is_time(&list.time)
        };
        let wrong = times.iter().find(|list| !is_list(list));
        let text = match wrong {
            Some(MeasuredList { pieces, time }) => {
                format!("a time of {:?} for {pieces} pieces of {} bytes", time.median, time.bytes)
            }
            None if times.len() > MOST_LISTS => {
                format!("{} lists; at most {MOST_LISTS} are valid", times.len())
            }
            None if self.cost().is_none() => "too few lists of one length".to_owned(),
            None => return Ok(()),
        };
        Err(Error::new(ErrorKind::InvalidArgument, format!("no calibration: {path} by {way} has {text}")))
    }
}
