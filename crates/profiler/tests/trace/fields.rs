//! Decodes protobuf's wire format by hand.

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    pub(crate) fn bytes(self) -> &'a [u8] {
        let Self::Bytes(bytes) = self else { panic!("expected bytes, got {self:?}") };
        bytes
    }

    pub(crate) fn text(self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }

    pub(crate) fn varint(self) -> u64 {
        let Self::Varint(value) = self else { panic!("expected a varint, got {self:?}") };
        value
    }

    pub(crate) fn fixed64(self) -> u64 {
        let Self::Fixed64(value) = self else { panic!("expected a fixed64, got {self:?}") };
        value
    }
}

/// Takes one field with its number. `None` if the bytes end within it.
pub(crate) fn take<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let key = varint(bytes)?;
    let field = match key & 7 {
        0 => Field::Varint(varint(bytes)?),
        1 => {
            let (value, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Field::Fixed64(u64::from_le_bytes(*value))
        }
        2 => {
            let length = varint(bytes)? as usize;
            let (value, rest) = bytes.split_at_checked(length)?;
            *bytes = rest;
            Field::Bytes(value)
        }
        wire => panic!("wire type {wire}"),
    };
    Some((key >> 3, field))
}

/// The fields of a whole message.
pub(crate) fn all(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        fields.push(take(&mut bytes).unwrap());
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    panic!("varint of more than ten bytes")
}
