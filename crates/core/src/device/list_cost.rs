//! Costs of lists: many copies of one path as one piece of work.

use std::{fmt, time::Duration};

use crate::{CostBasis, CostModel, PathCost, TransferPath};

/// What on a device copies the pieces of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ListWay {
    /// Its copy engines.
    CopyEngine,
    /// Its copy engines, which copy long stretches of the host's memory to or from scratch memory of the device, and a kernel of few
    /// blocks, which copies between that and the pieces.
    ThroughDevice,
    /// One launch of a copy kernel, which accesses pinned memory of the host, or memory of a peer, in place.
    CopyKernel,
    /// Nothing that copies a list: each piece is a single copy.
    OneByOne,
}

impl ListWay {
    /// Every way.
    pub const ALL: [Self; 4] = [Self::CopyEngine, Self::ThroughDevice, Self::CopyKernel, Self::OneByOne];
}

impl fmt::Display for ListWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::CopyEngine => "copy engine",
            Self::ThroughDevice => "through device memory",
            Self::CopyKernel => "copy kernel",
            Self::OneByOne => "one by one",
        })
    }
}

/// The time of some list.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ListTime {
    /// Number of pieces.
    pub pieces: u64,
    /// Bytes of each piece.
    pub bytes: u64,
    /// Time of all.
    #[cfg_attr(feature = "serde", serde(rename = "seconds", with = "crate::serde_seconds"))]
    pub time: Duration,
}

/// Time of a list as a function of the number of its pieces and of their length: linear in both between lists of known time, and
/// beyond the largest. Fewer pieces than those count as the fewest, and shorter ones as the shortest, so no list is predicted to be faster
/// than all of known time. If all have one length, longer pieces count as several.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "Vec<ListTime>", try_from = "Vec<ListTime>"))]
pub struct ListModel {
    /// Lengths, ascending, each with times by the number of pieces; at least one.
    lengths: Vec<(u64, CostModel)>,
}

impl ListModel {
    /// Creates a model from lists of known time, in any order. `None` if there are none, or if those of one length do not have at least
    /// two different numbers of pieces.
    #[must_use]
    pub fn through(lists: &[ListTime]) -> Option<Self> {
        let mut sorted = lists.to_vec();
        sorted.sort_by_key(|list| list.bytes);
        let of_length = |lists: &[ListTime]| {
            let times = lists.iter().map(|list| (list.pieces, list.time.as_secs_f64()));
            Some((lists.first()?.bytes, CostModel::from_points(times.collect())?))
        };
        let lengths: Vec<_> =
            sorted.chunk_by(|a, b| a.bytes == b.bytes).map(of_length).collect::<Option<_>>()?;
        (!lengths.is_empty()).then_some(Self { lengths })
    }

