//! What is kept by keys that nearly ascend, of the last ones only, in memory that is used again.

use std::collections::VecDeque;

/// Keys that are kept at most; of more, the first are forgotten.
pub(crate) const KEPT: usize = 4096;
/// Those that stay then at most, so that not every new key searches for room.
const LEFT: usize = KEPT / 4 * 3;

/// The values of keys, in their order. Those that were removed leave a place.
pub(crate) struct Recent<K, V>(VecDeque<(K, Option<V>)>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: Copy + Ord, V> Recent<K, V> {
    fn find(&self, key: K) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key, |(key, _)| *key)
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let index = self.find(key).ok()?;
        self.0[index].1.as_mut()
    }

    /// Returns the value of a key, which may be new.
    pub(crate) fn get_or_insert(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        let index = match self.find(key) {
            Ok(index) => index,
            Err(mut index) => {
                if self.0.len() >= KEPT {
                    self.0.retain(|(_, value)| value.is_some());
                    self.0.drain(..self.0.len().saturating_sub(LEFT));
                    index = self.find(key).unwrap_or_else(|index| index);
                }
                self.0.insert(index, (key, None));
                index
            }
        };
        self.0[index].1.get_or_insert_with(new)
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let index = self.find(key).ok()?;
        let removed = self.0[index].1.take();
        while self.0.pop_front_if(|(_, value)| value.is_none()).is_some() {}
        removed
    }

    /// Returns the keys of which there is a value.
    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.0.iter().filter(|(_, value)| value.is_some()).map(|(key, _)| *key)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().filter_map(|(_, value)| value.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_nearly_any_order_are_found_and_the_first_are_forgotten() {
        let mut recent = Recent::default();
        // Pairs are swapped.
        for key in (0..10_000_u32).map(|key| key ^ 1) {
            assert_eq!(*recent.get_or_insert(key, || key), key);
            if key % 3 == 0 {
                assert_eq!((recent.remove(key), recent.remove(key)), (Some(key), None));
            }
        }
        let kept: Vec<_> = recent.keys().collect();
        assert!(kept.is_sorted() && kept.iter().all(|key| key % 3 != 0));
        let last = *kept.first().unwrap();
        assert_eq!(kept.len(), (last..10_000).filter(|key| key % 3 != 0).count());
        assert!((KEPT / 2..=KEPT).contains(&kept.len()), "{}", kept.len());
        assert!(recent.get_mut(0).is_none() && recent.get_mut(9_999).is_none());
        assert_eq!(recent.get_mut(9_998), Some(&mut 9_998));
    }

    #[test]
    fn few_of_the_new_keys_search_for_room() {
        let (mut recent, mut searches) = (Recent::default(), 0);
        for key in 0..100 * KEPT {
            let before = recent.0.len();
            recent.get_or_insert(key, || ());
            searches += usize::from(recent.0.len() <= before);
        }
        assert!((1..=400).contains(&searches), "{searches}");
    }

    #[test]
    fn open_key_is_kept_however_many_later_ones_are_removed() {
        let mut recent = Recent::default();
        recent.get_or_insert(0, || 7);
        for key in 1..10_000 {
            recent.get_or_insert(key, || key);
            recent.remove(key);
        }
        assert_eq!(recent.keys().collect::<Vec<_>>(), [0]);
        assert_eq!(recent.get_mut(0), Some(&mut 7));
    }
}
