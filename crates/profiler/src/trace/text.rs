//! Bounds the length of names and texts.

use std::borrow::Cow;

use super::types::{Argument, Slice};

/// Bytes that are kept of a text.
const LONGEST: usize = 4096;

/// Returns a text of bounded length, which says so if it was cut.
pub(super) fn cut(text: &str) -> Cow<'_, str> {
    if !is_too_long(text) {
        return Cow::Borrowed(text);
    }
    let kept = &text[..text.floor_char_boundary(LONGEST)];
    Cow::Owned(format!("{kept}… (cut: {} bytes)", text.len()))
}

pub(super) fn is_too_long(text: &str) -> bool {
    text.len() > LONGEST
}

/// Returns the number of texts in a slice that [`cut`] shortens.
pub(super) fn too_long(slice: &Slice<'_>) -> u64 {
    texts(slice).filter(|text| is_too_long(text)).count() as u64
}

fn texts<'a>(slice: &Slice<'a>) -> impl Iterator<Item = &'a str> {
    let arguments = slice.arguments.iter().flat_map(|(name, value)| {
        let text = if let Argument::Text(text) = value { *text } else { "" };
        [*name, text]
    });
    arguments.chain([slice.name])
}

/// Calls `then` with the slice, its texts cut.
pub(super) fn with_cut<R>(slice: &Slice<'_>, then: impl FnOnce(&Slice<'_>) -> R) -> R {
    let texts: Vec<_> = texts(slice).map(cut).collect();
    let arguments: Vec<_> = slice
        .arguments
        .iter()
        .zip(texts.chunks(2))
        .map(|(&(_, value), pair)| match value {
            Argument::Text(_) => (&*pair[0], Argument::Text(&pair[1])),
            number => (&*pair[0], number),
        })
        .collect();
    then(&Slice { name: &cut(slice.name), arguments: &arguments, ..*slice })
}