    /// Returns the predicted time of a list of so many pieces with so many bytes in all, as if they were equally long.
    #[must_use]
    pub fn predict(&self, pieces: u64, bytes: u64) -> Duration {
        let pieces = pieces.max(1);
        let length = bytes / pieces;
        let above = self.lengths.partition_point(|(known, _)| *known < length);
        let above = above.clamp(1, self.lengths.len().max(2) - 1);
        let seconds = match (self.lengths.get(above - 1), self.lengths.get(above)) {
            (Some((low, short)), Some((high, long))) => {
                let share = length.saturating_sub(*low) as f64 / (high - low) as f64;
                let [short, long] = [short, long].map(|times| seconds(times, pieces));
                let time = (1.0 - share) * short + share * long;
                // Noise must not make longer pieces faster than the longest of known time.
                if share > 1.0 { time.max(long) } else { time }
            }
            (Some((only, times)), None) => seconds(times, pieces.max(bytes / (*only).max(1))),
            _ => 0.0,
        };
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// Returns the time of so many pieces. If noise makes the last times fall, more pieces than the last take a time in proportion to it.
fn seconds(times: &CostModel, pieces: u64) -> f64 {
    let predicted = times.seconds(pieces);
    match times.points.last() {
        Some((most, last)) if pieces > *most && predicted <= *last => last * (pieces as f64 / *most as f64),
        _ => predicted,
    }
}

impl From<ListModel> for Vec<ListTime> {
    fn from(model: ListModel) -> Self {
        let lists = model.lengths.into_iter().flat_map(|(bytes, times)| {
            times.points.into_iter().map(move |(pieces, seconds)| {
                let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
                ListTime { pieces, bytes, time }
            })
        });
        lists.collect()
    }
}

impl TryFrom<Vec<ListTime>> for ListModel {
    type Error = &'static str;

    fn try_from(lists: Vec<ListTime>) -> Result<Self, &'static str> {
        Self::through(&lists)
            .ok_or("costs of lists need, for each length, times of two different numbers of pieces")
    }
}

/// The cost of the lists of one path by one way.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ListCost {
    /// Source and destination.
    pub path: TransferPath,
    /// What copies the pieces.
    pub way: ListWay,
    /// Whether the device has no other work. Else kernels compute there meanwhile, and the time includes by how much the list delays them.
    #[cfg_attr(feature = "serde", serde(default = "exclusive"))]
    pub exclusive: bool,
    /// Time as a function of the number of pieces and of their length.
    pub model: ListModel,
}

/// Costs that methods and ways of lists are chosen by, each with its origin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownCosts {
    /// Of methods on paths.
    pub paths: Vec<(PathCost, CostBasis)>,
    /// Of lists of copies.
    pub lists: Vec<(ListCost, CostBasis)>,
}

#[cfg(feature = "serde")]
fn exclusive() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(lists: &[(u64, u64, u64)]) -> ListModel {
        let list = |&(pieces, bytes, micros)| ListTime { pieces, bytes, time: Duration::from_micros(micros) };
        ListModel::through(&lists.iter().map(list).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn pieces_shorter_than_the_only_length_count_each() {
        let model = model(&[(10, 65_536, 20), (1000, 65_536, 2000)]);
        assert_eq!(model.predict(1000, 1000 * 4096), Duration::from_micros(2000));
        assert_eq!(model.predict(10, 1000 * 65_536), Duration::from_micros(2000));
    }

    #[test]
    fn times_that_fall_by_noise_grow_beyond_the_last() {
        let falling = model(&[(128, 512, 300), (1024, 512, 250), (128, 4096, 300), (1024, 4096, 250)]);
        assert_eq!(falling.predict(1024, 1024 * 512), Duration::from_micros(250));
        assert_eq!(falling.predict(10_240, 10_240 * 512), Duration::from_micros(2500));
    }

    #[test]
    fn no_list_is_faster_than_all_of_known_time() {
        // The first pieces take long, or noise makes more of them, or longer ones, faster.
        let steep = model(&[(2, 512, 4), (16, 512, 200), (2, 4096, 5), (16, 4096, 400)]);
        assert_eq!(steep.predict(1, 512), Duration::from_micros(4));
        assert_eq!(steep.predict(1, 64), Duration::from_micros(4));
        let falling = model(&[(2, 512, 300), (16, 512, 20), (2, 4096, 30), (16, 4096, 10)]);
        for (pieces, length) in
            [(1, 1), (3, 300), (15, 4000), (1, 1 << 20), (17, 1 << 20), (1 << 40, 1 << 20)]
        {
            let time = falling.predict(pieces, pieces * length);
            assert!(time >= Duration::from_micros(10), "{pieces} × {length}: {time:?}");
        }
    }

    #[test]
    fn lists_in_any_order_are_grouped_by_length() {
        let sorted = [(1, 512, 5), (2, 512, 6), (1, 4096, 7), (2, 4096, 8)];
        let [a, b, c, d] = sorted;
        assert_eq!(model(&[d, a, c, b]), model(&sorted));
    }
}
