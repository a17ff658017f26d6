//! Serialized forms that a derive does not give: texts of devices and places, numbers of transfers, points of cost models.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{CostModel, DeviceId, MemoryKind, Place, TransferId};

impl Serialize for DeviceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let place = text.split_once('/').and_then(|(device, kind)| {
            let kind = MemoryKind::ALL.into_iter().find(|known| known.to_string() == kind)?;
            Some(Self::new(device.parse().ok()?, kind))
        });
        place.ok_or_else(|| {
            let expected = "a device and a kind of memory, such as cpu/pinned or cuda:0/device";
            de::Error::custom(format!("`{text}` is not a place; expected {expected}"))
        })
    }
}

impl Serialize for TransferId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

impl<'de> Deserialize<'de> for TransferId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = Self::of_parts(u64::deserialize(deserializer)?, crate::Wanted::Failure);
        id.ok_or_else(|| de::Error::custom("expected the number of a transfer, 1 to 2^61 - 1"))
    }
}

/// A point of a cost model.
#[derive(Serialize, Deserialize)]
pub(super) struct CostPoint {
    bytes: u64,
    seconds: f64,
}

impl From<CostModel> for Vec<CostPoint> {
    fn from(model: CostModel) -> Self {
        model.points.into_iter().map(|(bytes, seconds)| CostPoint { bytes, seconds }).collect()
    }
}

impl TryFrom<Vec<CostPoint>> for CostModel {
    type Error = &'static str;

    fn try_from(points: Vec<CostPoint>) -> Result<Self, &'static str> {
        if points.iter().any(|point| !point.seconds.is_finite() || point.seconds < 0.0) {
            return Err("a point's seconds must be finite and not negative");
        }
        Self::from_points(points.into_iter().map(|point| (point.bytes, point.seconds)).collect())
            .ok_or("a cost model needs points of two different sizes")
    }
}

/// An identity of 16 bytes as 32 hexadecimal digits.
pub(super) mod uuid {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub(in crate::device) fn serialize<S: Serializer>(
        uuid: &Option<[u8; 16]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        uuid.map(|bytes| format!("{:032x}", u128::from_be_bytes(bytes))).serialize(serializer)
    }

    pub(in crate::device) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<[u8; 16]>, D::Error> {
        let parse = |text: String| match u128::from_str_radix(&text, 16) {
            // `from_str_radix` would accept a sign.
            Ok(value) if text.len() == 32 && !text.starts_with('+') => Ok(value.to_be_bytes()),
            _ => Err(de::Error::custom(format!("`{text}` is not an identity of 32 hexadecimal digits"))),
        };
        Option::<String>::deserialize(deserializer)?.map(parse).transpose()
    }
}
