//! The header's JSON: one object of tensors. Keeps their order, so that a duplicate name is detected.

use std::{collections::BTreeMap, fmt};

use safetensors::tensor::TensorInfo;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};

/// The member that is not a tensor.
const METADATA: &str = "__metadata__";

/// The parsed header, not validated.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) tensors: Vec<(String, TensorInfo)>,
    pub(super) metadata: Option<BTreeMap<String, String>>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Entries::default();
        while let Some(name) = map.next_key::<String>()? {
            let wrong = |error: A::Error| A::Error::custom(format_args!("{}: {error}", quoted(&name)));
            if name != METADATA {
                let info = map.next_value().map_err(wrong)?;
                entries.tensors.push((name, info));
            } else if let Some(given) = map.next_value::<Option<BTreeMap<_, _>>>().map_err(wrong)?
                && entries.metadata.replace(given).is_some()
            {
                return Err(A::Error::custom(format_args!("{} is given twice", quoted(METADATA))));
            }
        }
        Ok(entries)
    }
}

/// Quotes a name from a file for printing.
pub(super) fn quoted(name: &str) -> String {
    format!("`{}`", shortened(name.escape_debug().to_string(), 120))
}

/// Truncates a text from a file.
pub(super) fn shortened(mut text: String, most: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        text.push('…');
    }
    text
}
