//! Lists, oldest first, in memory that all of them share: one that was long once keeps nothing.

/// No slot.
const NONE: u32 = u32::MAX;

/// The values of all lists.
pub(crate) struct Slots<T> {
    /// Each with the next one of its list, or the next free one.
    slots: Vec<(Option<T>, u32)>,
    free: u32,
}

/// One of the lists: its first and its last slot.
#[derive(Default)]
pub(crate) struct List(Option<(u32, u32)>);

impl List {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: NONE }
    }
}

impl<T> Slots<T> {
    pub(crate) fn push(&mut self, list: &mut List, value: T) {
        let slot = if self.free == NONE {
            self.slots.push((Some(value), NONE));
            // Far fewer are outstanding.
            u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
        } else {
            let slot = self.free;
            self.free = std::mem::replace(&mut self.slots[slot as usize], (Some(value), NONE)).1;
            slot
        };
        let first = list.0.map_or(slot, |(first, last)| {
            self.slots[last as usize].1 = slot;
            first
        });
        list.0 = Some((first, slot));
    }

    pub(crate) fn first(&self, list: &List) -> Option<&T> {
        self.slots[list.0?.0 as usize].0.as_ref()
    }

    pub(crate) fn first_mut(&mut self, list: &List) -> Option<&mut T> {
        self.slots[list.0?.0 as usize].0.as_mut()
    }

    pub(crate) fn pop(&mut self, list: &mut List) -> Option<T> {
        let (first, last) = list.0?;
        let (value, next) = std::mem::replace(&mut self.slots[first as usize], (None, self.free));
        self.free = first;
        list.0 = (first != last).then_some((next, last));
        value
    }

    /// Returns the values of a list.
    pub(crate) fn iter(&self, list: &List) -> impl Iterator<Item = &T> {
        let mut at = list.0.map_or(NONE, |(first, _)| first);
        std::iter::from_fn(move || {
            let (value, next) = self.slots.get(at as usize)?;
            at = *next;
            value.as_ref()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_and_use_slots_again() {
        let (mut slots, mut lists) = (Slots::default(), [List::default(), List::default()]);
        let mut expected = [std::collections::VecDeque::new(), std::collections::VecDeque::new()];
        for number in 0..1000_u32 {
            let which = (number / 3 % 2) as usize;
            slots.push(&mut lists[which], number);
            expected[which].push_back(number);
            if number > 10 {
                let other = (number % 2) as usize;
                assert_eq!(slots.first(&lists[other]), expected[other].front());
                assert_eq!(slots.pop(&mut lists[other]), expected[other].pop_front());
            }
            for (list, expected) in lists.iter().zip(&expected) {
                assert!(slots.iter(list).eq(expected) && list.is_empty() == expected.is_empty());
            }
        }
        assert_eq!(slots.slots.len(), 11 + 1);
    }
}
