//! Which slot of the encoder holds which source. Pure policy.
//!
//! A source is encoded once for all its users of a partition: the samples of one prompt share its slot, and so do
//! requests with the same prompt. An unused slot keeps its source until another source needs the slot; the least
//! recently used slot goes first. Where all slots are in use, a new source waits.

use std::sync::Arc;

use crate::backend::SourceSlot;
use completion::Partition;
use completion::text::TokenId;

/// What one reading of a source is called in the prefix cache: never reused, so what the prefix cache has of an earlier
/// reading matches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceName(u64);

/// A source in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The encoder's slot that holds the source.
    pub slot: SourceSlot,
    /// The source's name.
    pub name: SourceName,
}

/// What each slot of the encoder holds, and for whom.
#[derive(Clone, Debug)]
pub struct Sources {
    slots: Vec<Option<Entry>>,
    next_name: u64,
    /// Counter of uses, which orders slots by their last use.
    clock: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    name: SourceName,
    partition: Partition,
    tokens: Arc<[TokenId]>,
    users: usize,
    last_used: u64,
}

impl Sources {
    /// `slots` empty slots.
    pub fn new(slots: usize) -> Self {
        Self { slots: vec![None; slots], next_name: 0, clock: 0 }
    }

    /// Takes the slot of a source until [`Sources::release`], and says whether the source is still to be read into it.
    /// `None` where every slot is used by somebody for something else.
    pub fn hold(&mut self, partition: Partition, tokens: &Arc<[TokenId]>) -> Option<(Held, bool)> {
        self.clock += 1;
        let is_same = |entry: &Entry| entry.partition == partition && entry.tokens == *tokens;
        let same = |entry: &Option<Entry>| entry.as_ref().is_some_and(is_same);
        if let Some(index) = self.slots.iter().position(same)
            && let Some(entry) = &mut self.slots[index]
        {
            entry.users += 1;
            entry.last_used = self.clock;
            return Some((Held { slot: SourceSlot(index), name: entry.name }, false));
        }
        let free = |entry: &Option<Entry>| entry.as_ref().is_none_or(|entry| entry.users == 0);
        let age = |entry: &Option<Entry>| entry.as_ref().map(|entry| entry.last_used);
        let (index, slot) = self.slots.iter_mut().enumerate().filter(|(_, e)| free(e)).min_by_key(|(_, e)| age(e))?;
        let name = SourceName(self.next_name);
        self.next_name += 1;
        *slot = Some(Entry { name, partition, tokens: Arc::clone(tokens), users: 1, last_used: self.clock });
        Some((Held { slot: SourceSlot(index), name }, true))
    }

    /// Ends one [`Sources::hold`].
    pub fn release(&mut self, slot: SourceSlot) {
        if let Some(entry) = &mut self.slots[slot.0] {
            debug_assert!(entry.users > 0, "released more often than held");
            entry.users -= 1;
        }
    }

    /// Forgets all sources: after an error nothing is known of them. Names stay used up.
    pub fn clear(&mut self) {
        self.slots.iter_mut().for_each(|slot| *slot = None);
    }

    /// Holds that haven't ended.
    pub fn holds(&self) -> usize {
        self.slots.iter().flatten().map(|entry| entry.users).sum()
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn source(tokens: &[u32]) -> Arc<[TokenId]> {
        tokens.iter().copied().map(TokenId).collect()
    }

    #[test]
    fn a_source_is_read_once_and_kept_until_its_room_is_needed() {
        let mut sources = Sources::new(2);
        let (a, b, c) = (source(&[1]), source(&[2]), source(&[3]));
        let (first, is_new) = sources.hold(Partition::default(), &a).unwrap();
        assert!(is_new);
        assert_eq!(sources.hold(Partition::default(), &a), Some((first, false)));
        let (second, _) = sources.hold(Partition::default(), &b).unwrap();
        assert_ne!(first.slot, second.slot);
        assert_eq!(sources.hold(Partition::default(), &c), None, "both slots are used");
        assert_eq!(sources.hold(Partition(1), &a), None, "another's reading is not for this partition");
        sources.release(first.slot);
        assert_eq!(sources.hold(Partition::default(), &c), None, "one of two users is left");
        sources.release(first.slot);
        assert_eq!(sources.hold(Partition::default(), &a), Some((first, false)), "it was kept");
        sources.release(first.slot);
        let (third, is_new) = sources.hold(Partition::default(), &c).unwrap();
        assert!(is_new && third.slot == first.slot && third.name != first.name);
        sources.release(third.slot);
        let (again, is_new) = sources.hold(Partition::default(), &a).unwrap();
        assert!(
            is_new && again.name != first.name,
            "what was computed with the first reading is not taken for this one's"
        );
    }

    #[test]
    fn random_use_never_moves_a_source_that_is_used() {
        let mut rng = StdRng::seed_from_u64(4);
        let mut sources = Sources::new(3);
        let mut held: Vec<(Arc<[TokenId]>, Held)> = Vec::new();
        for _ in 0..100_000 {
            if rng.random_bool(0.5) {
                let tokens = source(&[rng.random_range(0..2), rng.random_range(0..3)]);
                let mut used: Vec<usize> = held.iter().map(|(_, held)| held.slot.0).collect();
                used.sort_unstable();
                used.dedup();
                match sources.hold(Partition::default(), &tokens) {
                    Some((new, is_new)) => {
                        for (other, old) in &held {
                            assert_eq!(*other == tokens, old.slot == new.slot && old.name == new.name);
                        }
                        assert!(!is_new || !used.contains(&new.slot.0));
                        held.push((tokens, new));
                    }
                    None => assert!(used.len() == 3 && held.iter().all(|(other, _)| *other != tokens)),
                }
            } else if !held.is_empty() {
                let (_, old) = held.swap_remove(rng.random_range(0..held.len()));
                sources.release(old.slot);
            }
            assert_eq!(sources.holds(), held.len());
        }
    }
}
