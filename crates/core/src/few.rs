//! A short list of mostly one element, which lies beside the word that says that there is no other.

use smallvec::SmallVec;

/// How many elements besides the first lie in place.
const IN_PLACE: usize = 3;

/// A list in no particular order. Up to four elements lie in place; to see that there is one, and to change it, touches
/// nothing but it and the word before.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Few<T> {
    /// How many there are besides the first: none where there is no first.
    others: usize,
    first: Option<T>,
    rest: SmallVec<[T; IN_PLACE]>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { others: 0, first: None, rest: SmallVec::new() }
    }
}

impl<T> Few<T> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others
    }

    /// The element, where there is just one.
    #[inline]
    pub(crate) fn only(&self) -> Option<&T> {
        if self.others == 0 { self.first.as_ref() } else { None }
    }

    /// As [`only`](Self::only), to change it.
    #[inline]
    pub(crate) fn only_mut(&mut self) -> Option<&mut T> {
        if self.others == 0 { self.first.as_mut() } else { None }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        match index.checked_sub(1) {
            None => self.first.as_ref(),
            Some(index) => self.rest.get(index),
        }
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        match index.checked_sub(1) {
            None => self.first.as_mut(),
            Some(index) => self.rest.get_mut(index),
        }
    }

    pub(crate) fn push(&mut self, element: T) {
        if self.first.is_none() {
            self.first = Some(element);
        } else {
            self.rest.push(element);
            self.others = self.rest.len();
        }
    }

    /// Takes an element out; the last one takes its place.
    pub(crate) fn swap_remove(&mut self, index: usize) -> Option<T> {
        if index >= self.len() {
            return None;
        }
        let Some(last) = self.rest.pop() else { return self.first.take() };
        self.others = self.rest.len();
        match self.get_mut(index) {
            Some(place) => Some(std::mem::replace(place, last)),
            // It was the last itself.
            None => Some(last),
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut few = Self::default();
        elements.into_iter().for_each(|element| few.push(element));
        few
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_a_vector_has_after_any_pushes_and_removals() {
        // Every sequence of two pushes and five steps: a push, or the removal at one of six places.
        for sequence in 0..7_u32.pow(5) {
            let (mut few, mut vector, mut steps) = (Few::default(), Vec::new(), sequence);
            for step in 0..7 {
                let choice = if step < 2 { 0 } else { steps % 7 };
                if step >= 2 {
                    steps /= 7;
                }
                if choice == 0 {
                    few.push(step);
                    vector.push(step);
                } else {
                    let index = choice as usize - 1;
                    let expected = (index < vector.len()).then(|| vector.swap_remove(index));
                    assert_eq!(few.swap_remove(index), expected);
                }
                assert!(few.iter().eq(&vector), "{few:?} is not {vector:?}");
                assert_eq!((few.len(), few.is_empty()), (vector.len(), vector.is_empty()));
                assert!((0..8).all(|index| few.get(index) == vector.get(index)));
                assert!((0..8).all(|index| few.get_mut(index) == vector.get_mut(index)));
                let only = if vector.len() == 1 { vector.first() } else { None };
                assert_eq!(few.only(), only);
                assert_eq!(few.only_mut().as_deref(), only);
            }
        }
    }

    #[test]
    fn more_than_lie_in_place_are_kept_as_well() {
        let mut few: Few<u32> = (0..9).collect();
        assert_eq!(few.len(), 9);
        while few.swap_remove(0).is_some() {}
        assert!(few.is_empty());
    }
}
